// SPDX-License-Identifier: Apache-2.0
// On which hosts the ranks of a group are.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "group/plan/tree.h"

namespace tutti::group {

// The subtrees that each host has all leaves of.
struct HostSubtrees {
  std::vector<int> owners;  // of the leaves
  bool single;              // whether each leaf is a subtree of its own
  std::vector<std::vector<Subtree>> by_host;
  // How many leaves each host has, if that is the same number and the hosts' leaves follow each
  // other in the order of the hosts; else 0.
  size_t leaves_per_host;

  // The most bytes of values that a host has for each byte of a leaf, if a sum takes `wide`.
  size_t most_values(size_t wide) const;

 private:
  friend class GroupHosts;
  struct Kind {
    size_t leaves, sums;
    friend bool operator==(const Kind&, const Kind&) = default;
  };
  std::vector<Kind> kinds_;  // the different kinds of hosts
};

// The same for all ranks of a group; shared by those of a simulated job. Safe to use from any
// thread.
class GroupHosts {
 public:
  // `ranks`: of the job, by rank of the group. `names`: of the hosts, by rank of the job. Hosts
  // count in the order of their first ranks.
  GroupHosts(std::vector<int> ranks, const std::vector<std::string>& names);
  // The group of all ranks of a job.
  explicit GroupHosts(const std::vector<std::string>& names);

  std::vector<int> ranks;               // of the job
  std::vector<int> all;                 // of the group: 0, 1, 2, ...
  std::vector<int> host_of;             // by rank of the group
  std::vector<std::vector<int>> hosts;  // the ranks of each, in their order
  std::vector<size_t> ranks_before;     // [h]: ranks on hosts 0 to h - 1; the last entry: on all

  int leader(int host) const { return hosts[size_t(host)][0]; }
  size_t local_index(int rank) const;  // among the ranks of its host
  // The subtrees of a reduction whose leaves have these owners. The last answer is kept, since most
  // reductions are alike.
  std::shared_ptr<const HostSubtrees> subtrees_of(std::span<const int> owners, bool single) const;

 private:
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const HostSubtrees> last_;
};

// The hosts of a group, as one rank sees them.
struct GroupTopology {
  GroupTopology(std::shared_ptr<const GroupHosts> of_group, int of_rank)
      : shared(std::move(of_group)), rank(of_rank) {}

  const std::shared_ptr<const GroupHosts> shared;
  const int rank;
  const std::vector<int>& host_of = shared->host_of;
  const std::vector<std::vector<int>>& hosts = shared->hosts;
  const std::vector<size_t>& ranks_before = shared->ranks_before;

  int my_host() const { return host_of[size_t(rank)]; }
  int leader(int host) const { return shared->leader(host); }
  bool leads() const { return leader(my_host()) == rank; }
  const std::vector<int>& local_ranks() const { return hosts[size_t(my_host())]; }
  size_t local_index(int of) const { return shared->local_index(of); }
  // The rank on `host` that receives what `from` sends to all.
  int receiver_for(int from, int host) const;
};

}  // namespace tutti::group
