// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include <thread>

namespace tutti {
namespace {

using F = std::vector<float>;

// Large tensors share the pool's threads, small ones only the memory.
TEST(CrossDeviceOps, ServesSeveralThreadsAtOnce) {
  set_logical_devices("CPU", 3);
  std::vector<std::unique_ptr<CrossDeviceOps>> all;
  all.push_back(std::make_unique<ReductionToOneDevice>());
  all.push_back(std::make_unique<HierarchicalCopyAllReduce>(2));
  all.push_back(std::make_unique<NcclAllReduce>());  // all threads meet its one log message
  // Read by every thread.
  const PerReplica<Tensor> shared{Tensor::full({40000}, 1, DType::float32, "/cpu:0"),
                                  Tensor::full({40000}, 2, DType::float32, "/cpu:1"),
                                  Tensor::full({40000}, 3, DType::float32, "/cpu:2")};
  const auto work = [&](float id) {
    for (int round = 0; round < 20; ++round)
      for (const auto& ops : all) {
        const PerReplica<Tensor> own{Tensor::full({16}, id, DType::float32, "/cpu:0"),
                                     Tensor::full({16}, round, DType::float32, "/cpu:1")};
        const auto out = ops->batch_reduce(ReduceOp::SUM, {{shared, shared}, {own, "/cpu:2"}});
        EXPECT_EQ(out[0][2].tensor().to_vector<float>(), F(40000, 6));
        EXPECT_EQ(out[1][0].tensor().to_vector<float>(), F(16, id + float(round)));
        EXPECT_EQ(ops->broadcast(own[0], shared)[2].to_vector<float>(), F(16, id));
        EXPECT_EQ(ops->gather(own, "/cpu:1", 0)[0].num_elements(), 32);
      }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, float(100 * i));
  for (std::thread& t : threads) t.join();
}

// Each thread makes, reduces and drops its own tensors: the memory pool hands blocks from one to
// the other.
TEST(CrossDeviceOps, PassesMemoryBetweenThreads) {
  set_logical_devices("CPU", 2);
  HierarchicalCopyAllReduce ops;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&ops, i] {
      for (int round = 0; round < 50; ++round) {
        const int64_t count = 1000 * (1 + (round + i) % 40);
        const double value = i * 1000 + round;
        const PerReplica<Tensor> v{Tensor::full({count}, value, DType::float64, "/cpu:0"),
                                   Tensor::full({count}, 1, DType::float64, "/cpu:1")};
        const Tensor sum = ops.reduce(ReduceOp::SUM, v, v)[1];
        ASSERT_EQ(sum.to_vector<double>(), std::vector<double>(size_t(count), value + 1));
      }
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace tutti
