// SPDX-License-Identifier: Apache-2.0
// The same inputs give the same bits, whatever carries them; and they are the bits of the tree.
#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include "base/thread_pool.h"
#include "support/algorithms.h"
#include "support/cpus.h"
#include "support/reference.h"

namespace tutti {
namespace {

using testing::device;
using testing::same_bits;

// Large enough to be shared out among threads, and sizes that packing cuts at odd places.
const std::vector<int64_t> kSizes{100003, 1, 257, 0, 31, 5000};

PerReplica<Value> random_value(DType dtype, size_t n, int64_t size) {
  std::vector<Value> parts;
  for (size_t i = 0; i < n; ++i) {
    const Tensor t = Tensor::empty({size}, dtype, "/cpu:0");
    testing::fill_random(dtype, t.data(), size_t(size), 100 * uint64_t(size) + i,
                         /*specials=*/false);
    parts.push_back(t.clone_to(device(i)));
  }
  return PerReplica<Value>(parts);
}

Tensor on_host(const Value& value) {
  return testing::device_type() == "CPU" ? value.tensor() : value.tensor().clone_to("/cpu:0");
}

class Determinism : public ::testing::TestWithParam<DType> {
 protected:
  Determinism() { set_logical_devices(testing::device_type(), 9); }
  ~Determinism() override { base::ThreadPool::shared().resize(2); }
};

TEST_P(Determinism, GivesTheTreeWithEveryAlgorithmPackingAndThreadCount) {
  const DType dtype = GetParam();
  const size_t step = TUTTI_TEST_SANITIZED ? 4 : 1;
  std::vector<std::unique_ptr<CrossDeviceOps>> all;
  for (const testing::Algorithm& a : testing::all_algorithms()) all.push_back(a.make());
  for (size_t n = 1; n <= 9; n += step) {
    std::vector<ValueDestinationPair> pairs;
    for (const int64_t size : kSizes) {
      const PerReplica<Value> value = random_value(dtype, n, size);
      pairs.emplace_back(value, value);
    }
    for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN}) {
      std::vector<std::vector<std::byte>> want;
      for (const auto& [value, destinations] : pairs) {
        std::vector<Tensor> hosts;
        std::vector<const void*> in;
        for (const Value& v : value) hosts.push_back(v.tensor().clone_to("/cpu:0"));
        for (const Tensor& t : hosts) in.push_back(t.const_data());
        const auto count = size_t(value[0].tensor().num_elements());
        want.push_back(testing::reference(dtype, op, in, count, int64_t(n)));
      }
      const auto check = [&](CrossDeviceOps& ops, int64_t bytes_per_pack) {
        const auto out = ops.batch_reduce(op, pairs, {.bytes_per_pack = bytes_per_pack});
        for (size_t i = 0; i < out.size(); ++i)
          for (const size_t replica : {size_t(0), n - 1})
            ASSERT_TRUE(same_bits(dtype, on_host(out[i][replica]).const_data(), want[i].data(),
                                  size_t(kSizes[i])))
                << name(op) << " of " << n << " replicas, tensor " << i;
      };
      for (const int threads : {1, 2, 7}) {
        if (testing::device_type() != "CPU" && threads > 1) continue;  // the host's are idle
        base::ThreadPool::shared().resize(threads);
        for (const auto& ops : all) {
          check(*ops, 0);
          if (HasFatalFailure()) return;
        }
      }
      for (const auto& ops : all)
        for (const int64_t bytes_per_pack : {1, 1000, 1 << 20}) check(*ops, bytes_per_pack);
      // By itself, to one device, the first gives the same as in the batch.
      const Mirrored<Value> alone = all[0]->reduce(op, pairs[0].first, device(8));
      EXPECT_TRUE(
          same_bits(dtype, on_host(alone[0]).const_data(), want[0].data(), size_t(kSizes[0])));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Determinism, ::testing::ValuesIn(testing::kFloats),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

float sum_of(std::initializer_list<float> values) {
  set_logical_devices(testing::device_type(), 8);
  std::vector<Tensor> parts;
  for (const float v : values) parts.push_back(Tensor::scalar<float>(v, device(parts.size())));
  return HierarchicalCopyAllReduce()
      .reduce(ReduceOp::SUM, PerReplica<Tensor>(parts), device(0))[0]
      .item<float>();
}

// Next to 1e8 a float cannot tell 1 from 0, so the value shows which numbers met first.
TEST(Tree, SplitsAtTheLargestPowerOfTwo) {
  EXPECT_EQ(sum_of({1e8f, 1, -1e8f, 1}), 0);           // (a+b) + (c+d); a running sum gives 1
  EXPECT_EQ(sum_of({1e8f, -1e8f, 1}), 1);              // (a+b) + c
  EXPECT_EQ(sum_of({1, 1e8f, -1e8f}), 0);              // (a+b) + c, not a + (b+c)
  EXPECT_EQ(sum_of({1e8f, 0, -1e8f, 0, 1}), 1);        // ((a+b) + (c+d)) + e
  EXPECT_EQ(sum_of({1e8f, 0, 0, 0, 1, 1, -1e8f}), 0);  // (a..d) + ((e+f) + g)
}

TEST(Tree, RoundsSixteenBitFloatsOnce) {
  set_logical_devices(testing::device_type(), 3);
  // In 16 bits 2048 + 1 is 2048; in 32 bits both ones count.
  const PerReplica<Tensor> v{Tensor::scalar(float16(2048), device(0)),
                             Tensor::scalar(float16(1), device(1)),
                             Tensor::scalar(float16(1), device(2))};
  EXPECT_EQ(float(ReductionToOneDevice().reduce(ReduceOp::SUM, v, v)[2].item<float16>()), 2050);
  // And no sum on the way overflows.
  const PerReplica<Tensor> w{Tensor::scalar(float16(60000), device(0)),
                             Tensor::scalar(float16(60000), device(1)),
                             Tensor::scalar(float16(-60000), device(2))};
  EXPECT_EQ(float(ReductionToOneDevice().reduce(ReduceOp::SUM, w, w)[0].item<float16>()),
            float(float16(60000)));
}

}  // namespace
}  // namespace tutti
