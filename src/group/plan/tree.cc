// SPDX-License-Identifier: Apache-2.0
#include "group/plan/tree.h"

#include <algorithm>
#include <cstring>

#include "base/half.h"
#include "base/world.h"
#include "kernels/cast.h"
#include "kernels/reduce.h"

namespace tutti::group {

namespace {

constexpr int64_t kTile = 4096;  // elements; a few tiles stay in the nearest cache

const std::byte* advanced(const void* data, int64_t elements, size_t each) {
  return static_cast<const std::byte*>(data) + elements * int64_t(each);
}
std::byte* advanced(void* data, int64_t elements, size_t each) {
  return static_cast<std::byte*>(data) + elements * int64_t(each);
}

}  // namespace

bool has_partials(ReduceOp op, DType dtype) {
  return !base::divides(op) || is_floating(dtype) || size_of(dtype) < sizeof(int64_t);
}

DType partial_dtype(ReduceOp op, DType dtype) {
  return base::divides(op) && is_integer(dtype) ? DType::int64 : base::accumulator_of(dtype);
}

TreeSum::TreeSum(ReduceOp op, DType dtype, size_t leaves)
    : op_(op),
      dtype_(dtype),
      partial_(partial_dtype(op, dtype)),
      result_(result_dtype(op, dtype)),
      leaves_(leaves) {}

std::byte* TreeSum::scratch(size_t which) {
  if (scratch_.size() <= which) scratch_.resize(which + 1);
  if (!scratch_[which])
    scratch_[which] = std::make_unique_for_overwrite<std::byte[]>(size_t(kTile) * 8);
  return scratch_[which].get();
}

// A tile of all values, and where it begins.
struct TreeSum::Tile {
  std::span<const Subtree> subtrees;
  std::span<const void* const> values;
  int64_t at, count;
};

// The value of [first, first + leaves) in partial_dtype: a given value in place, or one combined in
// `to`; if that is null, in scratch tile `free`. The tiles from `free` on are not in use.
const void* TreeSum::value_of(const Tile& tile, size_t first, size_t leaves, size_t free,
                              void* to) {
  const auto it = std::ranges::lower_bound(tile.subtrees, first, {}, &Subtree::first);
  const bool given = it->leaves == leaves;
  const std::byte* const data = given ? advanced(tile.values[size_t(it - tile.subtrees.begin())],
                                                 tile.at, size_of(leaves == 1 ? dtype_ : partial_))
                                      : nullptr;
  if (given && (leaves > 1 || dtype_ == partial_)) return data;
  if (!to) to = scratch(free++);
  if (given) {
    kernels::cast(data, dtype_, to, partial_, tile.count);
    return to;
  }
  const size_t p = base::left_part(leaves);
  const void* const both[] = {value_of(tile, first, p, free),
                              value_of(tile, first + p, leaves - p, free + 1)};
  kernels::reduce_here({.inputs = both,
                        .outputs = {&to, 1},
                        .count = tile.count,
                        .dtype = partial_,
                        .op = base::partial_op(op_)},
                       false);
  return to;
}

void TreeSum::partial(std::span<const void* const> leaves, void* out, int64_t count) {
  if (base::is_length_only((leaves.size() + 1) * size_t(count) * size_of(dtype_))) return;
  if (leaves.size() == 1) {
    if (out != leaves[0]) std::memcpy(out, leaves[0], size_t(count) * size_of(dtype_));
    return;
  }
  if (dtype_ == partial_)
    return kernels::reduce_here({.inputs = leaves,
                                 .outputs = {&out, 1},
                                 .count = count,
                                 .dtype = dtype_,
                                 .op = base::partial_op(op_)},
                                false);
  std::vector<Subtree> single;
  for (size_t i = 0; i < leaves.size(); ++i) single.push_back({i, 1});
  for (int64_t at = 0; at < count; at += kTile) {
    const Tile tile{single, leaves, at, std::min(kTile, count - at)};
    value_of(tile, 0, leaves.size(), 0, advanced(out, at, size_of(partial_)));
  }
}

void TreeSum::merge(std::span<const Subtree> subtrees, std::span<const void* const> values,
                    const Subtree& wanted, void* out, int64_t count) {
  const auto first = std::ranges::lower_bound(subtrees, wanted.first, {}, &Subtree::first);
  const auto last =
      std::ranges::lower_bound(subtrees, wanted.first + wanted.leaves, {}, &Subtree::first);
  if (base::is_length_only(size_t(last - first + 1) * size_t(count) * size_of(partial_))) return;
  if (last - first == 1) {
    std::memcpy(out, values[size_t(first - subtrees.begin())],
                size_t(count) * value_size(wanted, op_, dtype_));
    return;
  }
  for (int64_t at = 0; at < count; at += kTile) {
    const Tile tile{subtrees, values, at, std::min(kTile, count - at)};
    value_of(tile, wanted.first, wanted.leaves, 0, advanced(out, at, size_of(partial_)));
  }
}

void TreeSum::finish(std::span<const Subtree> subtrees, std::span<const void* const> values,
                     std::span<void* const> outputs, int64_t count) {
  if (base::is_length_only((values.size() + outputs.size()) * size_t(count) * size_of(partial_)))
    return;
  if (subtrees.size() == leaves_)  // all of them leaves
    return kernels::reduce_here({.inputs = values,
                                 .outputs = outputs,
                                 .count = count,
                                 .dtype = dtype_,
                                 .op = op_,
                                 .divisor = int64_t(leaves_)},
                                false);
  const DType reduced = result_dtype(op_, partial_);
  const size_t each = size_of(result_);
  for (int64_t at = 0; at < count; at += kTile) {
    const Tile tile{subtrees, values, at, std::min(kTile, count - at)};
    void* const unrounded = reduced == result_ ? nullptr : scratch(0);
    // At the top the two halves, or the one value that there is.
    inputs_.clear();
    if (subtrees.size() == 1) {
      inputs_.push_back(value_of(tile, 0, leaves_, 1));
    } else {
      const size_t p = base::left_part(leaves_);
      inputs_.push_back(value_of(tile, 0, p, 1));
      inputs_.push_back(value_of(tile, p, leaves_ - p, 2));
    }
    outputs_.clear();
    for (void* output : outputs) outputs_.push_back(advanced(output, at, each));
    kernels::reduce_here({.inputs = inputs_,
                          .outputs = unrounded ? std::span<void* const>(&unrounded, 1)
                                               : std::span<void* const>(outputs_),
                          .count = tile.count,
                          .dtype = partial_,
                          .op = op_,
                          .divisor = int64_t(leaves_)},
                         false);
    if (!unrounded) continue;
    kernels::cast(unrounded, reduced, outputs_[0], result_, tile.count);
    for (void* output : std::span(outputs_).subspan(1))
      std::memcpy(output, outputs_[0], size_t(tile.count) * each);
  }
}

}  // namespace tutti::group
