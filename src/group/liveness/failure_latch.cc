// SPDX-License-Identifier: Apache-2.0
#include "group/liveness/failure_latch.h"

#include <algorithm>
#include <cstring>

#include "base/world.h"
#include "group/liveness/timing.h"

namespace tutti::group {

void FailureLatch::set(const cluster::Failure& failure, bool from_peer) {
  uint32_t none = 0;
  if (!failure_.state.compare_exchange_strong(none, 1)) return;
  failure_.code = failure.code;
  failure_.rank = failure.rank;
  const size_t bytes = std::min(failure.text.size(), sizeof(failure_.text) - 1);
  std::memcpy(failure_.text, failure.text.data(), bytes);
  failure_.text[bytes] = 0;
  failure_.state.store(2);
  for (const auto& hook : hooks_) hook({failure, from_peer});
}

std::optional<cluster::Failure> FailureLatch::failure() const {
  if (failure_.state.load(std::memory_order_acquire) != 2) return {};
  return cluster::Failure{failure_.rank, failure_.code, failure_.text};
}

void FailureLatch::rethrow() const {
  const auto limit = base::Clock::now() + timing::kWriteFailure;
  while (failure_.state.load(std::memory_order_acquire) == 1)
    if (base::Clock::now() > limit)
      throw UnavailableError(
          "the group has failed, and the rank that reported it died before it had written the "
          "reason");
  throw_error(failure_.code, failure_.text);
}

void FailureLatch::fail(const cluster::Failure& failure) {
  set(failure);
  check();
  throw_error(failure.code, failure.text);  // the rank that was first died while it wrote
}

}  // namespace tutti::group
