// SPDX-License-Identifier: Apache-2.0
// Finding the rank that the others wait for. The rank that comes last to a collective waits least
// in it, so each rank adds up the time that it spends in collectives, and now and then they
// compare. No clocks are compared, only durations; so it does not matter on which hosts the ranks
// are.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "base/world.h"

namespace tutti::group {

// One rank's side. For one thread at a time.
class Stragglers {
 public:
  using Clock = base::Clock;

  // Compares after every `every` collectives; 0: never.
  explicit Stragglers(int every) : every_(every) {}

  int every() const { return every_; }
  // A collective that is over. True: it is time to compare.
  bool add(Clock::time_point began, Clock::time_point ended);
  // In collectives, since the last comparison.
  std::chrono::nanoseconds spent() const { return spent_; }
  // Begins anew; returns how long all of it took, computing included.
  std::chrono::nanoseconds restart(Clock::time_point now);

 private:
  int every_, count_ = 0;
  std::chrono::nanoseconds spent_{0};
  Clock::time_point start_{};
};

// What the ranks' figures say.
struct Straggler {
  int rank = -1;                       // -1: none stands out
  std::chrono::nanoseconds waited{0};  // by the others for it: the median
  double share = 0;                    // of the time, from 0 to 1
};
// `spent`: nanoseconds in collectives, by rank. A rank stands out if the others waited for a
// millisecond at least, and for 2 % of the time.
Straggler straggler(std::span<const int64_t> spent, std::chrono::nanoseconds time);

// "stragglers: over the last 100 operations rank 2 (worker-2:5000) was the slowest; ..."
std::string described(const Straggler& found, const std::string& name, int operations);

}  // namespace tutti::group
