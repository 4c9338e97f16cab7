// SPDX-License-Identifier: Apache-2.0
#include "base/running_time.h"

#include <gtest/gtest.h>

namespace tutti::base {
namespace {

using namespace std::chrono_literals;

TEST(RunningTime, CountsWhileItIsLookedAt) {
  const RunningTime::Clock::time_point start{};
  RunningTime time(start);
  for (auto now = 0ms; now <= 5s; now += 250ms) EXPECT_EQ(time.elapsed(start + now), now);
}

TEST(RunningTime, LeavesOutASuspension) {
  const RunningTime::Clock::time_point start{};
  RunningTime time(start);
  EXPECT_EQ(time.elapsed(start + 300ms), 300ms);
  EXPECT_EQ(time.elapsed(start + 60s), 300ms);
  EXPECT_EQ(time.elapsed(start + 60s + 200ms), 500ms);
}

}  // namespace
}  // namespace tutti::base
