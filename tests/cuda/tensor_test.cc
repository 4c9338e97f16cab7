// SPDX-License-Identifier: Apache-2.0
// Tensors in the memory of a GPU.
#include <tutti/error.h>

#include <cmath>
#include <limits>

#include "cuda/gpus.h"
#include "support/expect.h"
#include "support/fake_cuda.h"

namespace tutti {
namespace {

using testing::gpu;
using testing::random_tensor;
using testing::same;

struct GpuTensor : testing::LogicalGpus<3> {};

TEST_F(GpuTensor, HoldsWhatItWasMadeFrom) {
  const Tensor t = Tensor::of<float>({1, 2, 3}, "/gpu:1");
  EXPECT_EQ(t.device(), gpu(1));
  EXPECT_EQ(t.to_vector<float>(), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(Tensor::scalar<int64_t>(-7, gpu(0)).item<int64_t>(), -7);
  EXPECT_EQ(Tensor::scalar<bool>(true, gpu(2)).item<bool>(), true);
  EXPECT_EQ(uintptr_t(t.const_data()) % 64, 0u);
}

TEST_F(GpuTensor, IsFilledLikeTheHosts) {
  for (const DType dtype : testing::kDTypes)
    for (const int64_t size : {0, 1, 3, 1000, 70001}) {
      EXPECT_TRUE(
          same(Tensor::full({size}, 1, dtype, gpu(0)), Tensor::full({size}, 1, dtype, "/cpu:0")));
      EXPECT_TRUE(
          same(Tensor::zeros({size}, dtype, gpu(1)), Tensor::zeros({size}, dtype, "/cpu:0")));
    }
  EXPECT_ERROR(InvalidArgumentError, "uint8 cannot hold 256",
               Tensor::full({1}, 256, DType::uint8, gpu(0)));
}

TEST_F(GpuTensor, MayBeEmpty) {
  const Tensor t = Tensor::empty({3, 0}, DType::float32, gpu(0));
  EXPECT_EQ(t.to_vector<float>().size(), 0u);
  EXPECT_EQ(t.clone_to(gpu(1)).shape(), (Shape{3, 0}));
  EXPECT_EQ(t.clone_to("/cpu:0").num_elements(), 0);
  EXPECT_EQ(t.to(DType::int8).dtype(), DType::int8);
  EXPECT_EQ(Tensor::of(std::span<const float>(), gpu(0)).num_elements(), 0);
}

TEST_F(GpuTensor, CastsToTheBitsOfTheHost) {
  for (const DType from : testing::kDTypes) {
    const Tensor host = random_tensor(from, {3001}, uint64_t(from) + 1);
    const Tensor t = host.clone_to(gpu(0));
    for (const DType to : testing::kDTypes)
      EXPECT_TRUE(same(t.to(to), host.to(to))) << name(from) << " to " << name(to);
  }
}

// The values at which rounding, saturation and truncation are decided.
TEST_F(GpuTensor, CastsTheEdgesOfEveryType) {
  std::vector<double> edges;
  for (const int exponent : {0, 7, 8, 10, 11, 15, 16, 23, 24, 31, 32, 52, 53, 62, 63, 64, 127, 128})
    for (const double around : {-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5})
      for (const double sign : {-1.0, 1.0}) {
        const double power = std::ldexp(1.0, exponent);
        edges.push_back(sign * (power + around));
        edges.push_back(sign * power * (1 + around * 0x1p-11));
        edges.push_back(sign * power * (1 + around * 0x1p-24));
        edges.push_back(sign / power);
      }
  for (const double x : {65504.0, 65519.9, 65520.0, 3.3895314e38, 3.4e38, 3.4028236e38, 1e-8, 6e-8,
                         2.98e-8, 2.981e-8, 1e-40, 5e-324, 1e308})
    edges.insert(edges.end(), {x, -x});
  edges.insert(edges.end(), {INFINITY, -INFINITY, NAN, 0.0, -0.0});
  std::vector<int64_t> integers;
  for (int shift = 0; shift < 63; ++shift)
    for (int64_t around = -3; around <= 3; ++around) {
      const int64_t power = int64_t(1) << shift;
      integers.insert(integers.end(),
                      {power + around, around - power, power + (power >> 11) + around,
                       power + (power >> 8) + (power >> 9) + around});
    }
  const auto check = [](const Tensor& host) {
    for (const DType to : testing::kDTypes)
      EXPECT_TRUE(same(host.clone_to(gpu(0)).to(to), host.to(to)))
          << name(host.dtype()) << " to " << name(to);
  };
  for (const DType from : testing::kDTypes) {
    check(Tensor::of(std::span<const double>(edges), "/cpu:0").to(from));
    check(Tensor::of(std::span<const int64_t>(integers), "/cpu:0").to(from));
  }
}

TEST_F(GpuTensor, IsClonedBetweenAllDevices) {
  const Tensor host = random_tensor(DType::float64, {123, 5}, 1);
  for (const std::string& a : list_logical_devices())
    for (const std::string& b : list_logical_devices()) {
      const Tensor there = host.clone_to(a), copy = there.clone_to(b);
      EXPECT_EQ(copy.device(), b);
      EXPECT_NE(copy.const_data(), there.const_data());
      EXPECT_TRUE(same(copy, host));
      EXPECT_TRUE(same(copy.clone(), host));
    }
}

TEST_F(GpuTensor, HasNoSpan) {
  const Tensor t = Tensor::of<float>({1, 2}, gpu(1));
  EXPECT_ERROR(InvalidArgumentError, "GPU:1 is not in host memory; copy it with clone_to",
               t.span<float>());
  EXPECT_ERROR(InvalidArgumentError, "not in host memory", t.span<const float>());
  EXPECT_ERROR(InvalidArgumentError, "asked for elements of type int32", t.to_vector<int32_t>());
  EXPECT_ERROR(InvalidArgumentError, "2 elements, expected 1", t.item<float>());
}

TEST_F(GpuTensor, SharesItsMemoryWhenReshaped) {
  const Tensor t = Tensor::of<float>({1, 2, 3, 4}, gpu(0));
  EXPECT_EQ(t.reshape({2, -1}).const_data(), t.const_data());
  EXPECT_EQ(t.reshape({2, 2}).device(), t.device());
}

TEST_F(GpuTensor, CanBorrow) {
  const Tensor t = Tensor::of<float>({1, 2, 3, 4}, gpu(1));
  {
    const Tensor part = Tensor::borrow(static_cast<float*>(t.data()) + 1, {2}, DType::float32,
                                       gpu(1), std::make_shared<Tensor>(t));
    EXPECT_EQ(part.to_vector<float>(), (std::vector<float>{2, 3}));
    EXPECT_EQ(part.to(DType::int32).to_vector<int32_t>(), (std::vector<int32_t>{2, 3}));
  }
  EXPECT_ERROR(InvalidArgumentError, "not aligned",
               Tensor::borrow(static_cast<std::byte*>(t.data()) + 1, {2}, DType::float32, gpu(1)));
}

TEST_F(GpuTensor, IsMadeOnTheCurrentDevice) {
  const DeviceScope scope("/gpu:2");
  const Tensor t = Tensor::scalar<float>(3);
  EXPECT_EQ(t.device(), gpu(2));
  EXPECT_EQ(t.item<float>(), 3);
  EXPECT_EQ(Tensor::zeros({2}, DType::int8).device(), gpu(2));
}

TEST_F(GpuTensor, TravelsThroughFilesInsideADeviceScope) {
  const DeviceScope scope("/gpu:1");
  const Tensor t = Tensor::of<float>({1, 2, 3});
  const std::string bytes = serialize_safetensors({.tensors = {{"t", t}}});
  const TensorFile file = parse_safetensors(std::as_bytes(std::span(bytes)), "memory");
  EXPECT_TRUE(same(file.tensors.at("t"), t));
}

TEST(GpuDevices, AreListedAndSplit) {
  const auto n = size_t(testing::physical_gpus());
  set_logical_devices("GPU", int(n));
  EXPECT_EQ(list_logical_devices("GPU").size(), n);
  set_logical_devices("GPU", int(n) + 3);
  const std::vector<std::string> names = list_logical_devices("GPU");
  ASSERT_EQ(names.size(), n + 3);
  EXPECT_EQ(names[n + 2], gpu(n + 2));
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(cuda_device(names[i]), int(i % n));
  {
    const Tensor kept = Tensor::scalar<float>(1, names.back());
    EXPECT_ERROR(FailedPreconditionError, "still holds 1 tensor",
                 set_logical_devices("GPU", int(n)));
  }
  set_logical_devices("GPU", int(n));
  EXPECT_EQ(list_logical_devices("GPU").size(), n);
  EXPECT_ERROR(InvalidArgumentError, "expected 1 or more", set_logical_devices("GPU", 0));
}

TEST(GpuDevices, ThatAreNotThereAreAnError) {
  EXPECT_ERROR(InvalidArgumentError,
               "there is no device /job:localhost/replica:0/task:0/device:GPU:99",
               Tensor::zeros({1}, DType::int8, "/gpu:99"));
  EXPECT_ERROR(InvalidArgumentError, "device:GPU:0",  // which there is
               Tensor::zeros({1}, DType::int8, "/gpu:99"));
  EXPECT_ERROR(InvalidArgumentError, "GPU:99", MirroredStrategy({"/gpu:0", "/gpu:99"}));
}

TEST(GpuMemory, IsUsedAgain) {
  for (const int64_t size : {1, 1000, 100000}) {
    const void* first;
    {
      const Tensor t = Tensor::zeros({size}, DType::float32, "/gpu:0");
      first = t.const_data();
    }
    EXPECT_EQ(Tensor::zeros({size}, DType::float32, "/gpu:0").const_data(), first);
  }
}

TEST(GpuMemory, ComesBackAndCanBeReleased) {
  NEEDS_FAKE("counts blocks of memory");
  release_cached_memory();
  const int64_t before = testing::fake_cuda_counts().blocks;
  {
    std::vector<Tensor> many;
    for (const int64_t size : {0, 1, 10, 1000, 1 << 20})
      for (int i = 0; i < 20; ++i) many.push_back(Tensor::zeros({size}, DType::float32, "/gpu:0"));
    EXPECT_EQ(testing::fake_cuda_counts().blocks, before + 100);
  }
  release_cached_memory();
  EXPECT_EQ(testing::fake_cuda_counts().blocks, before);
}

TEST(GpuMemory, RunsOutWithAnErrorAndGoesOn) {
  const int64_t too_many = int64_t(testing::runtime().memory(0) / 4 + 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_ERROR(ResourceExhaustedError, "does not fit on GPU 0",
                 Tensor::empty({too_many}, DType::float32, "/gpu:0"));
    EXPECT_EQ(Tensor::scalar<float>(3, "/gpu:0").item<float>(), 3);
  }
}

// What is held in reserve is given back before an allocation fails.
TEST(GpuMemory, IsTakenFromTheReserveIfItIsScarce) {
  NEEDS_FAKE("has a GPU that is small enough to fill");
  {
    std::vector<Tensor> many;
    for (int i = 0; i < 250; ++i) many.push_back(Tensor::empty({1 << 20}, DType::int8, "/gpu:0"));
  }
  const int64_t most = int64_t(testing::runtime().memory(0) / 8 * 7);
  EXPECT_EQ(Tensor::empty({most}, DType::int8, "/gpu:0").num_elements(), most);
  release_cached_memory();
}

}  // namespace
}  // namespace tutti
