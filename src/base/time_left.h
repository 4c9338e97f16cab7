// SPDX-License-Identifier: Apache-2.0
// A timeout covers a call from start to end, however often it waits.
#pragma once

#include <tutti/reduce_op.h>

#include <algorithm>
#include <chrono>

#include "base/settings.h"
#include "base/world.h"

namespace tutti::base {

// The options of a call that `began` then, with the time that it has left.
inline CommunicationOptions left_of(const CommunicationOptions& options, Clock::time_point began) {
  CommunicationOptions left = options;
  const std::chrono::nanoseconds timeout = options.timeout.value_or(settings().timeout);
  if (timeout.count() > 0)  // 0: no limit
    left.timeout = std::max<std::chrono::nanoseconds>(timeout - (Clock::now() - began),
                                                      std::chrono::nanoseconds(1));
  return left;
}

}  // namespace tutti::base
