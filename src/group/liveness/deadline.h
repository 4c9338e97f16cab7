// SPDX-License-Identifier: Apache-2.0
// How much of the time that a call may wait has passed.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/running_time.h"
#include "group/core/operation.h"
#include "group/liveness/timing.h"

namespace tutti::group {

// Of one call, over all its waits. Time in which the process was suspended does not count. Not
// thread-safe.
class Deadline {
 public:
  Deadline() = default;
  explicit Deadline(Timeouts limits) : limits_(limits) {}

  // The clock runs from the first wait on.
  void start() {
    if (!waited_) waited_.emplace();
  }
  // Counts from now on again.
  void restart() { waited_.emplace(); }

  enum class Due { nothing, warning, expiry };
  // What is due after start(). `slack`: beyond the timeout, for others to speak first.
  Due due(std::chrono::nanoseconds slack = {}) {
    const std::chrono::nanoseconds waited = waited_->elapsed();
    if (limits_.timeout.count() && waited - slack >= limits_.timeout) return Due::expiry;
    if (limits_.warn_after.count() && waited >= limits_.warn_after && !warned_) return Due::warning;
    return Due::nothing;
  }
  void has_warned() { warned_ = true; }
  // Whether the caller gives up soon.
  bool is_near() {
    return limits_.timeout.count() &&
           waited() > std::max(limits_.timeout / 2, limits_.timeout - timing::kAnnounceBefore);
  }
  // Whether it is to say now that it waits, for that reason.
  bool is_to_announce() {
    if (!is_near() || waited() - announced_ <= timing::kAnnounceEvery) return false;
    announced_ = waited();
    return true;
  }

  std::chrono::nanoseconds waited() { return waited_->elapsed(); }
  std::chrono::nanoseconds timeout() const { return limits_.timeout; }

 private:
  Timeouts limits_{};
  std::optional<base::RunningTime> waited_;
  bool warned_ = false;
  std::chrono::nanoseconds announced_{};
};

}  // namespace tutti::group
