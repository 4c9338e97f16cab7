// SPDX-License-Identifier: Apache-2.0
// tutti simulate --faults.
#pragma once

#include <string>

namespace tutti::tools {

struct FaultOptions {
  std::string seeds = "0:499";  // "A:B", both included, or one seed
  int jobs = 0;                 // processes at a time; 0: one per core
  bool trace = false;           // prints what happens, of one seed
  bool without_faults = false;  // larger jobs, in which nothing goes wrong
};

// The exit code.
int simulate_faults(const FaultOptions& options);

}  // namespace tutti::tools
