// SPDX-License-Identifier: Apache-2.0
#include "group/net/reduction_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "group/net/greeting.h"
#include "group/shm/block.h"

namespace tutti::group {

namespace {

// The most that a block may take, in bytes.
constexpr size_t kMostStaged = 4 << 20;

}  // namespace

void HostSubtrees::update(std::span<const int> new_owners, const GroupTopology& topology,
                          bool now_single) {
  if (single == now_single && std::ranges::equal(owners, new_owners)) return;
  owners.assign(new_owners.begin(), new_owners.end());
  single = now_single;
  const auto host_of = [&](size_t leaf) { return topology.host_of[size_t(owners[leaf])]; };
  by_host.assign(topology.hosts.size(), {});
  for (const Subtree& subtree : largest_subtrees(owners.size(), host_of, single))
    by_host[size_t(host_of(subtree.first))].push_back(subtree);
  const size_t hosts = topology.hosts.size();
  leaves_per_host = owners.size() % hosts == 0 ? owners.size() / hosts : 0;
  for (size_t leaf = 0; leaf < owners.size() && leaves_per_host; ++leaf)
    if (size_t(host_of(leaf)) != leaf / leaves_per_host) leaves_per_host = 0;
  if (leaves_per_host) doubling = doubling_of(topology.my_host(), int(hosts), leaves_per_host);
}

ReductionLayout::ReductionLayout(const LeafReduction& reduction, const GroupTopology& topology,
                                 HostSubtrees& subtrees, const Costs& costs)
    : op_(reduction.op),
      view_(reduction, topology.rank, int(topology.host_of.size())),
      hosts_(topology.hosts.size()),
      subtrees_(subtrees) {
  bool single = false;
  size_t wide = 1;
  for (const Piece& piece : reduction.pieces) {
    single |= !has_partials(op_, piece.dtype);
    wide = std::max(wide, size_of(partial_dtype(op_, piece.dtype)) / size_of(piece.dtype));
  }
  subtrees.update(reduction.owners, topology, single);
  size_t values = 1;  // bytes of values per byte of the view, of any host
  for (const std::vector<Subtree>& of_host : subtrees_.by_host) {
    size_t here = 0;
    for (const Subtree& subtree : of_host) here += subtree.leaves == 1 ? 1 : wide;
    values = std::max(values, here);
  }

  const bool shared =
      std::ranges::any_of(topology.hosts, [](const auto& ranks) { return ranks.size() > 1; });
  const size_t most = std::max({values, view_.most_leaves(), view_.widest()});
  way_ = choose_way({.hosts = hosts_,
                     .leaves_per_host = subtrees_.leaves_per_host,
                     .bytes = view_.bytes(),
                     .direct_values = values,
                     .wide = wide,
                     .most = most,
                     .most_told = kMostTold,
                     .most_halved = shared ? kArea : kMostHalved,
                     .sums_apart = !single},
                    costs);
  small_ = is_whole() && view_.bytes() * std::max(values, view_.most_leaves()) <= kSmall;
  slot_ = shared ? kArea : std::min(hosts_ * kArea, kMostStaged);
  const size_t block =
      choose_block({.hosts = hosts_, .bytes = view_.bytes(), .room = slot_ / most});
  block_ = std::max(block / kAlign, size_t{1}) * kAlign;
  if (block_ * most > slot_)
    throw UnimplementedError(
        fmt::format("all_reduce: {} values of each element on one host are too many", most));
  const Range first = shard(0, 0);  // as long as any other
  told_ = blocks() == 1 && (first.end - first.begin) * values <= kMostTold;
}

std::optional<FlatView::Part> ReductionLayout::only_part(Range range) const {
  std::optional<Part> only;
  size_t parts = 0;
  view_.for_each_part(range.begin, range.end, [&](const Part& part) {
    if (parts++ == 0) only.emplace(part);
  });
  return parts == 1 ? only : std::nullopt;
}

}  // namespace tutti::group
