// SPDX-License-Identifier: Apache-2.0
// Where time passes and threads wait: on this machine, or in a simulated world, whose clock jumps
// from event to event and whose threads are fibers of one thread. What waits does so by the names
// below, and runs in both.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace tutti::base {

enum class LogLevel;

// A simulated world, as the code of one of its processes sees it.
class World {
 public:
  using Time = std::chrono::steady_clock::time_point;

  virtual Time now() = 0;
  // Waits for wake(key), or until `until`. At the end of the world it throws what ends the thread;
  // in a destructor it must not, and returns.
  enum class In { function, destructor };
  virtual void wait(const void* key, Time until, In place = In::function) = 0;
  virtual void wake(const void* key) = 0;
  // A thread of the process that calls this.
  virtual void spawn(std::function<void()> body) = 0;
  // What tells the thread that calls this from all others.
  virtual const void* thread() = 0;
  // The process works on this many bytes, for which time passes. Returns whether there are bytes:
  // false in a world of lengths alone.
  virtual bool works_on(size_t bytes) = 0;
  virtual void log(LogLevel level, const std::string& text) = 0;
  // The job of the process; null before it has joined.
  virtual void*& job() = 0;

 protected:
  ~World() = default;
};

namespace detail {
#if defined(__GNUC__) && !defined(__clang__)
[[gnu::tls_model("initial-exec")]]
#endif
extern thread_local constinit World* world;
}  // namespace detail

// Of this thread; null: the machine.
inline World* world() { return detail::world; }

// Passes the time of working on this many bytes. True if the world has lengths alone, so that there
// is nothing to compute.
inline bool is_length_only(size_t bytes) {
  World* const simulated = world();
  return simulated && !simulated->works_on(bytes);
}

// The steady clock.
struct Clock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() {
    World* const simulated = world();
    return simulated ? simulated->now() : std::chrono::steady_clock::now();
  }
};

// The time of day, coarse but cheap.
std::chrono::system_clock::time_point time_of_day();

void sleep_for(std::chrono::nanoseconds time);
// To let other threads run.
void yield();
// What tells the thread that calls this from all others that run.
const void* this_thread();

// A mutex that may be held while its thread waits for something else.
class Mutex {
 public:
  void lock() {
    if (!mutex_.try_lock()) lock_later();
  }
  void unlock() {
    mutex_.unlock();
    if (waiters_.load(std::memory_order_relaxed)) [[unlikely]]
      wake();
  }

 private:
  void lock_later();
  void wake();

  std::mutex mutex_;
  std::atomic<int> waiters_{0};  // fibers
};

// A condition variable.
class Condition {
 public:
  void notify_all();
  // Returns after notify_all, at `until`, or for no reason.
  void wait_until(std::unique_lock<std::mutex>& lock, Clock::time_point until);
  template <class Predicate>
  void wait(std::unique_lock<std::mutex>& lock, Predicate is_true) {
    while (!is_true()) wait_until(lock, Clock::time_point::max());
  }
  template <class Predicate>
  bool wait_until(std::unique_lock<std::mutex>& lock, Clock::time_point until, Predicate is_true) {
    while (!is_true()) {
      if (Clock::now() >= until) return false;
      wait_until(lock, until);
    }
    return true;
  }
  template <class Predicate>
  bool wait_for(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds at_most,
                Predicate is_true) {
    return wait_until(lock, Clock::now() + at_most, is_true);
  }

 private:
  std::condition_variable real_;
};

// A thread, joined before it is destroyed.
class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body);
  bool joinable() const { return real_.joinable() || simulated_; }
  void join();

 private:
  std::thread real_;
  std::shared_ptr<bool> simulated_;  // whether it is over
};

}  // namespace tutti::base
