// SPDX-License-Identifier: Apache-2.0
#include "base/world.h"

#include <sched.h>
#include <time.h>

namespace tutti::base {

namespace detail {
thread_local constinit World* world = nullptr;
}

std::chrono::system_clock::time_point time_of_day() {
  using std::chrono::system_clock;
  if (World* const simulated = world())
    return system_clock::time_point(simulated->now().time_since_epoch());
  timespec now{};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);  // a few nanoseconds, and good to a few milliseconds
  return system_clock::time_point(std::chrono::seconds(now.tv_sec) +
                                  std::chrono::nanoseconds(now.tv_nsec));
}

void sleep_for(std::chrono::nanoseconds time) {
  if (World* const simulated = world())
    simulated->wait(nullptr, simulated->now() + time);
  else
    std::this_thread::sleep_for(time);
}

void yield() {
  // In a world where nothing takes time, what is waited for by yielding would never come.
  if (World* const simulated = world())
    simulated->wait(nullptr, simulated->now() + std::chrono::microseconds(1),
                    World::In::destructor);
  else
    sched_yield();
}

const void* this_thread() {
  thread_local constinit char mark = 0;
  return world() ? world()->thread() : &mark;
}

void Mutex::lock_later() {
  World* const simulated = world();
  if (!simulated) return mutex_.lock();
  ++waiters_;
  while (!mutex_.try_lock()) simulated->wait(this, Clock::time_point::max());
  --waiters_;
}

void Mutex::wake() {
  if (World* const simulated = world()) simulated->wake(this);
}

void Condition::notify_all() {
  if (World* const simulated = world())
    simulated->wake(this);
  else
    real_.notify_all();
}

void Condition::wait_until(std::unique_lock<std::mutex>& lock, Clock::time_point until) {
  if (World* const simulated = world()) {
    lock.unlock();
    simulated->wait(this, until);
    lock.lock();
  } else if (until == Clock::time_point::max()) {
    real_.wait(lock);
  } else {
    real_.wait_until(lock, until);
  }
}

Thread::Thread(std::function<void()> body) {
  World* const simulated = world();
  if (!simulated) {
    real_ = std::thread(std::move(body));
    return;
  }
  simulated_ = std::make_shared<bool>(false);
  // Over when it has run, or if the world ends before it could.
  const std::shared_ptr<void> end(nullptr, [over = simulated_](void*) {
    *over = true;
    if (world()) world()->wake(over.get());
  });
  simulated->spawn([end, body = std::move(body)] { body(); });
}

void Thread::join() {
  if (!simulated_) return real_.join();
  while (!*simulated_)
    world()->wait(simulated_.get(), Clock::time_point::max(), World::In::destructor);
  simulated_ = nullptr;
}

}  // namespace tutti::base
