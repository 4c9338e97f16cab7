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

  // Makes the results from this host's values and those of the others.
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
  // Memory for this host's values of a round. With doubling it is in the greeting, which all of
  // them travel with.
  std::byte* place_for(size_t round, size_t bytes);
  // The offset of the values for byte `at` of the view in a message whose range begins at `from`.
  size_t value_at(std::span<const Subtree> subtrees, size_t from, size_t at) const {
    return padded(layout_.value_bytes(subtrees, {from, at}));
  }
  size_t result_at(size_t at) const { return padded(layout_.result_bytes({0, at})); }
  // Sends data to a host and receives `expected` bytes from it. Returns where these are: at `into`,
  // or in the host's greeting.
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
