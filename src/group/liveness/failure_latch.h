// SPDX-License-Identifier: Apache-2.0
// The first failure of a group. It is published before it is thrown, and stays: every later call on
// any rank throws the same.
#pragma once

#include <tutti/error.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cluster/coordination.h"

namespace tutti::group {

// Zeroed: there is none. It may lie in memory that other processes map.
struct SharedFailure {
  std::atomic<uint32_t> state;  // 0: none, 1: being written, 2: there
  ErrorCode code;
  int32_t rank;  // of the job, at fault
  char text[4096 - 12];
};

// Safe to use from any thread.
class FailureLatch {
 public:
  explicit FailureLatch(SharedFailure& failure) : failure_(failure) {}
  FailureLatch(const FailureLatch&) = delete;

  // The rank of a failure is that of the job.
  struct Event {
    const cluster::Failure& failure;
    bool from_peer;  // which tells all ranks itself
  };
  // Called after this process has set the latch, to wake threads or to tell other hosts. Before the
  // latch is used.
  void on_set(std::function<void(const Event&)> hook) { hooks_.push_back(std::move(hook)); }

  bool is_set() const { return failure_.state.load(std::memory_order_relaxed) != 0; }
  // Has no effect if there was a failure before.
  void set(const cluster::Failure& failure, bool from_peer = false);
  // Empty if there is none, or it is being written.
  std::optional<cluster::Failure> failure() const;
  // Throws the failure, if there is one.
  void check() const {
    if (failure_.state.load(std::memory_order_acquire) != 0) rethrow();
  }
  // Sets it, and throws the first.
  [[noreturn]] void fail(const cluster::Failure& failure);

 private:
  void rethrow() const;

  SharedFailure& failure_;
  std::vector<std::function<void(const Event&)>> hooks_;
};

}  // namespace tutti::group
