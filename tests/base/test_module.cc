// SPDX-License-Identifier: Apache-2.0
// A module as small as can be, built once with the right version and once with another.
#include "base/module.h"

namespace {
const int interface = 42;
const tutti::base::Module module{TUTTI_TEST_MODULE_VERSION, &interface};
}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  return &module;
}
