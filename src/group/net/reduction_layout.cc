// SPDX-License-Identifier: Apache-2.0
#include "group/net/reduction_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "group/net/greeting.h"
#include "group/shm/block.h"

namespace tutti::group {

namespace {

// The most that a block may take, in bytes.
constexpr size_t kMostStaged = 4 << 20;
// The least that a shard has, however many hosts there are: the cost of a smaller message is mostly
// latency.
constexpr size_t kLeastOfMany = 32 << 10;
// The most that is staged between hosts with several ranks, though shards then become smaller.
constexpr size_t kMostShared = 16 << 20;

}  // namespace

void ReductionPlan::update(std::span<const int> owners, const GroupTopology& topology,
                           bool single) {
  const auto now = topology.shared->subtrees_of(owners, single);
  if (std::exchange(subtrees, now) == now) return;
  if (const size_t leaves = now->leaves_per_host)
    doubling = doubling_of(topology.my_host(), int(topology.hosts.size()), leaves);
}

size_t staging_slot(size_t hosts) { return std::clamp(hosts * kLeastOfMany, kArea, kMostShared); }

ReductionLayout::ReductionLayout(const LeafReduction& reduction, const GroupTopology& topology,
                                 ReductionPlan& plan, const Costs& costs)
    : op_(reduction.op),
      view_(reduction, topology.rank, int(topology.host_of.size())),
      hosts_(topology.hosts.size()),
      plan_(plan) {
  bool single = false;
  size_t wide = 1;
  for (const Piece& piece : reduction.pieces) {
    single |= !has_partials(op_, piece.dtype);
    wide = std::max(wide, size_of(partial_dtype(op_, piece.dtype)) / size_of(piece.dtype));
  }
  plan.update(reduction.owners, topology, single);
  const size_t values = subtrees().most_values(wide);
  const bool shared = topology.host_of.size() > hosts_;
  const size_t most = std::max({values, view_.most_leaves(), view_.widest()});
  way_ = choose_way({.hosts = hosts_,
                     .leaves_per_host = subtrees().leaves_per_host,
                     .bytes = view_.bytes(),
                     .direct_values = values,
                     .wide = wide,
                     .most = most,
                     .most_told = kMostTold,
                     .most_halved = shared ? kArea : kMostHalved,
                     .sums_apart = !single},
                    costs);
  small_ = is_whole() && view_.bytes() * std::max(values, view_.most_leaves()) <= kSmall;
  slot_ = shared ? staging_slot(hosts_)
                 : std::min(hosts_ * kArea, std::max(kMostStaged, hosts_ * kLeastOfMany));
  const size_t shown = shared ? view_.most_leaves() : 1;
  const size_t staged = std::max(values, view_.widest());
  const auto aligned = [](size_t bytes) { return std::max(bytes / kAlign, size_t{1}) * kAlign; };
  block_ = aligned(choose_block({.hosts = hosts_, .bytes = view_.bytes(), .room = slot_ / staged}));
  piece_ = shared ? std::min(block_, aligned(kArea / shown)) : block_;
  if (block_ * staged > slot_ || (shared && piece_ * shown > kArea))
    throw UnimplementedError(fmt::format(
        "all_reduce: {} values of each element on one host are too many", std::max(staged, shown)));
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
