// SPDX-License-Identifier: Apache-2.0
#include "job/link.h"

#include <fmt/format.h>

#include <utility>

#include "base/settings.h"

namespace tutti::group {

using cluster::Coordination;
using cluster::Failure;

std::chrono::nanoseconds join_timeout() {
  const std::chrono::nanoseconds timeout = base::settings().join_timeout;
  return timeout.count() ? timeout : std::chrono::nanoseconds::max();
}

Link::Link(int rank, std::vector<std::string> addresses, std::shared_ptr<Coordination> coordination,
           std::unique_ptr<HostBoard> board)
    : rank_(rank),
      addresses_(std::move(addresses)),
      coordination_(std::move(coordination)),
      board_(std::move(board)) {
  coordination_->on_failure(
      [this](const Failure&) { alarm_.store(true, std::memory_order_release); });
}

std::shared_ptr<Coordination> Link::get() const {
  std::lock_guard lock(mutex_);
  return coordination_;
}

void Link::leave() {
  std::shared_ptr<Coordination> left;  // its end may take time
  std::lock_guard lock(mutex_);
  left.swap(coordination_);
}

std::vector<std::string> Link::exchange(const std::string& name, const std::string& value) {
  Failure failure;
  try {
    return exchange_on_host(name, value, failure);
  } catch (const Error&) {
    if (!failure.text.empty()) report(failure);
    throw;
  }
}

std::vector<std::string> Link::exchange_on_host(const std::string& name, const std::string& value,
                                                Failure& failure) {
  const std::shared_ptr<Coordination> link = get();
  const auto exchange = [&](cluster::Sharing* sharing) {
    return link->exchange(name, value, join_timeout(), &failure, sharing);
  };
  if (!board_) return exchange(nullptr);
  cluster::Sharing sharing = board_->sharing();
  std::vector<std::string> values = exchange(&sharing);
  if (!values.empty()) {
    board_->show(values);
  } else if (auto shown = board_->read(sharing.place, join_timeout(), [&] {
               if (const auto failed = link->failure()) throw_error(failed->code, failed->text);
             })) {
    values = *std::move(shown);
  } else {
    board_.reset();  // the other rank is another user's, or keeps its memory to itself
    return exchange(nullptr);
  }
  if (!std::exchange(shares_heartbeats_, true)) link->share_heartbeats(board_->pulse(rank_));
  return values;
}

void Link::report(Failure failure) {
  if (failure.code == ErrorCode::invalid_argument)
    failure.rank = -1;
  else if (failure.rank < 0)
    failure.rank = rank_;
  std::lock_guard lock(reporting_);
  const std::shared_ptr<Coordination> link = get();
  // Every call of a group that has failed says the same again.
  if (!link || failure.text == std::exchange(reported_, failure.text)) return;
  link->report(failure);
}

void Link::abort(const std::string& reason) {
  const std::shared_ptr<Coordination> link = get();
  if (!link) return;
  link->abort({rank_, ErrorCode::aborted, fmt::format("rank {} failed: {}", rank_, reason)});
  alarm_.store(true, std::memory_order_release);  // not only when the link's thread comes to it
}

void Link::refuse(const Error& error) {
  get()->abort({rank_, error.code(),
                fmt::format("rank {} ({}): {}", rank_, addresses_[size_t(rank_)], error.what())});
}

}  // namespace tutti::group
