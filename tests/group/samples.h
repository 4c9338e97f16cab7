// SPDX-License-Identifier: Apache-2.0
// Data for ranks, and what becomes of it.
#pragma once

#include <gtest/gtest.h>
#include <tutti/tensor.h>

#include <cstring>
#include <set>
#include <span>
#include <vector>

#include "kernels/reduce.h"
#include "support/reference.h"

namespace tutti::testing {

inline size_t bytes_of(int64_t count, DType dtype) { return size_t(count) * size_of(dtype); }

// Elements with a guard on either side, aligned for their type and no further.
class Buffer {
 public:
  Buffer(int64_t count, DType dtype)
      : count_(count),
        dtype_(dtype),
        memory_(kGuard + bytes_of(count, dtype) + kGuard, kGuardByte) {}
  Buffer(int64_t count, DType dtype, const std::vector<std::byte>& contents)
      : Buffer(count, dtype) {
    if (!contents.empty()) std::memcpy(data(), contents.data(), contents.size());
  }

  void* data() { return memory_.data() + kGuard; }
  const void* data() const { return memory_.data() + kGuard; }
  int64_t count() const { return count_; }
  DType dtype() const { return dtype_; }
  Tensor tensor() { return Tensor::borrow(data(), {count_}, dtype_); }
  template <class T>
  std::span<T> span() {
    return {static_cast<T*>(data()), size_t(count_)};
  }

  // Holds these elements, with NaN equal to NaN, and nothing was written beside them.
  ::testing::AssertionResult is(const std::vector<std::byte>& expected) const {
    for (size_t i = 0; i < kGuard; ++i)
      if (memory_[i] != kGuardByte || memory_[memory_.size() - 1 - i] != kGuardByte)
        return ::testing::AssertionFailure() << "wrote beside the buffer, " << i << " bytes away";
    return same_bits(dtype_, data(), expected.data(), size_t(count_));
  }

 private:
  // A multiple of no alignment but that of the largest element.
  static constexpr size_t kGuard = 72;
  static constexpr std::byte kGuardByte{0xA5};
  int64_t count_;
  DType dtype_;
  std::vector<std::byte> memory_;
};

inline std::vector<std::byte> random_bytes(DType dtype, int64_t count, uint64_t seed) {
  std::vector<std::byte> bytes(bytes_of(count, dtype));
  fill_random(dtype, bytes.data(), size_t(count), seed);
  return bytes;
}

// One reduction: what every leaf holds, and what it must give.
struct Sample {
  Sample(DType dtype_, ReduceOp op_, int64_t count_, int leaves)
      : dtype(dtype_), op(op_), count(count_), result(result_dtype(op_, dtype_)) {
    std::vector<const void*> data;
    for (int r = 0; r < leaves; ++r) {
      inputs.push_back(random_bytes(dtype, count, uint64_t(count) * 100 + uint64_t(r)));
      data.push_back(inputs.back().data());
    }
    expected.resize(bytes_of(count, result));
    void* const out = expected.data();
    const kernels::Reduction reduction{.inputs = data,
                                       .outputs = {&out, 1},
                                       .count = count,
                                       .dtype = dtype,
                                       .op = op,
                                       .divisor = leaves};
    if (count) kernels::reduce({&reduction, 1});
  }
  bool in_place() const { return result == dtype; }

  DType dtype;
  ReduceOp op;
  int64_t count;
  DType result;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::byte> expected;
};

// Numbers of elements at which another algorithm may begin.
inline std::set<int64_t> few_counts(int n) { return {0, 1, n - 1, n, n + 1, 1000}; }
inline std::set<int64_t> threshold_counts(DType dtype, int n) {
  std::set<int64_t> counts;
  for (const size_t bytes :
       {size_t(48), size_t(8) << 10, size_t(32) << 10, size_t(64) << 10, size_t(256) << 10,
        size_t(512) << 10, (size_t(512) << 10) / size_t(n) / 64 * 64})
    for (const int64_t more : {-1, 0, 1}) counts.insert(int64_t(bytes / size_of(dtype)) + more);
  counts.insert(int64_t((size_t(1600) << 10) / size_of(dtype)) + 3);
  return counts;
}

// What a rank has for the collectives that only move data: every byte says whose and which it is.
inline std::vector<std::byte> pattern(int rank, size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (size_t i = 0; i < bytes; ++i)
    all[i] = std::byte(size_t(rank + 1) * 37 + i * 11 + (i >> 8) * 5 + (i >> 16) * 3);
  return all;
}

}  // namespace tutti::testing
