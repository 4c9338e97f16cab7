// SPDX-License-Identifier: Apache-2.0
#include "group/work_queue.h"

#include <fmt/format.h>

#include "base/fork.h"
#include "base/idle_cores.h"
#include "group/liveness/timing.h"
#include "job/job.h"

namespace tutti::detail {

namespace {

using base::Clock;
namespace timing = group::timing;

// Threads of this process that wait for an operation of any queue. Each may run it itself and wait
// for a rank that is of this process, too.
std::atomic<int> waiting_threads{0};

}  // namespace

struct WorkQueue::Waiting {
  explicit Waiting(WorkQueue& q) : queue(q) {
    ++queue.waiters_;
    ++waiting_threads;
  }
  ~Waiting() {
    --waiting_threads;
    if (--queue.waiters_ == 0 && !queue.queue_.empty()) queue.for_background_.notify_all();
  }
  WorkQueue& queue;
};

struct WorkQueue::Running {
  explicit Running(WorkQueue& q) : queue(q) { queue.runner_ = base::this_thread(); }
  ~Running() { queue.runner_ = nullptr; }
  WorkQueue& queue;
};

std::shared_ptr<Work::State> WorkQueue::add(std::function<void()> operation) {
  auto state = std::make_shared<Work::State>(shared_from_this());
  auto before = std::make_shared<const device::Fence>(device::Fence::here());
  pending_.fetch_add(1);
  queue_.push_back({std::move(operation), state, std::move(before), Clock::now()});
  return state;
}

Work WorkQueue::start(std::function<void()> operation) {
  std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = base::Thread([this] { work_in_background(); });
  Work work(add(std::move(operation)));
  for_background_.notify_all();
  return work;
}

void WorkQueue::run(std::function<void()> operation) {
  std::shared_ptr<Work::State> state;
  {
    std::lock_guard lock(mutex_);
    state = add(std::move(operation));
  }
  wait(*state);
}

bool WorkQueue::is_free() const {
  return pending_.load(std::memory_order_acquire) == 0 ||
         runner_.load(std::memory_order_relaxed) == base::this_thread();
}

void WorkQueue::wait(const Work::State& state) {
  if (in_job_ && base::is_forked_child())
    throw FailedPreconditionError(fmt::format("wait: {}", group::kForkedChild));
  std::unique_lock lock(mutex_);
  if (!state.done) await(state, lock);
  if (state.error) throw_error(state.error->first, state.error->second);
  state.after.wait();
}

void WorkQueue::await(const Work::State& state, std::unique_lock<std::mutex>& lock) {
  const Waiting waiting(*this);
  while (!state.done) {
    if (!runner_ && !queue_.empty())
      run_next(lock);
    else
      changed_.wait(lock, [&] { return state.done || (!runner_ && !queue_.empty()); });
  }
}

bool WorkQueue::is_done(const Work::State& state) {
  std::lock_guard lock(mutex_);
  return state.done;
}

void WorkQueue::finish(const Item& item, std::optional<std::pair<ErrorCode, std::string>> error,
                       device::Fence after) {
  item.state->error = std::move(error);
  item.state->after = std::move(after);
  item.state->done = true;
  pending_.fetch_sub(1, std::memory_order_release);
  changed_.notify_all();
}

void WorkQueue::run_next(std::unique_lock<std::mutex>& lock) {
  Item next = std::move(queue_.front());
  queue_.pop_front();
  std::optional<Running> running(*this);
  lock.unlock();
  std::optional<std::pair<ErrorCode, std::string>> error;
  device::Fence after;
  try {
    next.before->wait();
    next.operation();
    after = device::Fence::here();
  } catch (const Error& e) {
    error = {e.code(), e.what()};
  } catch (const std::exception& e) {
    error = {ErrorCode::internal, e.what()};
  }
  next.operation = nullptr;  // and its tensors, before a waiting thread goes on
  lock.lock();
  running.reset();
  finish(next, std::move(error), std::move(after));
}

void WorkQueue::close(const std::function<void()>& fail) {
  if (pending_.load()) fail();
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    for (; !queue_.empty(); queue_.pop_front())
      finish(queue_.front(),
             std::pair(ErrorCode::cancelled, "the group was left before the operation began"), {});
    for_background_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  while (runner_) base::yield();  // a thread that waits for it
}

// A thread that waits runs operations itself.
bool WorkQueue::is_up_to_background() const { return !queue_.empty() && !runner_ && !waiters_; }

void WorkQueue::work_in_background() {
  base::mark_background_thread();
  std::unique_lock lock(mutex_);
  while (true) {
    for_background_.wait(lock, [&] { return closing_ || is_up_to_background(); });
    if (closing_) return;
    lock.unlock();
    const bool idle = waiting_threads.load() || base::has_idle_core();
    lock.lock();
    if (closing_) return;
    if (!is_up_to_background()) continue;
    if (idle || Clock::now() - queue_.front().since > timing::kLateWork)
      run_next(lock);
    else
      for_background_.wait_until(lock, Clock::now() + timing::kIdleCorePoll);
  }
}

}  // namespace tutti::detail
