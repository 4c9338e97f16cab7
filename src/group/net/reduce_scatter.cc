// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "group/net/collectives.h"

#include "kernels/reduce.h"

namespace tutti::group {

namespace {

// The most bytes that a rank sends to another at once.
constexpr size_t kPart = 256 << 10;

}  // namespace

// Large data goes part by part: the next part travels while this one is summed.
void NetworkCollectives::reduce_scatter(const GroupCall& call) {
  const size_t n = size_t(channels_.size()), me = size_t(channels_.rank());
  const size_t bytes = size_in_bytes(call.in) / n, each = size_of(call.in.dtype);
  const auto* const in = bytes_of(static_cast<const void*>(call.in.data));
  auto* const out = bytes_of(call.out.data);
  std::vector<const void*> inputs(n);
  const auto combine = [&](size_t at, size_t now, const auto& theirs) {
    for (size_t r = 0; r < n; ++r) inputs[r] = r == me ? in + me * bytes + at : theirs(r);
    void* const output = out + at / each * size_of(call.out.dtype);
    reduce_here({.inputs = inputs,
                 .outputs = {&output, 1},
                 .count = int64_t(now / each),
                 .dtype = call.in.dtype,
                 .op = call.op,
                 .divisor = int64_t(n)},
                false);
  };
  way_ = way_of(call.kind, {bytes, n * bytes});
  if (way_ == Way::rounds) {
    const void* const whole = in;
    const size_t results = bytes / each * size_of(call.out.dtype);
    void* const sums = scattered_.at_least(n * results);
    const Piece piece{{&whole, 1}, {&sums, 1}, call.in.count, call.in.dtype};
    reduce_leaves({{&piece, 1}, all_ranks_, call.op});
    return copy_bytes(out, bytes_of(static_cast<const void*>(sums)) + me * results, results);
  }
  if (way_ == Way::handshake) {
    channels_.shake_hands(
        others(),
        [&](int peer, std::byte* memory) {
          copy_bytes(memory, in + size_t(peer) * bytes, bytes);
          return bytes;
        },
        window_);
    return combine(0, bytes, [&](size_t r) { return channels_.told(int(r)); });
  }
  agree();
  std::vector<size_t> posted[2], sent[2];
  PeerChannels::Transfers transfers(channels_);
  const size_t parts = (bytes + kPart - 1) / kPart;
  for (size_t i = 0; i < parts + 1; ++i) {
    if (i < parts) {
      const size_t at = i * kPart, now = std::min(kPart, bytes - at);
      std::byte* const memory = received_[i % 2].at_least(n * kPart);
      posted[i % 2].clear();
      // These sends are over soon: a peer posts its receive of a part before it sends its own part,
      // which has arrived already.
      for (const size_t number : sent[i % 2]) transfers.wait(number);
      sent[i % 2].clear();
      for (const int peer : others())
        posted[i % 2].push_back(
            transfers.receive(peer, MessageKind::data, memory + size_t(peer) * kPart, now));
      for (const int peer : others())
        sent[i % 2].push_back(
            transfers.send(peer, MessageKind::data, in + size_t(peer) * bytes + at, now));
    }
    if (i == 0) continue;
    const size_t at = (i - 1) * kPart;
    for (const size_t number : posted[(i - 1) % 2]) transfers.wait(number);
    combine(at, std::min(kPart, bytes - at),
            [&](size_t r) { return received_[(i - 1) % 2].at_least(0) + r * kPart; });
  }
  transfers.wait_all();
}

}  // namespace tutti::group
