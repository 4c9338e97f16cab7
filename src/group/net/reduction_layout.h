// SPDX-License-Identifier: Apache-2.0
// How a reduction between hosts is cut: into blocks, a block into a shard for each host, and what a
// message holds of a shard.
#pragma once

#include <optional>
#include <vector>

#include "group/net/topology.h"
#include "group/plan/doubling.h"
#include "group/plan/flat_view.h"
#include "group/plan/tree.h"
#include "group/plan/way.h"

namespace tutti::group {

// The most that hosts of one rank halve in rounds.
constexpr size_t kMostHalved = 8 << 20;

constexpr size_t padded(size_t bytes) { return (bytes + 7) / 8 * 8; }

// What hosts send each other in a reduction. It is kept for the next one, since most are alike.
struct ReductionPlan {
  void update(std::span<const int> owners, const GroupTopology& topology, bool single);

  std::shared_ptr<const HostSubtrees> subtrees;
  Doubling doubling;  // of this host; only if subtrees->leaves_per_host is not 0
};

// The most bytes of a block's values, or of its results, that hosts with several ranks stage.
size_t staging_slot(size_t hosts);

// The same on all ranks.
class ReductionLayout {
 public:
  using Part = FlatView::Part;
  struct Range {
    size_t begin, end;
    bool empty() const { return begin == end; }
  };

  ReductionLayout(const LeafReduction& reduction, const GroupTopology& topology,
                  ReductionPlan& plan, const Costs& costs);

  ReduceOp op() const { return op_; }
  const FlatView& view() const { return view_; }
  const HostSubtrees& subtrees() const { return *plan_.subtrees; }
  const Doubling& doubling() const { return plan_.doubling; }
  size_t hosts() const { return hosts_; }

  Way way() const { return way_; }
  bool goes_in_rounds() const { return way_ == Way::doubling || way_ == Way::halving; }
  // Whether every host sums all of a block, and whether all of it travels with the handshake.
  bool is_whole() const { return way_ == Way::whole; }
  bool is_small() const { return small_; }
  // Whether there is one block, and its values travel with the handshake.
  bool is_told() const { return told_; }
  // The most bytes that the values of a block, or its results, take.
  size_t slot() const { return slot_; }
  size_t blocks() const { return (view_.bytes() + block_ - 1) / block_; }
  Range block(size_t i) const { return {i * block_, std::min(view_.bytes(), (i + 1) * block_)}; }
  // The ranks of a host show each other a block in pieces.
  size_t piece_bytes() const { return piece_; }
  size_t pieces(size_t i) const { return (block(i).end - block(i).begin + piece_ - 1) / piece_; }
  Range piece(size_t i, size_t p) const {
    const size_t begin = i * block_ + p * piece_;
    return {begin, std::min(block(i).end, begin + piece_)};
  }
  size_t shards() const { return is_whole() ? 1 : hosts_; }
  Range shard(size_t i, size_t host) const {
    return is_whole() ? block(i) : share(block(i), host, hosts_);
  }
  // The part of `range` that is worker `i`'s of `n`.
  static Range share(Range range, size_t i, size_t n) {
    const size_t each = rounded_up((range.end - range.begin + n - 1) / n);
    return {std::min(range.end, range.begin + i * each),
            std::min(range.end, range.begin + (i + 1) * each)};
  }

  // A message of values holds the subtrees of a host one after the other, each with all parts of a
  // range. Calls f(index of the subtree, part, where it begins). Returns where the last one ends.
  template <class F>
  size_t for_each_value(size_t host, Range range, const F& f) const {
    return for_each_value(subtrees().by_host[host], range, f);
  }
  template <class F>
  size_t for_each_value(std::span<const Subtree> subtrees, Range range, const F& f) const {
    size_t end = 0;
    for (size_t i = 0; i < subtrees.size(); ++i)
      view_.for_each_part(range.begin, range.end, [&](const Part& part) {
        const size_t at = padded(end);
        f(i, part, at);
        end = at + size_t(part.count()) * value_size(subtrees[i], op_, part.piece.dtype);
      });
    return end;
  }
  size_t value_bytes(size_t host, Range range) const {
    return value_bytes(subtrees().by_host[host], range);
  }
  size_t value_bytes(std::span<const Subtree> subtrees, Range range) const {
    return for_each_value(subtrees, range, [](size_t, const Part&, size_t) {});
  }
  // The same for a message of results: f(part, where it begins).
  template <class F>
  size_t for_each_result(Range range, const F& f) const {
    size_t end = 0;
    view_.for_each_part(range.begin, range.end, [&](const Part& part) {
      const size_t at = padded(end);
      f(part, at);
      end = at + part.result_bytes(op_);
    });
    return end;
  }
  size_t result_bytes(Range range) const {
    return for_each_result(range, [](const Part&, size_t) {});
  }
  // Empty if a range holds parts of several tensors, or none.
  std::optional<Part> only_part(Range range) const;

 private:
  const ReduceOp op_;
  const FlatView view_;
  const size_t hosts_;
  const ReductionPlan& plan_;
  Way way_;
  bool small_, told_;
  size_t slot_, block_, piece_;
};

}  // namespace tutti::group
