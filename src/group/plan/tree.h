// SPDX-License-Identifier: Apache-2.0
// The tree of a reduction (base/tree_split.h), cut between hosts.
//
// A host that has all leaves of a subtree can send that subtree's value in their stead; so the
// result has the same bits wherever the leaves are.
#pragma once

#include <tutti/dtype.h>
#include <tutti/reduce_op.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/tree_split.h"

namespace tutti::group {

// The leaves [first, first + leaves) of a reduction, which are a subtree. A single leaf has the
// elements' own type; the value of several has that of `partial_dtype`.
struct Subtree {
  size_t first;
  size_t leaves;

  friend bool operator==(const Subtree&, const Subtree&) = default;
};

// The largest subtrees of the tree over `leaves` leaves that hold only leaves of one host, in their
// order; host_of(leaf) >= 0. With `single`, each leaf is one of its own.
template <class HostOf>
std::vector<Subtree> largest_subtrees(size_t leaves, const HostOf& host_of, bool single = false);

// Whether there is a type that holds partial sums exactly. There is none for the mean of 64-bit
// integers.
bool has_partials(ReduceOp op, DType dtype);
DType partial_dtype(ReduceOp op, DType dtype);
// Bytes that the value of a subtree takes for each element.
inline size_t value_size(const Subtree& subtree, ReduceOp op, DType dtype) {
  return size_of(subtree.leaves == 1 ? dtype : partial_dtype(op, dtype));
}

// Combines elements tile by tile, with memory of its own for what is in between. For one thread.
class TreeSum {
 public:
  TreeSum(ReduceOp op, DType dtype, size_t leaves);

  // The value of a subtree from its leaves, in partial_dtype; for a single leaf, a copy of it.
  void partial(std::span<const void* const> leaves, void* out, int64_t count);

  // The value of a subtree from those of smaller ones, or its own among `subtrees`.
  void merge(std::span<const Subtree> subtrees, std::span<const void* const> values,
             const Subtree& wanted, void* out, int64_t count);

  // All outputs from the values of all subtrees, which together hold every leaf, in their order.
  void finish(std::span<const Subtree> subtrees, std::span<const void* const> values,
              std::span<void* const> outputs, int64_t count);

 private:
  struct Tile;
  const void* value_of(const Tile& tile, size_t first, size_t leaves, size_t free,
                       void* to = nullptr);
  std::byte* scratch(size_t which);

  const ReduceOp op_;
  const DType dtype_, partial_, result_;
  const size_t leaves_;
  std::vector<std::unique_ptr<std::byte[]>> scratch_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
};

// Implementation.

template <class HostOf>
std::vector<Subtree> largest_subtrees(size_t leaves, const HostOf& host_of, bool single) {
  std::vector<Subtree> found;
  // The host of all of [first, first + n). -1: there are several, and their subtrees are added.
  const auto visit = [&](const auto& self, size_t first, size_t n) -> int {
    if (n == 1) return host_of(first);
    const size_t p = base::left_part(n);
    const int left = self(self, first, p);
    const size_t between = found.size();
    const int right = self(self, first + p, n - p);
    if (left >= 0 && left == right && !single) return left;
    if (left >= 0) found.insert(found.begin() + ptrdiff_t(between), {first, p});
    if (right >= 0) found.push_back({first + p, n - p});
    return -1;
  };
  if (visit(visit, 0, leaves) >= 0) found.push_back({0, leaves});
  return found;
}

}  // namespace tutti::group
