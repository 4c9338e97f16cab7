// SPDX-License-Identifier: Apache-2.0
// Errors of CUDA become ours.
#pragma once

#include <cuda_runtime_api.h>

namespace tutti::cuda {

// ResourceExhaustedError if the GPU has no memory left, else InternalError with CUDA's text.
void check(cudaError_t status, const char* call);

// Calls of this thread go to `gpu` while it lives. With one GPU they always do.
class OnGpu {
 public:
  explicit OnGpu(int gpu);
  ~OnGpu() {
    if (outer_ >= 0) cudaSetDevice(outer_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int outer_ = -1;
};

}  // namespace tutti::cuda
