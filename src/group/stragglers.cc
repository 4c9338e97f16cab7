// SPDX-License-Identifier: Apache-2.0
#include "group/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "group/core/operation.h"

namespace tutti::group {

namespace {

constexpr std::chrono::nanoseconds kLeastWait = std::chrono::milliseconds(1);
constexpr double kLeastShare = 0.02;

}  // namespace

bool Stragglers::add(Clock::time_point began, Clock::time_point ended) {
  // The ranks come to the first collective from whatever they did before, so its wait says nothing
  // about their computing.
  if (start_ == Clock::time_point{})
    start_ = ended;
  else
    spent_ += ended - began;
  return ++count_ >= every_;
}

std::chrono::nanoseconds Stragglers::restart(Clock::time_point now) {
  const std::chrono::nanoseconds time = now - start_;
  count_ = 0;
  spent_ = {};
  start_ = now;
  return time;
}

Straggler straggler(std::span<const int64_t> spent, std::chrono::nanoseconds time) {
  if (spent.size() < 2) return {};
  const auto least = std::ranges::min_element(spent);
  std::vector<int64_t> others;
  for (auto it = spent.begin(); it != spent.end(); ++it)
    if (it != least) others.push_back(*it);
  std::ranges::sort(others);
  const size_t middle = others.size() / 2;
  const int64_t median =
      others.size() % 2 ? others[middle] : (others[middle - 1] + others[middle]) / 2;
  const std::chrono::nanoseconds waited(median - *least);
  const double share =
      std::min(1., double(waited.count()) / double(std::max<int64_t>(1, time.count())));
  if (waited < kLeastWait || share < kLeastShare) return {};
  return {int(least - spent.begin()), waited, share};
}

std::string described(const Straggler& found, const std::string& name, int operations) {
  const std::string over = fmt::format(
      "stragglers: over the last {}",
      operations == 1 ? std::string("operation") : fmt::format("{} operations", operations));
  if (found.rank < 0) return over + " no rank stood out";
  return fmt::format("{} {} was the slowest; the others waited {} for it ({:.0f} % of the time)",
                     over, name, seconds(found.waited), 100 * found.share);
}

}  // namespace tutti::group
