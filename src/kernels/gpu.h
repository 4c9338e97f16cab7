// SPDX-License-Identifier: Apache-2.0
// The kernels on GPUs: the same results as on the host, bit for bit. Everything is enqueued on this
// thread's stream of the GPU that holds the memory.
#pragma once

#include "device/gpu.h"
#include "kernels/reduce.h"
#include "kernels/update.h"

namespace tutti::kernels {

// Rows of a tensor that change: row `row` is combined with the rows order[begin, end) of the
// values, in this order.
struct RowUpdate {
  int64_t row, begin, end;
};

// The kernels of the module "cuda"; memory is the GPU's.
class GpuKernels {
 public:
  virtual ~GpuKernels() = default;
  virtual void reduce(int gpu, device::Stream stream, std::span<const Reduction> batch) = 0;
  virtual void cast(int gpu, device::Stream stream, const void* from, DType from_type, void* to,
                    DType to_type, int64_t count) = 0;
  virtual void fill(int gpu, device::Stream stream, void* to, const void* element,
                    size_t element_size, int64_t count) = 0;
  virtual void update(int gpu, device::Stream stream, Update update, DType dtype, void* target,
                      const void* value, int64_t count) = 0;
  // `rows` and `order` are the GPU's memory, too.
  virtual void update_rows(int gpu, device::Stream stream, Update update, DType dtype, void* target,
                           const void* values, int64_t width, const RowUpdate* rows,
                           int64_t num_rows, const int64_t* order) = 0;
  // values[i] = values[i] * factor, or / factor.
  virtual void scale(int gpu, device::Stream stream, double* values, int64_t count, double factor,
                     bool divide) = 0;
};

// All that the module "cuda" hands out.
struct CudaModuleWithKernels : device::CudaModule {
  GpuKernels& (*kernels)();
};

GpuKernels& gpu_kernels();  // of device::cuda_module(), which is not null

namespace gpu {

void reduce(int gpu, std::span<const Reduction> batch);
void cast(int gpu, const void* from, DType from_type, void* to, DType to_type, int64_t count);
void fill(int gpu, void* to, const void* element, size_t element_size, int64_t count);
void update(int gpu, Update update, DType dtype, void* target, const void* value, int64_t count);
// target row rows[i] = itself op values row i, in the order of i. `rows` are host memory.
void update_rows(int gpu, Update update, DType dtype, void* target, const void* values,
                 int64_t width, std::span<const int64_t> rows);
void scale(int gpu, double* values, int64_t count, double factor, bool divide);

}  // namespace gpu
}  // namespace tutti::kernels
