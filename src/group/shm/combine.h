// SPDX-License-Identifier: Apache-2.0
// Sums what the ranks have shown of one tensor.
#pragma once

#include <array>
#include <bit>
#include <vector>

#include "group/shm/collectives.h"
#include "kernels/reduce.h"

namespace tutti::group {

template <class Leaf>
void SharedMemoryCollectives::combine(const GroupCall& call, size_t at, size_t bytes,
                                      const Leaf& leaf) {
  const int n = window_.size();
  const int shift = std::countr_zero(size_of(call.in.dtype));  // a division takes longer
  std::array<const void*, 16> few;
  std::vector<const void*> many(size_t(n) > few.size() ? size_t(n) : 0);
  const void** const inputs = many.empty() ? few.data() : many.data();
  for (int r = 0; r < n; ++r) inputs[r] = leaf(r);
  // Results may be wider than what they are made of.
  void* const output = bytes_of(call.out.data) + (at >> shift) * size_of(call.out.dtype);
  reduce_here({.inputs = {inputs, size_t(n)},
               .outputs = {&output, 1},
               .count = int64_t(bytes >> shift),
               .dtype = call.in.dtype,
               .op = call.op,
               .divisor = n},
              false);
}

}  // namespace tutti::group
