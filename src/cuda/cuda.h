// SPDX-License-Identifier: Apache-2.0
// The parts of the module "cuda".
#pragma once

#include <cuda_runtime_api.h>

#include "device/gpu.h"
#include "kernels/gpu.h"

namespace tutti::cuda {

device::GpuRuntime& runtime();

void reduce(int gpu, cudaStream_t stream, std::span<const kernels::Reduction> batch);
void cast(int gpu, cudaStream_t stream, const void* from, DType from_type, void* to, DType to_type,
          int64_t count);
void fill(int gpu, cudaStream_t stream, void* to, const void* element, size_t element_size,
          int64_t count);
void update(int gpu, cudaStream_t stream, kernels::Update update, DType dtype, void* target,
            const void* value, int64_t count);
void update_rows(int gpu, cudaStream_t stream, kernels::Update update, DType dtype, void* target,
                 const void* values, int64_t width, const kernels::RowUpdate* rows,
                 int64_t num_rows, const int64_t* order);
void scale(int gpu, cudaStream_t stream, double* values, int64_t count, double factor, bool divide);

}  // namespace tutti::cuda
