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
  bool faults = true;            // false: nothing goes wrong
  int seconds = 15;              // the most that one trial may take
  std::function<void(uint64_t done, uint64_t failed)> progress = {};
  std::function<void(const Finding&)> found = {};  // called as soon as a trial has failed
};

// Returns what failed, by seed. The process must have one thread.
std::vector<Finding> run(const Campaign& campaign);

}  // namespace tutti::sim
