// SPDX-License-Identifier: Apache-2.0
#include "base/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/running_time.h"

namespace tutti::base {

namespace {

std::string seconds_text(std::chrono::nanoseconds duration) {
  return fmt::format("{:g} s", std::chrono::duration<double>(duration).count());
}

}  // namespace

Rendezvous::Rendezvous(int participants, std::string noun, int first)
    : noun_(std::move(noun)), first_(first), states_(size_t(participants), State::elsewhere) {}

std::string Rendezvous::name(int participant) const {
  return fmt::format("{} {}", noun_, first_ + participant);
}

void Rendezvous::meet(int participant, std::string_view what, Timeouts timeouts,
                      const std::function<void()>& action) {
  std::unique_lock lock(mutex_);
  if (broken_) throw_broken(what);
  states_[size_t(participant)] = State::waiting;
  ++arrived_;
  const uint64_t meeting = meeting_;
  check_complete(what);

  if (arrived_ == int(states_.size())) {
    lock.unlock();  // a failing action takes the lock to report it; no other participant can leave
                    // before it is done
    try {
      action();
    } catch (const std::exception& e) {
      fail(participant, e.what());
      throw;
    } catch (...) {
      fail(participant, "an exception of unknown type");
      throw;
    }
    lock.lock();
    std::ranges::fill(states_, State::elsewhere);
    arrived_ = 0;
    ++meeting_;
    changed_.notify_all();
    return;
  }

  RunningTime waited;
  const auto over = [&] { return broken_ || meeting_ != meeting; };
  const auto wait = [&](std::chrono::nanoseconds limit) {
    if (limit.count() == 0) changed_.wait(lock, over);
    while (!over() && waited.elapsed() < limit)
      changed_.wait_for(lock, std::min(RunningTime::kLook, limit - waited.elapsed()), over);
    return over();
  };
  const bool warn = timeouts.warn_after.count() > 0 &&
                    (timeouts.timeout.count() == 0 || timeouts.warn_after < timeouts.timeout);
  if (warn && !wait(timeouts.warn_after)) {
    const std::string text = fmt::format("{}: {} has waited {} for {}", what, name(participant),
                                         seconds_text(timeouts.warn_after), missing());
    lock.unlock();  // writing to the log blocks if its reader is slow
    log(LogLevel::warning, text);
    lock.lock();
  }
  if (!wait(timeouts.timeout) && arrived_ < int(states_.size()))
    break_with(
        ErrorCode::deadline_exceeded,
        fmt::format("{}: waited {} for {}", what, seconds_text(timeouts.timeout), missing()));
  // All have come and the action runs: this is no longer a wait for others.
  changed_.wait(lock, over);
  if (meeting_ == meeting) throw_broken(what);
}

void Rendezvous::leave(int participant) {
  std::lock_guard lock(mutex_);
  states_[size_t(participant)] = State::left;
  if (arrived_ > 0) check_complete("");
}

void Rendezvous::fail(int participant, std::string_view why) {
  std::lock_guard lock(mutex_);
  break_with(ErrorCode::aborted, fmt::format("{} failed: {}", name(participant), why));
}

void Rendezvous::abort(ErrorCode code, std::string text) {
  std::lock_guard lock(mutex_);
  break_with(code, std::move(text));
}

void Rendezvous::reset() {
  std::lock_guard lock(mutex_);
  std::ranges::fill(states_, State::elsewhere);
  arrived_ = 0;
  broken_.reset();
}

// Breaks the meeting if a participant waits for one that has left.
void Rendezvous::check_complete(std::string_view what) {
  if (broken_ || std::ranges::find(states_, State::left) == states_.end()) return;
  std::string gone;
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i] == State::left) gone += (gone.empty() ? "" : ", ") + name(int(i));
  break_with(ErrorCode::failed_precondition,
             fmt::format("{}{} returned while others wait for it",
                         what.empty() ? "" : fmt::format("{}: ", what), gone));
  if (!what.empty()) throw_broken(what);
}

// Keeps the first error.
void Rendezvous::break_with(ErrorCode code, std::string text) {
  if (!broken_) broken_ = Broken{code, std::move(text)};
  changed_.notify_all();
}

void Rendezvous::throw_broken(std::string_view what) const {
  const std::string prefix = fmt::format("{}: ", what);
  throw_error(broken_->code,
              broken_->text.starts_with(prefix) ? broken_->text : prefix + broken_->text);
}

std::string Rendezvous::missing() const {
  std::string names;
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i] != State::waiting) names += (names.empty() ? "" : ", ") + name(int(i));
  return names;
}

}  // namespace tutti::base
