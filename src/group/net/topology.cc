// SPDX-License-Identifier: Apache-2.0
#include "group/net/topology.h"

#include <algorithm>
#include <map>

namespace tutti::group {

GroupTopology::GroupTopology(const std::vector<std::string>& names, int r) : rank(r) {
  std::map<std::string, int> known;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto [entry, is_new] = known.try_emplace(names[i], int(hosts.size()));
    if (is_new) hosts.emplace_back();
    host_of.push_back(entry->second);
    hosts[size_t(entry->second)].push_back(int(i));
  }
  ranks_before.push_back(0);
  for (const std::vector<int>& ranks : hosts)
    ranks_before.push_back(ranks_before.back() + ranks.size());
}

size_t GroupTopology::local_index(int r) const {
  const std::vector<int>& ranks = hosts[size_t(host_of[size_t(r)])];
  return size_t(std::ranges::find(ranks, r) - ranks.begin());
}

int GroupTopology::receiver_for(int r, int host) const {
  const std::vector<int>& ranks = hosts[size_t(host)];
  return ranks[(local_index(r) + size_t(host_of[size_t(r)])) % ranks.size()];
}

}  // namespace tutti::group
