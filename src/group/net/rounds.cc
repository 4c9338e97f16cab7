// SPDX-License-Identifier: Apache-2.0
#include "group/net/rounds.h"

#include <ranges>

namespace tutti::group {

void NetworkCollectives::Rounds::run(const std::byte* values, std::byte* result) {
  const Range all{0, layout_.view().bytes()};
  const size_t results = layout_.result_bytes(all);
  if (plan_.gives_to >= 0) {
    const size_t bytes = layout_.value_bytes(plan_.own, all);
    copy_bytes(result, exchange(plan_.gives_to, values, bytes, nullptr, results), results);
    return;
  }
  const Range mine = reduce(values, result);
  if (layout_.way() == Way::halving) spread(mine, result);
  if (plan_.takes_from >= 0) give(plan_.takes_from, result, results);
}

NetworkCollectives::Rounds::Halves NetworkCollectives::Rounds::halves_of(Range range,
                                                                         int peer) const {
  if (layout_.way() == Way::doubling) return {range, range};
  const size_t middle = range.begin + rounded_up((range.end - range.begin) / 2);
  const Range low{range.begin, middle}, high{middle, range.end};
  return topology_.my_host() < peer ? Halves{low, high} : Halves{high, low};
}

NetworkCollectives::Rounds::Range NetworkCollectives::Rounds::reduce(const std::byte* values,
                                                                     std::byte* result) {
  Range range{0, layout_.view().bytes()};
  const std::byte* mine = values;
  if (plan_.takes_from >= 0) {
    sums_.add(known_, plan_.own, range, values);
    sums_.add(known_, plan_.taken, range, take(plan_.takes_from));
    const std::vector<Subtree>& now = plan_.rounds[0].mine;
    std::byte* const made = place_for(0, layout_.value_bytes(now, range));
    sums_.merge(known_, now, range, made);
    mine = made;
  }
  for (size_t i = 0; i < plan_.rounds.size(); ++i) {
    const Doubling::Round& round = plan_.rounds[i];
    const auto [kept, given] = halves_of(range, round.peer);
    const size_t expected = layout_.value_bytes(round.theirs, kept);
    const std::byte* const theirs =
        exchange(round.peer, mine + value_at(round.mine, range.begin, given.begin),
                 layout_.value_bytes(round.mine, given), received_.at_least(expected), expected);
    known_.clear();
    sums_.add(known_, round.mine, kept, mine + value_at(round.mine, range.begin, kept.begin));
    sums_.add(known_, round.theirs, kept, theirs);
    range = kept;
    if (i + 1 == plan_.rounds.size()) {
      sums_.finish(known_, range, result + result_at(range.begin));
      break;
    }
    const std::vector<Subtree>& now = plan_.rounds[i + 1].mine;
    std::byte* const made = place_for(i + 1, layout_.value_bytes(now, range));
    sums_.merge(known_, now, range, made);
    mine = made;
  }
  return range;
}

std::byte* NetworkCollectives::Rounds::place_for(size_t round, size_t bytes) {
  if (layout_.way() == Way::doubling)
    return channels_.to_tell(topology_.leader(plan_.rounds[round].peer));
  return made_[round % 2]->at_least(bytes);
}

// Goes back through the rounds. In each, the peer has the results of the other half of a range.
void NetworkCollectives::Rounds::spread(Range range, std::byte* result) {
  std::vector<Halves> halves;
  Range whole{0, layout_.view().bytes()};
  for (const Doubling::Round& round : plan_.rounds) {
    halves.push_back(halves_of(whole, round.peer));
    whole = halves.back().kept;
  }
  for (size_t i = plan_.rounds.size(); i-- > 0; range = i ? halves[i - 1].kept : range) {
    const Range other = halves[i].given;
    std::byte* const into = result + result_at(other.begin);
    const size_t expected = layout_.result_bytes(other);
    copy_bytes(into,
               exchange(plan_.rounds[i].peer, result + result_at(range.begin),
                        layout_.result_bytes(range), into, expected),
               expected);
  }
}

const std::byte* NetworkCollectives::Rounds::exchange(int host, const std::byte* data, size_t bytes,
                                                      std::byte* into, size_t expected) {
  const int peer = topology_.leader(host);
  const std::span<const int> peers(&peer, 1);
  if (std::max(bytes, expected) <= kMostTold) {
    copy_bytes(channels_.to_tell(peer), data, bytes);
    PeerChannels::Handshake(channels_, peers, {&bytes, 1}).finish();
    return channels_.told(peer);
  }
  PeerChannels::Transfers transfers(channels_);
  if (expected) transfers.receive(peer, MessageKind::data, into, expected);
  PeerChannels::Handshake handshake(channels_, peers);
  if (bytes) transfers.send(peer, MessageKind::data, data, bytes);
  handshake.finish();
  transfers.wait_all();
  return into;
}

const std::byte* NetworkCollectives::Rounds::take(int host) {
  const int peer = topology_.leader(host);
  PeerChannels::Handshake(channels_, {}, {}, {&peer, 1}).finish();
  return channels_.told(peer);
}

void NetworkCollectives::Rounds::give(int host, const std::byte* data, size_t bytes) {
  const int peer = topology_.leader(host);
  copy_bytes(channels_.to_tell(peer), data, bytes);
  PeerChannels::Handshake(channels_, {&peer, 1}, {&bytes, 1}, {}).finish();
}

}  // namespace tutti::group
