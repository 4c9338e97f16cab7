// SPDX-License-Identifier: Apache-2.0
// CUDA for tests on machines without a GPU: GPUs whose memory only looks like a GPU's.
//
// The addresses it hands out cannot be touched: the host that reads or writes them crashes, as it
// would on a machine with a real GPU. The work is done by the host's kernels, on another mapping
// of the same memory. It is put into one queue per stream and left there until a thread waits for
// it, so what is not ordered happens in another order than that of the calls. Fresh memory is
// filled with rubbish, and what touches memory that is freed, on another GPU or past the end of a
// block ends the program with a line that says so.
#pragma once

#include "device/gpu.h"

namespace tutti::testing {

// What a module "cuda" would hand out. The number of GPUs is TUTTI_TEST_CARDS; unless set, 1.
const device::CudaModule& fake_cuda();

// What was asked for so far, on all GPUs.
struct FakeCudaCounts {
  int64_t allocations = 0;
  int64_t copies = 0;
  int64_t launches = 0;
  int64_t waits = 0;  // of a stream for another
  int64_t synchronizations = 0;
  int64_t blocks = 0;  // of memory that are not back yet; those on their way included
};
FakeCudaCounts fake_cuda_counts();

}  // namespace tutti::testing
