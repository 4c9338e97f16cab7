// SPDX-License-Identifier: Apache-2.0
// The sums of a reduction between hosts.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "group/net/reduction_layout.h"
#include "group/shm/window.h"

namespace tutti::group {

// How the ranks of a host show their leaves in the window.
struct Shown {
  size_t base;    // the first byte of the view that is shown
  size_t stride;  // from one leaf of a rank to the next
  size_t bytes;   // the most that a rank shows
};

// The sums of a reduction: those of this host from its leaves, and the results from the values of
// all hosts.
class Sums {
 public:
  using Layout = ReductionLayout;
  using Range = Layout::Range;
  using Part = FlatView::Part;

  Sums(const Layout& layout, const GroupTopology& topology, const Window* window)
      : layout_(layout), topology_(topology), window_(window), host_(size_t(topology.my_host())) {}

  // Writes this host's values for `mine` into a message that holds those for `range`. Returns the
  // size of the message.
  size_t make_values(Range range, Range mine, std::byte* to, const Shown& shown) {
    return layout_.for_each_value(host_, range, [&](size_t index, const Part& part, size_t at) {
      const size_t begin = std::max(part.at, mine.begin);
      const size_t end = std::min(part.at + part.bytes, mine.end);
      if (begin >= end) return;
      const Subtree& subtree = layout_.subtrees().by_host[host_][index];
      const DType dtype = part.piece.dtype;
      inputs_.clear();
      for (size_t leaf = subtree.first; leaf < subtree.first + subtree.leaves; ++leaf)
        inputs_.push_back(leaf_at(leaf, part, shown, begin));
      sum_of(dtype).partial(
          inputs_,
          to + at + (begin - part.at) / size_of(dtype) * value_size(subtree, layout_.op(), dtype),
          int64_t((end - begin) / size_of(dtype)));
    });
  }

  // This rank's data in place, if it is the only value of the range; else null.
  const std::byte* ready_value(Range range) const {
    const std::vector<Subtree>& subtrees = layout_.subtrees().by_host[host_];
    if (window_ || subtrees.size() != 1 || subtrees[0].leaves != 1) return nullptr;
    const auto part = layout_.only_part(range);
    return part ? leaf_at(subtrees[0].first, *part, {}, part->at) : nullptr;
  }

  // `from`: the messages of all hosts.
  void combine(Range range, const std::vector<const std::byte*>& from, std::byte* result) {
    Known known;
    for (size_t h = 0; h < layout_.hosts(); ++h)
      add(known, layout_.subtrees().by_host[h], range, from[h]);
    finish(known, range, result);
  }

  // The values that are known: for each subtree, a pointer to each part of a range.
  struct Known {
    std::vector<Subtree> subtrees = {};  // in the order of their leaves
    std::vector<const std::byte*> at = {};

    void clear() {
      subtrees.clear();
      at.clear();
    }
    size_t parts() const { return at.size() / subtrees.size(); }
  };
  // Adds the values in a message of `subtrees`. None of these may be known before.
  void add(Known& known, std::span<const Subtree> subtrees, Range range,
           const std::byte* message) const {
    size_t parts = 0, next = 0;
    layout_.view().for_each_part(range.begin, range.end, [&](const Part&) { ++parts; });
    if (!parts) return;
    layout_.for_each_value(subtrees, range, [&](size_t index, const Part&, size_t at) {
      if (const Subtree& subtree = subtrees[index]; next % parts == 0) {
        const auto place =
            std::ranges::lower_bound(known.subtrees, subtree.first, {}, &Subtree::first);
        next = size_t(place - known.subtrees.begin()) * parts;
        known.subtrees.insert(place, subtree);
        known.at.insert(known.at.begin() + ptrdiff_t(next), parts, nullptr);
      }
      known.at[next++] = message + at;
    });
  }
  // Writes a message with the values of `wanted`, combining known values if needed.
  void merge(const Known& known, std::span<const Subtree> wanted, Range range, std::byte* to) {
    size_t number = 0, before = 0;
    layout_.for_each_value(wanted, range, [&](size_t index, const Part& part, size_t at) {
      if (std::exchange(before, index) != index) number = 0;
      take_inputs(known, number++);
      sum_of(part.piece.dtype).merge(known.subtrees, inputs_, wanted[index], to + at, part.count());
    });
  }
  // The results, if all leaves are known.
  void finish(const Known& known, Range range, std::byte* result) {
    size_t number = 0;
    layout_.for_each_result(range, [&](const Part& part, size_t at) {
      take_inputs(known, number++);
      void* const output = result + at;
      sum_of(part.piece.dtype).finish(known.subtrees, inputs_, {&output, 1}, part.count());
    });
  }

 private:
  void take_inputs(const Known& known, size_t part) {
    inputs_.clear();
    for (size_t at = part; at < known.at.size(); at += known.parts())
      inputs_.push_back(known.at[at]);
  }
  // A leaf's data from byte `at` of the view on: this rank's own, or what a rank of this host shows
  // in the window.
  const std::byte* leaf_at(size_t leaf, const Part& part, const Shown& shown, size_t at) const {
    const FlatView& view = layout_.view();
    if (!window_)
      return bytes_of(part.piece.inputs[view.index_in_rank(leaf)]) + part.first + (at - part.at);
    const int local = int(topology_.local_index(view.owner(leaf)));
    return window_->shown(local, shown.bytes) + view.index_in_rank(leaf) * shown.stride +
           (at - shown.base);
  }
  TreeSum& sum_of(DType dtype) {
    const auto found = sums_.find(dtype);
    return found != sums_.end()
               ? found->second
               : sums_.try_emplace(dtype, layout_.op(), dtype, layout_.view().leaves())
                     .first->second;
  }

  const Layout& layout_;
  const GroupTopology& topology_;
  const Window* const window_;
  const size_t host_;
  std::map<DType, TreeSum> sums_;
  std::vector<const void*> inputs_;
};

}  // namespace tutti::group
