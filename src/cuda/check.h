// SPDX-License-Identifier: Apache-2.0
// Errors of CUDA become ours.
#pragma once

#include <cuda_runtime_api.h>

namespace tutti::cuda {

// ResourceExhaustedError if the card has no memory left, else InternalError with CUDA's text.
void check(cudaError_t status, const char* call);

// Calls of this thread go to `card` while it lives. With one card they always do.
class OnCard {
 public:
  explicit OnCard(int card);
  ~OnCard() {
    if (outer_ >= 0) cudaSetDevice(outer_);
  }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;

 private:
  int outer_ = -1;
};

}  // namespace tutti::cuda
