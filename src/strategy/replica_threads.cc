// SPDX-License-Identifier: Apache-2.0
#include "strategy/replica_threads.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <system_error>

#include "base/spin.h"
#include "base/topology.h"

namespace tutti::strategy {

namespace {

// Waits until `value` is no longer `old`. Spinning pays only if the others have cores of their
// own to run on.
void wait_while(const std::atomic<uint32_t>& value, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    base::pause();
  }
  value.wait(old, std::memory_order_acquire);
}

int spins_for(int replicas) { return base::topology().cores >= replicas ? 2000 : 50; }

}  // namespace

ReplicaThreads::~ReplicaThreads() {
  stopping_ = true;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ReplicaThreads::run(const std::function<void(int)>& fn) {
  fn_ = &fn;
  running_.store(uint32_t(replicas_ - 1), std::memory_order_relaxed);
  while (int(threads_.size()) < replicas_ - 1) {
    const int replica = int(threads_.size()) + 1;
    try {
      threads_.emplace_back([this, replica] { work(replica); });
    } catch (const std::system_error& e) {
      throw ResourceExhaustedError(
          fmt::format("run: cannot start the thread of replica {}: {}", replica, e.what()));
    }
  }
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  fn(0);
  for (uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;)
    wait_while(running_, left, spins_for(replicas_));
}

void ReplicaThreads::work(int replica) {
  const int spins = spins_for(replicas_);
  for (uint32_t seen = 0;;) {
    wait_while(run_, seen, spins);
    const uint32_t now = run_.load(std::memory_order_acquire);
    if (now == seen) continue;
    seen = now;
    if (stopping_) return;
    (*fn_)(replica);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

}  // namespace tutti::strategy
