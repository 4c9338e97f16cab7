// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks of a host: packets through a channel with room for two.
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
  Receive receive(liveness_, {peer, rank_}, out, tag, unclaimed_[size_t(peer)]);
  if (receive.take_early()) return;
  Channel& channel = this->channel(peer, rank_);
  do {  // one message, packet by packet
    std::byte* to = nullptr;
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
        to = receive.begin(packet.tag, packet.dtype, whole);
      }
      const size_t now = std::min(whole - at, kPacket);
      if (now) std::memcpy(to + at, packet.data, now);
      channel.taken.store(number + 1);
      wake(channel.taken, channel.sleepers);
      at += now;
    } while (at < whole);
  } while (!receive.end());
}

}  // namespace tutti::group
