// SPDX-License-Identifier: Apache-2.0
// How far the clocks of two hosts are apart, by messages there and back, and what timelines say of
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "group/core/backend.h"
#include "job/hello.h"
#include "job/link.h"

namespace tutti::group {

using ClockFunction = std::function<int64_t()>;  // nanoseconds

int64_t steady_ns();

struct ClockDifference {
  int64_t add_ns;    // to this rank's clock, to have the other's
  int64_t error_ns;  // by which that may be wrong, at most: half of the shortest round trip
};

// How rank `peer`'s clock stands to this one's; it must call answer_clock at the same time.
ClockDifference ask_clock(Backend& group, int peer, Timeouts timeouts,
                          const ClockFunction& now = steady_ns);
void answer_clock(Backend& group, int peer, Timeouts timeouts,
                  const ClockFunction& now = steady_ns);

// Opens this rank's timeline, if there is one.
TimelineHello open_timeline(int rank);

// Says in every timeline how its clock stands to that of the first rank that has one; a collective.
// Between hosts that takes measuring, by one rank of each, in a group that `new_group` makes.
void align_timelines(const std::vector<Hello>& hellos, int rank, Link& link,
                     const std::function<std::unique_ptr<Backend>()>& new_group);

}  // namespace tutti::group
