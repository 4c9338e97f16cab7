// SPDX-License-Identifier: Apache-2.0
// On which hosts the ranks of a group are.
#pragma once

#include <string>
#include <vector>

namespace tutti::group {

struct GroupTopology {
  std::vector<int> host_of;             // by rank
  std::vector<std::vector<int>> hosts;  // the ranks of each, in their order
  std::vector<size_t> ranks_before;     // a host, on those that come first; at last, of all
  int rank;

  // `names`: of the hosts, by rank. Hosts count in the order of their first ranks.
  GroupTopology(const std::vector<std::string>& names, int rank);

  int my_host() const { return host_of[size_t(rank)]; }
  int leader(int host) const { return hosts[size_t(host)][0]; }
  bool leads() const { return leader(my_host()) == rank; }
  const std::vector<int>& local_ranks() const { return hosts[size_t(my_host())]; }
  size_t local_index(int rank) const;  // among the ranks of its host
  // The rank on `host` that takes in what `rank` has for all.
  int receiver_for(int rank, int host) const;
};

}  // namespace tutti::group
