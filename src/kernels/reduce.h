// SPDX-License-Identifier: Apache-2.0
// The fused n-way reduction: every input read once, every output written once, whatever their
// number.
#pragma once

#include <tutti/dtype.h>
#include <tutti/reduce_op.h>

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/reduce_op.h"
#include "base/thread_pool.h"
#include "base/tree_split.h"

namespace tutti::kernels {

// One tensor of a batch: each output becomes the combination of all inputs, element by element.
// Outputs hold result_dtype(op, dtype) and do not overlap each other; one of them may be one of the
// inputs, if the types are the same, and overlaps none otherwise.
struct Reduction {
  std::span<const void* const> inputs;  // in replica order, at least one
  std::span<void* const> outputs;
  int64_t count;  // elements
  DType dtype;    // of the inputs
  ReduceOp op;
  int64_t divisor = 1;  // what MEAN divides the sum by
};

// The mean of integers T: an exact sum in ExactSum<T>, divided once, as a MeanOf<T>.
template <class T>
using ExactSum = std::conditional_t<sizeof(T) == 8, __int128, int64_t>;
template <class T>
using MeanOf =
    std::conditional_t<detail::facts_of(dtype_of<T>::value).mean == DType::float32, float, double>;

// Runs the whole batch as one piece of work. The result is the tree of base/tree_split.h over the
// inputs; 16-bit floats are widened, combined, and rounded once. MEAN is the tree of SUM, divided.
// Every bit depends on the inputs alone: not on threads, batches, alignment or the machine's vector
// length. Outputs of more than half of `cache` bytes bypass the cache; 0: the part of the machine's
// largest cache that this process can count on.
void reduce(std::span<const Reduction> batch, base::ThreadPool* pool = nullptr, size_t cache = 0);

// One reduction on the calling thread. With `stream`, the outputs bypass the cache.
void reduce_here(const Reduction& reduction, bool stream);

// Copies bytes, by the same machinery.
void copy(void* to, const void* from, size_t bytes);

}  // namespace tutti::kernels
