// SPDX-License-Identifier: Apache-2.0
// The operations of a group that were started in the background, in their order.
//
// A thread that waits for one of them runs those before it, and it. Before that a thread of the
// queue's own does, if a core is idle: while all cores compute it would only slow them down. It
// also does if a thread of this process waits for another operation, which may need this one, or if
// an operation is late.
#pragma once

#include <tutti/error.h>
#include <tutti/work.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/world.h"
#include "device/gpu.h"

namespace tutti {

struct Work::State {
  explicit State(std::shared_ptr<detail::WorkQueue> q) : queue(std::move(q)) {}

  const std::shared_ptr<detail::WorkQueue> queue;
  // The queue's mutex guards these.
  bool done = false;
  // The error, kept as text: an exception is never shared between threads.
  std::optional<std::pair<ErrorCode, std::string>> error = {};
  device::Fence after = {};  // what it has enqueued on GPUs
};

namespace detail {

// Safe to use from any thread.
class WorkQueue : public std::enable_shared_from_this<WorkQueue> {
 public:
  // `in_job`: of several processes.
  explicit WorkQueue(bool in_job) : in_job_(in_job) {}

  Work start(std::function<void()> operation);
  // After all that was started before, on this thread.
  void run(std::function<void()> operation);
  // Whether nothing waits or runs, or this thread runs an operation of it.
  bool is_free() const;

  void wait(const Work::State& state);
  bool is_done(const Work::State& state);

  // Cancels what has not begun, and returns when nothing runs any more. `fail` is called if
  // something was left: it ends what runs.
  void close(const std::function<void()>& fail);

 private:
  struct Item {
    std::function<void()> operation;
    std::shared_ptr<Work::State> state;
    std::shared_ptr<const device::Fence> before;  // what its caller has enqueued on GPUs
    base::Clock::time_point since;
  };

  struct Waiting;
  struct Running;

  // These need the mutex.
  std::shared_ptr<Work::State> add(std::function<void()> operation);
  void finish(const Item& item, std::optional<std::pair<ErrorCode, std::string>> error,
              device::Fence after);
  bool is_up_to_background() const;
  void await(const Work::State& state, std::unique_lock<std::mutex>& lock);
  void run_next(std::unique_lock<std::mutex>& lock);

  void work_in_background();

  const bool in_job_;
  std::mutex mutex_;
  base::Condition changed_, for_background_;
  std::deque<Item> queue_;
  std::atomic<int> pending_{0};               // queued or running
  std::atomic<const void*> runner_{nullptr};  // the thread that runs one
  int waiters_ = 0;
  bool closing_ = false;
  base::Thread thread_;
};

}  // namespace detail
}  // namespace tutti
