// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "base/module.h"
#include "cuda/cuda.h"

namespace tutti::cuda {

namespace {

class CudaKernels : public kernels::GpuKernels {
  using Stream = device::Stream;
  static cudaStream_t as_stream(Stream stream) { return static_cast<cudaStream_t>(stream); }

 public:
  void reduce(int gpu, Stream stream, std::span<const kernels::Reduction> batch) override {
    cuda::reduce(gpu, as_stream(stream), batch);
  }
  void cast(int gpu, Stream stream, const void* from, DType from_type, void* to, DType to_type,
            int64_t count) override {
    cuda::cast(gpu, as_stream(stream), from, from_type, to, to_type, count);
  }
  void fill(int gpu, Stream stream, void* to, const void* element, size_t element_size,
            int64_t count) override {
    cuda::fill(gpu, as_stream(stream), to, element, element_size, count);
  }
  void update(int gpu, Stream stream, kernels::Update update, DType dtype, void* target,
              const void* value, int64_t count) override {
    cuda::update(gpu, as_stream(stream), update, dtype, target, value, count);
  }
  void update_rows(int gpu, Stream stream, kernels::Update update, DType dtype, void* target,
                   const void* values, int64_t width, const kernels::RowUpdate* rows,
                   int64_t num_rows, const int64_t* order) override {
    cuda::update_rows(gpu, as_stream(stream), update, dtype, target, values, width, rows, num_rows,
                      order);
  }
  void scale(int gpu, Stream stream, double* values, int64_t count, double factor,
             bool divide) override {
    cuda::scale(gpu, as_stream(stream), values, count, factor, divide);
  }
};

kernels::GpuKernels& all_kernels() {
  static auto* const instance = new CudaKernels;
  return *instance;
}

constexpr kernels::CudaModuleWithKernels kInterface{{runtime}, all_kernels};
constexpr base::Module kModule{TUTTI_VERSION, static_cast<const device::CudaModule*>(&kInterface)};

}  // namespace

}  // namespace tutti::cuda

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  return &tutti::cuda::kModule;
}
