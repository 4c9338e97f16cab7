// SPDX-License-Identifier: Apache-2.0
#include "job/link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/settings.h"

namespace tutti::group {

using cluster::Coordination;
using cluster::Failure;

std::chrono::nanoseconds join_timeout() {
  const std::chrono::nanoseconds timeout = base::settings().join_timeout;
  return timeout.count() ? timeout : std::chrono::nanoseconds::max();
}

Link::Link(int rank, std::vector<std::string> addresses, std::shared_ptr<Coordination> coordination)
    : rank_(rank), addresses_(std::move(addresses)), coordination_(std::move(coordination)) {
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

void Link::report(Failure failure) {
  if (failure.rank < 0 && failure.code != ErrorCode::invalid_argument)
    failure.rank = culprit(failure.text);
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

// "waited 2 s for rank 1 (ADDRESS), which waits for rank 2 (ADDRESS); ..." is rank 2's fault. The
// text is that of WaitGraph::blame.
int Link::culprit(std::string_view text) const {
  int found = -1;
  size_t end = 0;  // of the name that was found
  for (size_t open = text.find('('); open != text.npos; open = text.find('(', open + 1)) {
    const size_t length = text.find_first_of(",)", open) - open - 1;
    const auto rank = std::ranges::find(addresses_, text.substr(open + 1, length));
    if (rank == addresses_.end()) continue;
    if (found >= 0 && !text.substr(end, open - end).starts_with("), which waits for ")) break;
    found = int(rank - addresses_.begin());
    end = open + 1 + length;
  }
  return found >= 0 ? found : rank_;
}

}  // namespace tutti::group
