// SPDX-License-Identifier: Apache-2.0
#include "group/liveness/liveness.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/world.h"
#include "group/liveness/timing.h"

namespace tutti::group {

using base::Clock;

std::string Liveness::progress(int rank, uint64_t operation) const {
  const int number = peers_->number(rank);
  return operation == 0 ? fmt::format("rank {} has not begun any operation", number)
                        : fmt::format("rank {} is at #{}", number, operation);
}

void Liveness::check_now(const std::string& during) const {
  if (pump_) pump_->pump();
  check();
  check_job(during);
}

void Liveness::check_job(const std::string& during) const {
  if (const auto failure = peers_->failure())
    latch_.fail({failure->rank, failure->code, fmt::format("{}: {}", during, failure->text)});
}

void Liveness::check_loss(const std::string& during, int rank, const std::function<bool()>& left,
                          const std::function<uint64_t()>& at) const {
  if (left()) return;
  const std::string loss = peers_->loss(rank);
  if (loss.empty()) return;
  check();  // the lost rank may have said why before it went
  if (left()) return;
  // Or it may have told the coordination service, which also knows soon if it did not.
  const auto reason = await_reason();
  if (!reason || reason->code != ErrorCode::aborted)
    fail(rank, ErrorCode::unavailable,
         fmt::format("{}: {} {}; {}", during, name(rank), loss, progress(rank, at())));
}

void Liveness::fail_since_left(const std::string& during, int rank, uint64_t at) const {
  const std::string left = fmt::format("{}: {} has left the group", during, name(rank));
  // It may have left because of a rank that this group does not have.
  if (const auto cause = peers_->failure_anywhere())
    latch_.fail({cause->rank, cause->code, fmt::format("{}: {}", left, cause->text)});
  fail(rank, ErrorCode::unavailable, fmt::format("{}; {}", left, progress(rank, at)));
}

std::optional<cluster::Failure> Liveness::await_reason() const {
  return alarm_ ? await_reason([] { base::sleep_for(timing::kShortPoll); }) : std::nullopt;
}

std::optional<cluster::Failure> Liveness::await_reason(const std::function<void()>& sleep) const {
  for (const auto until = Clock::now() + timing::kReason;; sleep()) {
    if (pump_) pump_->pump();
    check();
    if (auto failure = peers_->failure()) return failure;
    if (Clock::now() >= until) return {};
  }
}

void Liveness::check_deadline(Deadline& deadline, std::chrono::nanoseconds slack,
                              const Description& what, uint64_t number,
                              const std::function<LateRanks()>& missing, int me) const {
  const Deadline::Due due = deadline.due(slack);
  if (due == Deadline::Due::nothing) return;
  const LateRanks late = missing();
  if (late.names.empty()) return;
  const std::string operation = described(what, number);
  if (due == Deadline::Due::warning) {
    deadline.has_warned();
    return base::log(base::LogLevel::warning, fmt::format("{}: has waited {} for {}", operation,
                                                          seconds(deadline.waited()), late.names));
  }
  const std::string waited =
      fmt::format("waited {} for {}", seconds(deadline.timeout()), late.names);
  const std::string isolation = peers_->isolation();
  fail(isolation.empty() ? late.culprit : me, ErrorCode::deadline_exceeded,
       isolation.empty() ? fmt::format("{}: {}", operation, waited)
                         : fmt::format("{}: {} {}; it {}", operation, name(me), isolation, waited));
}

}  // namespace tutti::group
