// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of a host: packets through a channel with room for two.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "group/shm/window.h"

namespace tutti::group {

void Window::send(const Description& what, const detail::Memory& in, int64_t tag,
                  Timeouts timeouts) {
  ++sent_;
  check();
  Deadline deadline(timeouts);
  Channel& channel = this->channel(rank_, what.root);
  const auto* from = static_cast<const std::byte*>(in.data);
  const size_t bytes = size_t(in.count) * size_of(in.dtype);
  size_t at = 0;
  do {
    const uint32_t number = channel.written.load(std::memory_order_relaxed);
    const uint32_t full = number - 2;  // both packets are on their way while this many are taken
    if (channel.taken.load(std::memory_order_acquire) == full) {
      Wait wait{channel.taken, full, false, channel.sleepers, what.root, what, sent_, deadline};
      await(wait);
    }
    Packet& packet = channel.packets[number & 1];
    const size_t now = std::min(bytes - at, kPacket);
    packet.tag = tag;
    packet.bytes = bytes;
    packet.dtype = in.dtype;
    if (now) std::memcpy(packet.data, from + at, now);
    channel.written.store(number + 1);
    wake(channel.written, channel.sleepers);
    at += now;
  } while (at < bytes);
}

void Window::recv(const Description& what, const detail::Memory& out, int64_t tag,
                  Timeouts timeouts) {
  ++received_;
  check();
  Deadline deadline(timeouts);
  const int peer = what.root;
  const size_t bytes = size_t(out.count) * size_of(out.dtype);
  const auto expect = [&](DType dtype, size_t sent) {
    if (dtype == out.dtype && sent == bytes) return;
    liveness_.fail(ErrorCode::invalid_argument,
                   fmt::format("recv: {} sent {}[{}] with tag {}, and {} expects {}[{}]",
                               liveness_.name(peer), tutti::name(dtype), sent / size_of(dtype), tag,
                               liveness_.name(rank_), tutti::name(out.dtype), out.count));
  };
  std::vector<Message>& early = unclaimed_[size_t(peer)];
  const auto found = std::ranges::find(early, tag, &Message::tag);
  if (found != early.end()) {
    expect(found->dtype, found->data.size());
    if (bytes) std::memcpy(out.data, found->data.data(), bytes);
    early.erase(found);
    return;
  }
  Channel& channel = this->channel(peer, rank_);
  for (bool mine = false; !mine;) {
    // One message, packet by packet: into `out`, or aside if another tag is wanted first.
    Message aside{};
    size_t at = 0, whole = 0;
    do {
      const uint32_t number = channel.taken.load(std::memory_order_relaxed);
      if (channel.written.load(std::memory_order_acquire) == number) {
        Wait wait{channel.written, number,  false, channel.sleepers, peer, what,
                  received_,       deadline};
        await(wait);
      }
      const Packet& packet = channel.packets[number & 1];
      if (at == 0) {
        whole = packet.bytes;
        mine = packet.tag == tag;
        if (mine)
          expect(packet.dtype, whole);
        else
          aside = {packet.tag, packet.dtype, std::vector<std::byte>(whole)};
      }
      const size_t now = std::min(whole - at, kPacket);
      std::byte* const to = mine ? static_cast<std::byte*>(out.data) : aside.data.data();
      if (now) std::memcpy(to + at, packet.data, now);
      channel.taken.store(number + 1);
      wake(channel.taken, channel.sleepers);
      at += now;
    } while (at < whole);
    if (!mine) early.push_back(std::move(aside));
  }
}

}  // namespace tutti::group
