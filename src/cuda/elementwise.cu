// SPDX-License-Identifier: Apache-2.0
// Casts, fills, and the updates of variables. What these compute is what the host computes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <tutti/error.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "cuda/check.h"
#include "cuda/cuda.h"
#include "kernels/cast.h"

namespace tutti::cuda {

namespace {

constexpr int kThreads = 256;

// Kernels go over their elements with a stride, so any number of blocks will do.
int blocks_for(int64_t count) {
  constexpr int64_t kMost = 1 << 20;
  return int(std::min((count + kThreads - 1) / kThreads, kMost));
}

__device__ int64_t first() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ int64_t stride() { return int64_t(gridDim.x) * blockDim.x; }

__device__ float widen(float16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ float widen(bfloat16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
__device__ void narrow(float x, float16& to) { to.bits = __half_as_ushort(__float2half_rn(x)); }
__device__ void narrow(float x, bfloat16& to) {
  to.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

template <class To, class From>
__device__ To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_class_v<From>) {
    return converted<To>(widen(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_same_v<To, float16>) {
    To result;
    if constexpr (std::is_floating_point_v<From>)
      result.bits = __half_as_ushort(__double2half(double(value)));
    else if constexpr (std::is_same_v<From, uint64_t>)
      result.bits = __half_as_ushort(__ull2half_rn(value));
    else
      result.bits = __half_as_ushort(__ll2half_rn((long long)(value)));
    return result;
  } else if constexpr (std::is_same_v<To, bfloat16>) {
    To result;
    if constexpr (std::is_floating_point_v<From>)
      result.bits = __bfloat16_as_ushort(__double2bfloat16(double(value)));
    else if constexpr (std::is_same_v<From, uint64_t>)
      result.bits = __bfloat16_as_ushort(__ull2bfloat16_rn(value));
    else
      result.bits = __bfloat16_as_ushort(__ll2bfloat16_rn((long long)(value)));
    return result;
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To kLowest = std::numeric_limits<To>::min(),
                 kHighest = std::numeric_limits<To>::max();
    if (value != value) return 0;
    if (value <= From(kLowest)) return kLowest;
    if (value >= From(kHighest)) return kHighest;
    return To(value);
  } else {
    return To(value);
  }
}

template <class To, class From>
__global__ void cast_kernel(const From* from, To* to, int64_t count) {
  for (int64_t i = first(); i < count; i += stride()) to[i] = converted<To>(from[i]);
}

template <class T>
__global__ void fill_kernel(T* to, T element, int64_t count) {
  for (int64_t i = first(); i < count; i += stride()) to[i] = element;
}

template <class T>
__device__ T applied(kernels::Update update, T a, T b) {
  if constexpr (std::is_class_v<T>) {  // the 16-bit floats compute in 32
    T result;
    narrow(kernels::updated(update, widen(a), widen(b)), result);
    return result;
  } else {
    return kernels::updated(update, a, b);
  }
}

template <class T>
__global__ void update_kernel(kernels::Update update, T* target, const T* value, int64_t count) {
  for (int64_t i = first(); i < count; i += stride())
    target[i] = applied(update, target[i], value[i]);
}

// One block for one row of the target at a time, so that what is added to it is added in order.
template <class T>
__global__ void update_rows_kernel(kernels::Update update, T* target, const T* values,
                                   int64_t width, const kernels::RowUpdate* rows, int64_t num_rows,
                                   const int64_t* order) {
  for (int64_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    const kernels::RowUpdate row = rows[r];
    for (int64_t j = threadIdx.x; j < width; j += blockDim.x) {
      T x = target[row.row * width + j];
      for (int64_t k = row.begin; k < row.end; ++k)
        x = applied(update, x, values[order[k] * width + j]);
      target[row.row * width + j] = x;
    }
  }
}

__global__ void scale_kernel(double* values, int64_t count, double factor, bool divide) {
  for (int64_t i = first(); i < count; i += stride())
    values[i] = divide ? values[i] / factor : values[i] * factor;
}

}  // namespace

void cast(int gpu, cudaStream_t stream, const void* from, DType from_type, void* to, DType to_type,
          int64_t count) {
  if (count == 0) return;
  const OnGpu here(gpu);
  kernels::with_type(from_type, [&]<class From>(From*) {
    kernels::with_type(to_type, [&]<class To>(To*) {
      cast_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const From*>(from),
                                                              static_cast<To*>(to), count);
    });
  });
  check(cudaGetLastError(), "a cast on a GPU");
}

void fill(int gpu, cudaStream_t stream, void* to, const void* element, size_t element_size,
          int64_t count) {
  if (count == 0) return;
  const OnGpu here(gpu);
  const auto launch = [&]<class T>(T value) {
    std::memcpy(&value, element, sizeof value);
    fill_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<T*>(to), value, count);
  };
  switch (element_size) {
    case 1: launch(uint8_t{}); break;
    case 2: launch(uint16_t{}); break;
    case 4: launch(uint32_t{}); break;
    default: launch(uint64_t{}); break;
  }
  check(cudaGetLastError(), "a fill on a GPU");
}

void update(int gpu, cudaStream_t stream, kernels::Update update, DType dtype, void* target,
            const void* value, int64_t count) {
  if (count == 0) return;
  const OnGpu here(gpu);
  kernels::with_type(dtype, [&]<class T>(T*) {
    update_kernel<<<blocks_for(count), kThreads, 0, stream>>>(update, static_cast<T*>(target),
                                                              static_cast<const T*>(value), count);
  });
  check(cudaGetLastError(), "an update on a GPU");
}

void update_rows(int gpu, cudaStream_t stream, kernels::Update update, DType dtype, void* target,
                 const void* values, int64_t width, const kernels::RowUpdate* rows,
                 int64_t num_rows, const int64_t* order) {
  if (num_rows == 0 || width == 0) return;
  const OnGpu here(gpu);
  kernels::with_type(dtype, [&]<class T>(T*) {
    update_rows_kernel<<<int(std::min<int64_t>(num_rows, 1 << 20)), kThreads, 0, stream>>>(
        update, static_cast<T*>(target), static_cast<const T*>(values), width, rows, num_rows,
        order);
  });
  check(cudaGetLastError(), "an update of rows on a GPU");
}

void scale(int gpu, cudaStream_t stream, double* values, int64_t count, double factor,
           bool divide) {
  if (count == 0) return;
  const OnGpu here(gpu);
  scale_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, count, factor, divide);
  check(cudaGetLastError(), "a scaling on a GPU");
}

}  // namespace tutti::cuda
