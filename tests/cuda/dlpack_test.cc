// SPDX-License-Identifier: Apache-2.0
// Tensors on GPUs, exchanged with other libraries.
#include <dlpack/dlpack.h>

#include "cuda/gpus.h"
#include "support/expect.h"

namespace tutti {
namespace {

using testing::gpu;
using F = std::vector<float>;

struct GpuDLPack : testing::LogicalGpus<3> {};

TEST_F(GpuDLPack, GoesOutAndComesBackWithoutACopy) {
  const Tensor t = Tensor::of<float>({1, 2, 3, 4, 5, 6}, gpu(1)).reshape({2, 3});
  DLManagedTensor* const out = t.to_dlpack();
  EXPECT_EQ(out->dl_tensor.device.device_type, kDLCUDA);
  EXPECT_EQ(out->dl_tensor.device.device_id, cuda_device(gpu(1)));
  EXPECT_EQ(out->dl_tensor.data, t.data());
  const Tensor back = Tensor::from_dlpack(out);
  EXPECT_EQ(back.const_data(), t.const_data());
  EXPECT_EQ(back.shape(), (Shape{2, 3}));
  EXPECT_EQ(cuda_device(back.device()), cuda_device(t.device()));
  EXPECT_EQ(back.to_vector<float>(), F({1, 2, 3, 4, 5, 6}));
}

TEST_F(GpuDLPack, ComesToTheCurrentDeviceIfThatIsOnTheGpu) {
  for (size_t i = 0; i < 3; ++i) {
    const Tensor t = Tensor::of<float>({1, 2}, gpu(i));
    const DeviceScope scope(gpu(2));
    const Tensor back = Tensor::from_dlpack(t.to_dlpack_versioned());
    EXPECT_EQ(cuda_device(back.device()), cuda_device(gpu(i)));
    if (cuda_device(gpu(i)) == cuda_device(gpu(2))) {
      EXPECT_EQ(back.device(), gpu(2));
    }
    EXPECT_EQ(back.to_vector<float>(), F({1, 2}));
  }
}

TEST_F(GpuDLPack, KeepsHostMemoryOnTheHost) {
  const DeviceScope scope(gpu(1));
  const Tensor t = Tensor::of<float>({1, 2}, "/cpu:0");
  const Tensor back = Tensor::from_dlpack(t.to_dlpack());
  EXPECT_EQ(back.device(), canonicalize("/cpu:0"));
  EXPECT_EQ(back.span<const float>()[1], 2);
}

TEST_F(GpuDLPack, OfAGpuThatIsNotThereIsAnError) {
  DLManagedTensor* const out = Tensor::of<float>({1, 2}, gpu(0)).to_dlpack();
  out->dl_tensor.device.device_id = 99;
  EXPECT_ERROR(InvalidArgumentError, "no GPU 99", Tensor::from_dlpack(out));
  out->deleter(out);
}

TEST_F(GpuDLPack, FollowsTheStreamOfAScope) {
  void* const stream = testing::runtime().make_stream(cuda_device());
  const Tensor t = Tensor::full({1000}, 2, DType::float64, gpu(0));
  {
    const StreamScope scope(stream);
    const Tensor theirs = Tensor::from_dlpack(t.to_dlpack());
    testing::multiply(theirs, 3);
  }
  testing::multiply(t, 5);
  EXPECT_EQ(t.to_vector<double>(), std::vector<double>(1000, 30));
}

}  // namespace
}  // namespace tutti
