// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks by the transport: a header, and the data after it.
#include <fmt/format.h>

#include "group/net/peer_channels.h"

namespace tutti::group {

struct PeerChannels::Header {
  int64_t tag;
  uint64_t bytes;
  DType dtype;
};

void PeerChannels::send(const Description& what, const detail::Memory& in, int64_t tag,
                        Timeouts timeouts) {
  ++sent_;
  control_->pump();
  liveness_.check();
  WaitState state{Deadline(timeouts)};
  const int peer = what.root;
  const Header header{tag, uint64_t(in.count) * size_of(in.dtype), in.dtype};
  const Wait wait{peer, what, sent_, state};
  Transfer first(
      *this, transport_.send(outer(peer), this->tag(MessageKind::header), &header, sizeof(header)));
  Transfer second(*this, header.bytes
                             ? transport_.send(outer(peer), this->tag(MessageKind::message),
                                               in.data, header.bytes)
                             : nullptr);
  await(first.message, wait);
  await(second.message, wait);
}

void PeerChannels::recv(const Description& what, const detail::Memory& out, int64_t tag,
                        Timeouts timeouts) {
  ++received_;
  control_->pump();
  liveness_.check();
  WaitState state{Deadline(timeouts)};
  const int peer = what.root;
  Receive receive(liveness_, {peer, rank()}, out, tag, unclaimed_[peer]);
  if (receive.take_early()) return;
  const Wait wait{peer, what, received_, state};
  const auto take = [&](MessageKind kind, void* data, size_t size) {
    Transfer transfer(*this, transport_.receive(outer(peer), this->tag(kind), data, size));
    await(transfer.message, wait);
  };
  do {
    Header header;
    take(MessageKind::header, &header, sizeof(header));
    if (size_t(header.dtype) >= tutti::detail::kDTypes.size())
      liveness_.fail(peer, ErrorCode::data_loss,
                     fmt::format("recv: {} sent {} bytes that are not a message of this protocol",
                                 liveness_.name(peer), sizeof(header)));
    std::byte* const to = receive.begin(header.tag, header.dtype, header.bytes);
    if (header.bytes) take(MessageKind::message, to, header.bytes);
  } while (!receive.end());
}

}  // namespace tutti::group
