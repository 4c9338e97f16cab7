// SPDX-License-Identifier: Apache-2.0
// What the tests on GPUs share. They run on a fake GPU unless TUTTI_TEST_GPU=real.
#pragma once

#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include <cstring>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "kernels/gpu.h"
#include "support/cpus.h"
#include "support/reference.h"

namespace tutti::testing {

bool is_fake();

inline device::GpuRuntime& runtime() { return device::cuda_module()->runtime(); }
inline kernels::GpuKernels& kernels_of_gpus() { return kernels::gpu_kernels(); }
inline int physical_gpus() { return runtime().gpus(); }

inline std::string gpu(size_t index) { return canonicalize("/gpu:" + std::to_string(index)); }

// The first n logical devices of a type; there are at least as many.
inline std::vector<std::string> devices(std::string_view type, size_t n) {
  if (list_logical_devices(type).size() < n) set_logical_devices(type, int(n));
  std::vector<std::string> names = list_logical_devices(type);
  names.resize(n);
  return names;
}

template <int kCount, class Base = ::testing::Test>
class LogicalGpus : public Base {
 protected:
  LogicalGpus() {
    devices("GPU", kCount);
    devices("CPU", kCount);
  }
};

inline Tensor on_host(const Tensor& tensor) { return tensor.clone_to("/cpu:0"); }

// The same shape, type and elements, bit by bit, wherever they are.
inline ::testing::AssertionResult same(const Tensor& got, const Tensor& want) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape())
    return ::testing::AssertionFailure() << got.to_string() << " instead of " << want.to_string();
  return same_bits(got.dtype(), on_host(got).const_data(), on_host(want).const_data(),
                   size_t(got.num_elements()));
}

// In host memory.
inline Tensor random_tensor(DType dtype, const Shape& shape, uint64_t seed, bool specials = true) {
  const Tensor tensor = Tensor::empty(shape, dtype, "/cpu:0");
  fill_random(dtype, tensor.data(), size_t(tensor.num_elements()), seed, specials);
  return tensor;
}

// As a program's own kernel would: multiplies a float64 tensor on this thread's stream.
inline void multiply(const Tensor& tensor, double factor) {
  const int gpu = cuda_device(tensor.device());
  kernels_of_gpus().scale(gpu, cuda_stream(tensor.device()), static_cast<double*>(tensor.data()),
                          tensor.num_elements(), factor, false);
}

}  // namespace tutti::testing

#define NEEDS_FAKE(why) \
  if (!::tutti::testing::is_fake()) GTEST_SKIP() << "only the fake " << (why)
#define NEEDS_GPUS(n)                          \
  if (::tutti::testing::physical_gpus() < (n)) \
  GTEST_SKIP() << "needs " << (n) << " GPUs, and there are " << ::tutti::testing::physical_gpus()
