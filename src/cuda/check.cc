// SPDX-License-Identifier: Apache-2.0
#include "cuda/check.h"

#include <fmt/format.h>
#include <tutti/error.h>

namespace tutti::cuda {

namespace {

bool is_single_gpu() {
  static const bool single = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count == 1;
  }();
  return single;
}

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would report it again
  const std::string text =
      fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
  if (status == cudaErrorMemoryAllocation) throw ResourceExhaustedError(text);
  throw InternalError(text);
}

OnGpu::OnGpu(int gpu) {
  if (is_single_gpu()) return;
  check(cudaGetDevice(&outer_), "cudaGetDevice");
  if (outer_ == gpu)
    outer_ = -1;
  else
    check(cudaSetDevice(gpu), "cudaSetDevice");
}

}  // namespace tutti::cuda
