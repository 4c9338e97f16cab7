// SPDX-License-Identifier: Apache-2.0
#include "group/net/topology.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace tutti::group {

namespace {

std::vector<int> numbers(size_t n) {
  std::vector<int> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

GroupHosts::GroupHosts(std::vector<int> of_job, const std::vector<std::string>& names)
    : ranks(std::move(of_job)), all(numbers(ranks.size())) {
  std::unordered_map<std::string_view, int> known;
  for (const int r : all) {
    const auto [entry, is_new] =
        known.try_emplace(names[size_t(ranks[size_t(r)])], int(hosts.size()));
    if (is_new) hosts.emplace_back();
    host_of.push_back(entry->second);
    hosts[size_t(entry->second)].push_back(r);
  }
  ranks_before.push_back(0);
  for (const std::vector<int>& here : hosts)
    ranks_before.push_back(ranks_before.back() + here.size());
}

GroupHosts::GroupHosts(const std::vector<std::string>& names)
    : GroupHosts(numbers(names.size()), names) {}

size_t GroupHosts::local_index(int r) const {
  const std::vector<int>& here = hosts[size_t(host_of[size_t(r)])];
  return size_t(std::ranges::find(here, r) - here.begin());
}

std::shared_ptr<const HostSubtrees> GroupHosts::subtrees_of(std::span<const int> owners,
                                                            bool single) const {
  std::lock_guard lock(mutex_);
  if (last_ && last_->single == single && std::ranges::equal(last_->owners, owners)) return last_;
  const auto host = [&](size_t leaf) { return host_of[size_t(owners[leaf])]; };
  auto made = std::make_shared<HostSubtrees>();
  made->owners.assign(owners.begin(), owners.end());
  made->single = single;
  made->by_host.resize(hosts.size());
  for (const Subtree& subtree : largest_subtrees(owners.size(), host, single))
    made->by_host[size_t(host(subtree.first))].push_back(subtree);
  for (const std::vector<Subtree>& of_host : made->by_host) {
    const size_t leaves = size_t(std::ranges::count(of_host, 1u, &Subtree::leaves));
    const HostSubtrees::Kind kind{leaves, of_host.size() - leaves};
    if (std::ranges::find(made->kinds_, kind) == made->kinds_.end()) made->kinds_.push_back(kind);
  }
  size_t& each = made->leaves_per_host;
  each = owners.size() % hosts.size() == 0 ? owners.size() / hosts.size() : 0;
  for (size_t leaf = 0; leaf < owners.size() && each; ++leaf)
    if (size_t(host(leaf)) != leaf / each) each = 0;
  return last_ = std::move(made);
}

size_t HostSubtrees::most_values(size_t wide) const {
  size_t most = 1;
  for (const Kind& kind : kinds_) most = std::max(most, kind.leaves + kind.sums * wide);
  return most;
}

int GroupTopology::receiver_for(int from, int host) const {
  const std::vector<int>& there = hosts[size_t(host)];
  return there[(local_index(from) + size_t(host_of[size_t(from)])) % there.size()];
}

}  // namespace tutti::group
