// SPDX-License-Identifier: Apache-2.0
// How long something has taken, as far as this process could have noticed its end.
#pragma once

#include <chrono>

#include "base/world.h"

namespace tutti::base {

// Leaves out the time in which the process was suspended (SIGSTOP, a frozen cgroup): what it waits
// for was perhaps suspended with it. A suspension shows as a gap between two looks, so the owner
// looks every kLook or more often. Not thread-safe.
class RunningTime {
 public:
  using Clock = base::Clock;
  static constexpr std::chrono::nanoseconds kLook = std::chrono::milliseconds(250);
  static constexpr std::chrono::nanoseconds kSuspended = std::chrono::seconds(1);

  explicit RunningTime(Clock::time_point now = Clock::now()) : start_(now), looked_(now) {}

  std::chrono::nanoseconds elapsed(Clock::time_point now = Clock::now()) {
    if (now - looked_ > kSuspended) start_ += now - looked_;
    looked_ = now;
    return now - start_;
  }

 private:
  Clock::time_point start_, looked_;
};

}  // namespace tutti::base
