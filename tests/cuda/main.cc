// SPDX-License-Identifier: Apache-2.0
// The tests on GPUs: on a fake GPU, or with TUTTI_TEST_GPU=real on the machine's own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "device/gpu.h"
#include "support/fake_cuda.h"
#include "support/fake_nccl.h"

namespace tutti::testing {

bool is_fake() {
  const char* const which = std::getenv("TUTTI_TEST_GPU");
  return !which || std::string_view(which) != "real";
}

}  // namespace tutti::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  namespace device = tutti::device;
  if (tutti::testing::is_fake()) {
    device::set_cuda_module(tutti::testing::fake_cuda());
    tutti::testing::FakeNccl::instance().runtime = &tutti::testing::fake_cuda().runtime();
    tutti::group::set_nccl_module(*tutti::testing::fake_nccl_module());
  }
  if (!GTEST_FLAG_GET(list_tests) && !device::cuda_module()) {
    std::printf("skipped: no GPU: %s\n", device::why_no_gpus().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
