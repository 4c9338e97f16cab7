// SPDX-License-Identifier: Apache-2.0
// What this process may use of the machine.
#pragma once

#include <cstddef>

namespace tutti::base {

struct Topology {
  int cores;                // that this process may run on, at least 1
  size_t last_level_cache;  // bytes of the largest cache that a core shares
};

// Asked once, on the first call.
const Topology& topology();

}  // namespace tutti::base
