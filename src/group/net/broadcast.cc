// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "group/net/collectives.h"

namespace tutti::group {

void NetworkCollectives::broadcast(const GroupCall& call) {
  std::byte* const data = bytes_of(call.out.data);
  const size_t bytes = size_in_bytes(call.out);
  way_ = way_of(call.kind, {bytes, bytes});
  if (way_ == Way::rounds) return copy_bytes(data, share(data, bytes, call.root), bytes);
  if (way_ == Way::relay) return broadcast_by_relays(data, bytes, call.root);
  const auto target = [&](int) { return data; };
  if (is_root(call))
    exchange(bytes, others(), target, {}, target);
  else
    exchange(bytes, {}, target, {&call.root, 1}, target);
}

// The leaders of the other hosts take turns: one receives a chunk from the root and passes it on to
// the others. The ranks of a host take a chunk from the window, where their leader, or on its own
// host the root, puts it.
void NetworkCollectives::broadcast_by_relays(std::byte* data, size_t bytes, int root) {
  constexpr size_t kLeast = 64 << 10;  // bytes of a chunk
  const int me = channels_.rank(), roots_host = topology_.host_of[size_t(root)];
  std::vector<int> relays;
  for (int h = 0; h < int(topology_.hosts.size()); ++h)
    if (h != roots_host) relays.push_back(topology_.leader(h));
  const int head = topology_.my_host() == roots_host ? root : topology_.leader(topology_.my_host());
  const size_t ways = std::max(relays.size(), size_t{1});
  const size_t chunk = std::clamp(rounded_up((bytes + ways - 1) / ways), kLeast, kArea);
  const size_t chunks = (bytes + chunk - 1) / chunk;
  const auto part = [&](size_t i) {
    return std::span(data + i * chunk, std::min(chunk, bytes - i * chunk));
  };
  const auto is_relay = [&](size_t i) { return !relays.empty() && me == relays[i % ways]; };

  agree();
  PeerChannels::Transfers transfers(channels_);
  std::vector<size_t> numbers;
  const auto post = [&](size_t i) {
    const std::span now = part(i);
    const int relay = relays[i % ways];
    numbers.push_back(me == root ? transfers.send(relay, MessageKind::data, now.data(), now.size())
                      : is_relay(i)
                          ? transfers.receive(root, MessageKind::data, now.data(), now.size())
                          : transfers.receive(relay, MessageKind::results, now.data(), now.size()));
  };
  const auto pass_on = [&](size_t i) {
    transfers.wait(numbers[i]);
    for (const int other : relays)
      if (other != me) transfers.send(other, MessageKind::results, part(i).data(), part(i).size());
  };
  const auto show = [&](size_t i) {
    if (me == head) copy_bytes(window_->mine(kArea), part(i).data(), part(i).size());
    window_->next_phase();
    if (me != head)
      copy_bytes(part(i).data(), window_->shown(int(topology_.local_index(head)), kArea),
                 part(i).size());
  };
  // A relay passes a chunk on before it waits for those that other relays pass on: a chunk has this
  // lead.
  constexpr size_t kAhead = 4;
  const size_t lag = kAhead + ways;
  const bool travels = me == head && !relays.empty();
  for (size_t i = 0; i < chunks + lag; ++i) {
    if (travels && i < chunks) post(i);
    if (i >= kAhead && i - kAhead < chunks && is_relay(i - kAhead)) pass_on(i - kAhead);
    if (i < lag) continue;
    if (travels) transfers.wait(numbers[i - lag]);
    if (window_) show(i - lag);
  }
  transfers.wait_all();
}

}  // namespace tutti::group
