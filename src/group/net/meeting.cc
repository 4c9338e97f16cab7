// SPDX-License-Identifier: Apache-2.0
#include "group/net/meeting.h"

#include "group/plan/flat_view.h"

namespace tutti::group {

Meeting::Meeting(PeerChannels& channels, const GroupTopology& topology)
    : channels_(channels),
      topology_(topology),
      plan_(doubling_of(topology.my_host(), int(topology.hosts.size()), 1)) {}

void Meeting::hold(std::byte* parts, const std::function<size_t(size_t host)>& start) {
  const auto for_each_range = [&](std::span<const Subtree> hosts, const auto& f) {
    size_t told = 0;
    for (const Subtree& range : hosts) {
      const size_t begin = start(range.first), end = start(range.first + range.leaves);
      f(parts + begin, told, end - begin);
      told += end - begin;
    }
    return told;
  };
  const auto tell = [&](int host, std::span<const Subtree> hosts) {
    std::byte* const to = channels_.to_tell(topology_.leader(host));
    return for_each_range(hosts, [&](const std::byte* part, size_t at, size_t bytes) {
      copy_bytes(to + at, part, bytes);
    });
  };
  const auto hear = [&](int host, std::span<const Subtree> hosts) {
    const std::byte* const told = channels_.told(topology_.leader(host));
    for_each_range(hosts, [&](std::byte* part, size_t at, size_t bytes) {
      copy_bytes(part, told + at, bytes);
    });
  };
  const auto exchange = [&](int host, std::span<const Subtree> mine,
                            std::span<const Subtree> theirs) {
    const int peer = topology_.leader(host);
    const size_t bytes = tell(host, mine);
    PeerChannels::Handshake(channels_, {&peer, 1}, {&bytes, 1}).finish();
    hear(host, theirs);
  };

  const Subtree all{0, topology_.hosts.size()};
  if (plan_.gives_to >= 0) return exchange(plan_.gives_to, plan_.own, {&all, 1});
  const int other = plan_.takes_from < 0 ? 0 : topology_.leader(plan_.takes_from);
  if (plan_.takes_from >= 0) {
    PeerChannels::Handshake(channels_, {}, {}, {&other, 1}).finish();
    hear(plan_.takes_from, plan_.taken);
  }
  for (const Doubling::Round& round : plan_.rounds) exchange(round.peer, round.mine, round.theirs);
  if (plan_.takes_from >= 0) {
    const size_t bytes = tell(plan_.takes_from, {&all, 1});
    PeerChannels::Handshake(channels_, {&other, 1}, {&bytes, 1}, {}).finish();
  }
}

}  // namespace tutti::group
