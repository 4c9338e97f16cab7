// SPDX-License-Identifier: Apache-2.0
// A reduction in a logarithmic number of rounds (plan/doubling.h), as a host's leader sees it.
#pragma once

#include "group/net/collectives.h"
#include "group/net/sums.h"

namespace tutti::group {

class NetworkCollectives::Rounds {
 public:
  Rounds(NetworkCollectives& all, const ReductionLayout& layout, Sums& sums)
      : channels_(all.channels_),
        topology_(all.topology_),
        layout_(layout),
        plan_(layout.doubling()),
        sums_(sums),
        received_(all.received_[0]),
        made_{&all.received_[1], &all.received_[2]} {}

  // From this host's values to the results.
  void run(const std::byte* values, std::byte* result);

 private:
  using Layout = ReductionLayout;
  using Range = Layout::Range;
  // The half of a range that a host keeps in a round, and the one that it gives.
  struct Halves {
    Range kept, given;
  };

  Halves halves_of(Range range, int peer) const;
  Range reduce(const std::byte* values, std::byte* result);  // returns the range of the results
  void spread(Range range, std::byte* result);
  // Where this host's values before a round are made: if all of them travel with its greeting,
  // there.
  std::byte* place_for(size_t round, size_t bytes);
  // Where a range begins in a message of one that begins at `from`.
  size_t value_at(std::span<const Subtree> subtrees, size_t from, size_t at) const {
    return padded(layout_.value_bytes(subtrees, {from, at}));
  }
  size_t result_at(size_t at) const { return padded(layout_.result_bytes({0, at})); }
  // Gives data to a host, and takes as much as is expected from it. Returns where that is: at
  // `into`, or where greetings are.
  const std::byte* exchange(int host, const std::byte* data, size_t bytes, std::byte* into,
                            size_t expected);
  const std::byte* take(int host);
  void give(int host, const std::byte* data, size_t bytes);

  PeerChannels& channels_;
  const GroupTopology& topology_;
  const Layout& layout_;
  const Doubling& plan_;
  Sums& sums_;
  Sums::Known known_;
  Scratch& received_;
  Scratch* made_[2];
};

}  // namespace tutti::group
