// SPDX-License-Identifier: Apache-2.0
// A meeting point for a fixed set of participants that cannot hang.
//
// Participants meet again and again. If one does not come (it failed, it left, it is late), those
// that wait and those that come later get an error that names it, until reset. Never use
// std::barrier or std::latch if a participant may fail.
#pragma once

#include <tutti/error.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::base {

class Rendezvous {
 public:
  // `noun` is what a participant is called in errors: "replica", "rank"; the first has the number
  // `first` there.
  Rendezvous(int participants, std::string noun, int first = 0);

  // Waits until all participants have come. The last to come runs its `action` before any of them
  // leaves. If the action throws, the exception goes to the participant that ran it and an
  // AbortedError to the others. A timeout or warn_after of 0 is never; the timeout covers the
  // waiting for others, not the action.
  struct Timeouts {
    std::chrono::nanoseconds timeout;
    std::chrono::nanoseconds warn_after;
  };
  void meet(int participant, std::string_view what, Timeouts timeouts,
            const std::function<void()>& action);

  // `participant` comes no more: FailedPreconditionError for the others if they wait for it.
  void leave(int participant);

  // `participant` has failed: AbortedError for the others, now or when they next come.
  void fail(int participant, std::string_view why);

  // The meeting cannot go on, for a reason that is no single participant's.
  void abort(ErrorCode code, std::string text);

  // All participants are expected again. Call it only while none is inside.
  void reset();

 private:
  enum class State { elsewhere, waiting, left };
  struct Broken {
    ErrorCode code;
    std::string text;
  };

  std::string name(int participant) const;
  void break_with(ErrorCode code, std::string text);
  void check_complete(std::string_view what);
  [[noreturn]] void throw_broken(std::string_view what) const;
  std::string missing() const;

  const std::string noun_;
  const int first_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<State> states_;
  int arrived_ = 0;
  uint64_t meeting_ = 0;
  std::optional<Broken> broken_;
};

}  // namespace tutti::base
