// SPDX-License-Identifier: Apache-2.0
// How hosts exchange their values in a logarithmic number of rounds, with the bits of the tree.
//
// With p the largest power of two among H hosts, host h >= p first gives its values to h - p. Then
// the p hosts exchange what they know with those at distance 1, 2, 4, ... At last host h - p gives
// the results to h. After each round a host knows the leaves of at most two ranges of hosts; it
// sends the largest subtrees in them.
#pragma once

#include <vector>

#include "group/plan/tree.h"

namespace tutti::group {

struct Doubling {
  struct Round {
    int peer;                           // a host
    std::vector<Subtree> mine, theirs;  // what the two know before it, in the order of the leaves
  };
  int gives_to = -1;    // the host that takes this one's values, and tells it the results
  int takes_from = -1;  // the host for which this one does so
  std::vector<Subtree> own, taken;  // the values of this host, and of takes_from
  std::vector<Round> rounds;        // none if it gives its values
};

// The plan of `host` among `hosts`. Each has `leaves_per_host` leaves, and the hosts' leaves follow
// each other in the order of the hosts.
Doubling doubling_of(int host, int hosts, size_t leaves_per_host);

// The most values of each element in any message of doubling.
size_t most_values_of_doubling(size_t hosts, size_t leaves_per_host);
// The number of rounds, which follow each other.
size_t rounds_of_doubling(size_t hosts);

}  // namespace tutti::group
