// SPDX-License-Identifier: Apache-2.0
// Many trials, in processes of their own: one that crashes or hangs is a finding of its seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::sim {

struct Finding {
  uint64_t seed;
  std::vector<std::string> violations;
};

struct Campaign {
  uint64_t first = 0, last = 0;  // seeds, both included
  int jobs = 1;                  // processes at a time
  bool faults = true;            // else none goes wrong
  int seconds = 15;              // that one trial may take
  std::function<void(uint64_t done, uint64_t failed)> progress = {};
  std::function<void(const Finding&)> found = {};  // at once
};

// What failed, by seed. Called on a process with one thread.
std::vector<Finding> run(const Campaign& campaign);

}  // namespace tutti::sim
