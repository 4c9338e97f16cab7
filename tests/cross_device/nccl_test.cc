// SPDX-License-Identifier: Apache-2.0
// NCCL between the GPUs of one process, with GPUs and NCCL that are not real.
#include "cross_device/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/memory_pool.h"
#include "support/fake_nccl.h"
#include "tensor/tensor_impl.h"

namespace tutti {
namespace {

using cross_device::launch_order;
using cross_device::NcclCall;
using cross_device::Pack;
using cross_device::PackingOptions;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LaunchOrder, PutsAllDevicesOfAPieceTogetherInOnePackAfterAnother) {
  const std::vector<Pack> packs{{{0, 0, 4}, {1, 0, 2}}, {{1, 2, 3}}};
  EXPECT_THAT(launch_order(packs, 2),
              ElementsAre(ElementsAre(NcclCall{0, {0, 0, 4}}, NcclCall{1, {0, 0, 4}},
                                      NcclCall{0, {1, 0, 2}}, NcclCall{1, {1, 0, 2}}),
                          ElementsAre(NcclCall{0, {1, 2, 3}}, NcclCall{1, {1, 2, 3}})));
}

TEST(LaunchOrder, LaunchesNothingForWhatIsEmpty) {
  EXPECT_THAT(launch_order({}, 2), IsEmpty());
  const std::vector<Pack> packs{{}, {{0, 0, 0}}, {{1, 0, 1}}};
  EXPECT_THAT(launch_order(packs, 1), ElementsAre(ElementsAre(NcclCall{0, {1, 0, 1}})));
}

// As many launches as there are packs with something in them, whatever the number of tensors.
TEST(LaunchOrder, IsOneLaunchForEachOfNumPacks) {
  const std::vector<int64_t> elements{5, 1, 4};
  for (const int packs : {1, 3, 20}) {
    const auto plan = cross_device::packing_plan(elements, 4, {.num_packs = packs});
    EXPECT_EQ(launch_order(plan, 4).size(), size_t(packs == 20 ? 1 : packs));
  }
}

// A GPU whose memory is the host's.
class FakeGpu : public detail::Device {
 public:
  FakeGpu(int index, int gpu) : Device("GPU", index), gpu_(gpu) {}
  int gpu() const override { return gpu_; }
  std::shared_ptr<void> allocate(size_t bytes) override {
    device::MemoryPool& pool = device::MemoryPool::host();
    return {pool.allocate(bytes), [&pool, bytes](void* data) { pool.deallocate(data, bytes); }};
  }
  bool in_host_memory() const override { return true; }
  void copy_from_host(void*, const void*, size_t) override {}
  void copy_to_host(void*, const void*, size_t) override {}

 private:
  const int gpu_;
};

class NcclReduce : public ::testing::Test {
 protected:
  // Two GPUs for each of two GPUs.
  static detail::Device& gpu(int index) {
    static FakeGpu all[] = {{0, 0}, {1, 1}, {2, 0}, {3, 1}};
    return all[index];
  }

  template <class T>
  static Tensor on(int index, const std::vector<T>& values) {
    const Tensor tensor =
        detail::TensorAccess::empty(Shape{int64_t(values.size())}, dtype_of<T>::value, gpu(index));
    std::ranges::copy(values, static_cast<T*>(detail::TensorAccess::data(tensor)));
    return tensor;
  }
  template <class T>
  static ValueDestinationPair pair(const std::vector<T>& a, const std::vector<T>& b) {
    const PerReplica<Value> value{on(0, a), on(1, b)};
    return {value, Destinations(value)};
  }
  std::vector<Mirrored<Value>> reduce(ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
                                      const PackingOptions& packing) {
    std::vector<const ValueDestinationPair*> pointers;
    for (const ValueDestinationPair& each : pairs) pointers.push_back(&each);
    return cross_device::nccl_reduce(fake.gpus, op, pointers, packing,
                                     {.timeout = std::chrono::seconds(10)});
  }

  testing::FakeGpus& fake = testing::FakeGpus::make();
};

TEST_F(NcclReduce, IsForDenseValuesOnDistinctGpus) {
  const auto [value, destinations] = pair<float>({1}, {2});
  EXPECT_EQ(cross_device::distinct_gpus(ReduceOp::SUM, value, destinations), 2u);
  EXPECT_EQ(cross_device::distinct_gpus(ReduceOp::MIN, value, destinations), 0u);
  const PerReplica<Value> one_gpu{on<float>(0, {1}), on<float>(2, {2})};
  EXPECT_EQ(cross_device::distinct_gpus(ReduceOp::SUM, one_gpu, Destinations(one_gpu)), 0u);
  EXPECT_EQ(cross_device::distinct_gpus(ReduceOp::SUM, value, Destinations(value[0].tensor())), 0u);
  const PerReplica<Value> host{Value(Tensor::of<float>({1})), Value(on<float>(1, {2}))};
  EXPECT_EQ(cross_device::distinct_gpus(ReduceOp::SUM, host, Destinations(host)), 0u);
}

TEST_F(NcclReduce, LaunchesEachPackOnceAndDividesMeans) {
  const std::vector<ValueDestinationPair> pairs{pair<float>({1, 2, 3}, {4, 5, 6}),
                                                pair<float>({7}, {8})};
  const auto sums = reduce(ReduceOp::SUM, pairs, {.num_packs = 2});
  EXPECT_EQ(testing::FakeNccl::instance().launched, 2);
  EXPECT_THAT(testing::FakeNccl::instance().order,
              ElementsAre("0:2", "1:2", "0:1", "1:1", "0:1", "1:1"));
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_THAT(sums[0][d].tensor().to_vector<float>(), ElementsAre(5, 7, 9));
    EXPECT_THAT(sums[1][d].tensor().to_vector<float>(), ElementsAre(15));
  }
  const auto means = reduce(ReduceOp::MEAN, pairs, {.num_packs = 1});
  EXPECT_THAT(means[0][1].tensor().to_vector<float>(), ElementsAre(2.5, 3.5, 4.5));
  // The communicators of the first call serve the second.
  EXPECT_EQ(testing::FakeNccl::instance().opened, 2);
}

TEST_F(NcclReduce, AddsHalvesInFloat32) {
  const auto half = [](float x) { return float16(x); };
  const std::vector<ValueDestinationPair> pairs{
      pair<float16>({half(65504), half(1)}, {half(65504), half(2)})};
  const auto result = reduce(ReduceOp::MEAN, pairs, {})[0][1].tensor().to_vector<float16>();
  EXPECT_EQ(float(result[0]), 65504);  // whose sum has no float16
  EXPECT_EQ(float(result[1]), 1.5f);
}

}  // namespace
}  // namespace tutti
