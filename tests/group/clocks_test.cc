// SPDX-License-Identifier: Apache-2.0
// How far clocks are apart.
#include "job/clocks.h"

#include "group/group_impl.h"
#include "group/ranks.h"

namespace tutti {
namespace {

using namespace testing;

class Clocks : public ::testing::TestWithParam<World> {};

TEST_P(Clocks, AreComparedToHalfARoundTrip) {
  const Groups groups = GetParam().make(3);
  const group::Timeouts timeouts{std::chrono::seconds(40), {}};
  constexpr int64_t kAhead = 3'600'000'000'000;  // rank 2's is, by an hour
  on_ranks(groups, [&](const Group& mine) {
    group::Backend& backend = detail::GroupAccess::impl(mine).backend();
    const auto ahead = [] { return group::steady_ns() + kAhead; };
    if (mine.rank() == 0) {
      group::answer_clock(backend, 1, timeouts);
      group::answer_clock(backend, 2, timeouts);
      return;
    }
    const group::ClockDifference found = mine.rank() == 2
                                             ? group::ask_clock(backend, 0, timeouts, ahead)
                                             : group::ask_clock(backend, 0, timeouts);
    const int64_t expected = mine.rank() == 2 ? -kAhead : 0;
    EXPECT_GE(found.error_ns, 0);
    EXPECT_LT(found.error_ns, 40'000'000'000);
    EXPECT_LE(std::abs(found.add_ns - expected), found.error_ns + 1);
  });
}

INSTANTIATE_TEST_SUITE_P(, Clocks, ::testing::ValuesIn(kWorlds), name_of_world);

}  // namespace
}  // namespace tutti
