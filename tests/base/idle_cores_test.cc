// SPDX-License-Identifier: Apache-2.0
#include "base/idle_cores.h"

#include <sched.h>

#include <atomic>
#include <thread>

#include "support/expect.h"

namespace tutti::base {
namespace {

TEST(IdleCores, AreNoneForAProcessThatKeepsItsOnlyCoreBusy) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  std::atomic<bool> runs = false, over = false;
  std::thread busy([&] {  // on the same core
    runs = true;
    while (!over) {
    }
  });
  while (!runs) sched_yield();
  EXPECT_FALSE(has_idle_core());
  over = true;
  busy.join();
  sched_setaffinity(0, sizeof(all), &all);
}

}  // namespace
}  // namespace tutti::base
