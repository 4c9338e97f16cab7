// SPDX-License-Identifier: Apache-2.0
// The fake of CUDA as a module that libtutti.so loads.
#include "base/module.h"
#include "support/fake_cuda.h"

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  static const tutti::base::Module module{TUTTI_VERSION, &tutti::testing::fake_cuda()};
  return &module;
}
