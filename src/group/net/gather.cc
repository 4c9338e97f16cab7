// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "group/net/collectives.h"

namespace tutti::group {

void NetworkCollectives::gather(const GroupCall& call) {
  const size_t bytes = size_in_bytes(call.in);
  const std::byte* const in = bytes_of(static_cast<const void*>(call.in.data));
  std::byte* const out = bytes_of(call.out.data);
  const bool to_all = call.kind != Collective::gather, wanted = to_all || is_root(call);
  way_ = way_of(call.kind, {bytes, bytes * all_ranks_.size()});
  if (way_ == Way::rounds) {
    const std::byte* from = share(in, bytes);
    for (const std::vector<int>& ranks : topology_.hosts)
      for (const int rank : ranks) {
        if (wanted) copy_bytes(out + size_t(rank) * bytes, from, bytes);
        from += bytes;
      }
    return;
  }
  if (way_ == Way::relay) {
    std::vector<size_t> starts;
    for (size_t r = 0; r <= size_t(channels_.size()); ++r) starts.push_back(r * bytes);
    return all_gather(in, out, starts);
  }
  const std::span<const int> all = others(), root(&call.root, 1), none;
  const auto target = [&](int peer) { return out + size_t(peer) * bytes; };
  exchange(
      bytes,
      to_all   ? all
      : wanted ? none
               : root,
      [&](int) { return in; }, wanted ? all : none, target);
  if (wanted) copy_bytes(target(channels_.rank()), in, bytes);
}
// A rank sends its part to one rank of each other host. The ranks of a host then show each other
// what they received, one part of each rank at a time.
void NetworkCollectives::all_gather(const std::byte* in, std::byte* out,
                                    std::span<const size_t> starts) {
  const int me = channels_.rank();
  const size_t my_index = topology_.local_index(me);
  const auto bytes_of_part = [&](int rank) {
    return starts[size_t(rank) + 1] - starts[size_t(rank)];
  };
  // The parts that each rank of this host shows the others, its own first.
  std::vector<std::vector<int>> parts;
  for (const int local : topology_.local_ranks()) parts.push_back({local});
  for (const int r : all_ranks_)
    if (topology_.host_of[size_t(r)] != topology_.my_host() && bytes_of_part(r))
      parts[topology_.local_index(topology_.receiver_for(r, topology_.my_host()))].push_back(r);
  const std::vector<int>& mine = parts[my_index];

  agree();
  PeerChannels::Transfers transfers(channels_);
  std::vector<size_t> numbers;
  for (size_t i = 1; i < mine.size(); ++i)
    numbers.push_back(transfers.receive(mine[i], MessageKind::data, out + starts[size_t(mine[i])],
                                        bytes_of_part(mine[i])));
  for (int h = 0; h < int(topology_.hosts.size()); ++h)
    if (h != topology_.my_host() && bytes_of_part(me))
      transfers.send(topology_.receiver_for(me, h), MessageKind::data, in, bytes_of_part(me));
  copy_bytes(out + starts[size_t(me)], in, bytes_of_part(me));

  size_t steps = 0;
  for (const std::vector<int>& of_one : parts) steps = std::max(steps, of_one.size());
  for (size_t i = 0; window_ && i < steps; ++i) {
    if (i > 0 && i < mine.size()) transfers.wait(numbers[i - 1]);
    const auto bytes = [&](size_t k) {
      return i < parts[k].size() ? bytes_of_part(parts[k][i]) : 0;
    };
    size_t longest = 0;
    for (size_t k = 0; k < parts.size(); ++k) longest = std::max(longest, bytes(k));
    for (size_t at = 0; at < longest; at += kArea) {
      const auto now = [&](size_t k) {
        return bytes(k) <= at ? 0 : std::min(kArea, bytes(k) - at);
      };
      const auto target = [&](size_t k) { return out + starts[size_t(parts[k][i])] + at; };
      if (now(my_index)) copy_bytes(window_->mine(kArea), target(my_index), now(my_index));
      transfers.progress();  // messages under way must not wait for the window
      window_->next_phase();
      for (size_t k = 0; k < parts.size(); ++k)
        if (k != my_index && now(k)) copy_bytes(target(k), window_->shown(int(k), kArea), now(k));
    }
  }
  transfers.wait_all();
}

void NetworkCollectives::all_gather_uneven(const Description& what, const detail::Memory& in,
                                           const detail::Memory& out,
                                           std::span<const int64_t> counts, Timeouts timeouts) {
  begin(what, timeouts);
  way_ = Way::relay;
  std::vector<size_t> starts{0};
  for (const int64_t count : counts)
    starts.push_back(starts.back() + size_t(count) * size_of(in.dtype));
  all_gather(bytes_of(static_cast<const void*>(in.data)), bytes_of(out.data), starts);
}

}  // namespace tutti::group
