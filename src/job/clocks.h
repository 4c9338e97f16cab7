// How far the clocks of two hosts are apart, by messages there and back.
#pragma once

#include <cstdint>
#include <functional>

#include "group/core/backend.h"

namespace tutti::group {

using ClockFunction = std::function<int64_t()>;  // nanoseconds

int64_t steady_ns();

struct ClockDifference {
  int64_t add_ns;    // to this rank's clock, to have the other's
  int64_t error_ns;  // by which that may be wrong, at most: half of the shortest way there and back
};

// What rank `peer` has its clock at; it must call answer_clock at the same time.
ClockDifference ask_clock(Backend& group, int peer, Patience patience,
                          const ClockFunction& now = steady_ns);
void answer_clock(Backend& group, int peer, Patience patience,
                  const ClockFunction& now = steady_ns);

}  // namespace tutti::group
