// SPDX-License-Identifier: Apache-2.0
// What a reduction costs in memory: nothing new in a steady state, and never more than its inputs
// and outputs.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <tutti/tutti.h>

#include <fstream>
#include <string>

#include "../bench/resnet50.h"
#include "device/memory_pool.h"
#include "support/cpus.h"
#include "support/reference.h"

namespace tutti {
namespace {

using testing::cpu;

class Memory : public testing::LogicalCpus<2> {
 protected:
  static std::vector<ValueDestinationPair> gradients() {
    std::vector<ValueDestinationPair> pairs;
    for (const Shape& shape : bench::resnet50_shapes()) {
      const PerReplica<Value> v{Tensor::full(shape, 1, DType::float32, cpu(0)),
                                Tensor::full(shape, 2, DType::float32, cpu(1))};
      pairs.emplace_back(v, v);
    }
    return pairs;
  }

  HierarchicalCopyAllReduce ops;
};

long minor_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST_F(Memory, IsReusedFromStepToStep) {
  const std::vector<ValueDestinationPair> pairs = gradients();
  const auto step = [&] {
    const auto out = ops.batch_reduce(ReduceOp::SUM, pairs);
    ASSERT_EQ(out[160][1].tensor().span<float>()[999], 3);
  };
  for (int i = 0; i < 3; ++i) step();
  const size_t system_calls = device::MemoryPool::host().stats().system_calls;
  const long faults = minor_faults();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(device::MemoryPool::host().stats().system_calls, system_calls);
  // A fresh result would be 50,000 of them per step. A sanitizer's own allocator makes some too.
  if (!TUTTI_TEST_SANITIZED) {
    EXPECT_LE(minor_faults() - faults, 50);
  }
}

// Results that live on while the next ones are made: after the first rounds there are two sets, and
// they take turns.
TEST_F(Memory, IsReusedIfTheLastResultIsKept) {
  const std::vector<ValueDestinationPair> pairs = gradients();
  auto kept = ops.batch_reduce(ReduceOp::SUM, pairs);
  for (int i = 0; i < 3; ++i) kept = ops.batch_reduce(ReduceOp::SUM, pairs);
  const size_t system_calls = device::MemoryPool::host().stats().system_calls;
  for (int i = 0; i < 3; ++i) kept = ops.batch_reduce(ReduceOp::SUM, pairs);
  EXPECT_EQ(device::MemoryPool::host().stats().system_calls, system_calls);
}

// A line of /proc/self/status, in bytes.
size_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) << 10;
  ADD_FAILURE() << "/proc/self/status has no " << key;
  return 0;
}

bool reset_peak() { return bool(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

TEST_F(Memory, NeverExceedsInputsAndOutputs) {
  if (TUTTI_TEST_SANITIZED) GTEST_SKIP() << "a sanitizer keeps memory of its own";
  if (!reset_peak()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
  // Threads and code are there before anything is measured.
  const PerReplica<Tensor> warm{Tensor::zeros({1 << 20}, DType::float32, cpu(0)),
                                Tensor::zeros({1 << 20}, DType::float32, cpu(1))};
  ops.reduce(ReduceOp::SUM, warm, warm);
  release_cached_memory();

  const size_t before = status_bytes("VmRSS");
  const std::vector<ValueDestinationPair> pairs = gradients();
  size_t inputs = 0;
  for (const auto& [value, destinations] : pairs)
    for (const Value& v : value) inputs += v.tensor().num_bytes();
  ASSERT_GT(inputs, 190u << 20);
  ASSERT_TRUE(reset_peak());
  const auto out = ops.batch_reduce(ReduceOp::SUM, pairs);
  const size_t peak = status_bytes("VmHWM");
  EXPECT_GT(peak, before + inputs + inputs / 2);  // or nothing was measured
  EXPECT_LE(peak, before + 2 * inputs + (1 << 20));
}

}  // namespace
}  // namespace tutti
