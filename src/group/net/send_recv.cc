// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks by the transport: a header, and the data after it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
  const size_t bytes = size_t(out.count) * size_of(out.dtype);
  const auto expect = [&](DType dtype, size_t sent) {
    if (dtype == out.dtype && sent == bytes) return;
    liveness_.fail(ErrorCode::invalid_argument,
                   fmt::format("recv: {} sent {}[{}] with tag {}, and {} expects {}[{}]",
                               liveness_.name(peer), tutti::name(dtype), sent / size_of(dtype), tag,
                               liveness_.name(rank()), tutti::name(out.dtype), out.count));
  };
  std::vector<Stored>& early = unclaimed_[size_t(peer)];
  if (const auto found = std::ranges::find(early, tag, &Stored::tag); found != early.end()) {
    expect(found->dtype, found->data.size());
    if (bytes) std::memcpy(out.data, found->data.data(), bytes);
    early.erase(found);
    return;
  }
  const Wait wait{peer, what, received_, state};
  const auto take = [&](MessageKind kind, void* data, size_t size) {
    Transfer transfer(*this, transport_.receive(outer(peer), this->tag(kind), data, size));
    await(transfer.message, wait);
  };
  while (true) {
    Header header;
    take(MessageKind::header, &header, sizeof(header));
    if (size_t(header.dtype) >= tutti::detail::kDTypes.size())
      liveness_.fail(ErrorCode::data_loss,
                     fmt::format("recv: {} sent {} bytes that are not a message of this protocol",
                                 liveness_.name(peer), sizeof(header)));
    const bool mine = header.tag == tag;
    if (mine) expect(header.dtype, header.bytes);
    Stored aside{header.tag, header.dtype, std::vector<std::byte>(mine ? 0 : header.bytes)};
    if (header.bytes) take(MessageKind::message, mine ? out.data : aside.data.data(), header.bytes);
    if (mine) return;
    early.push_back(std::move(aside));
  }
}

}  // namespace tutti::group
