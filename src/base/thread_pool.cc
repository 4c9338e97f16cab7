// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <system_error>

#include "base/log.h"
#include "base/settings.h"
#include "base/topology.h"

namespace tutti::base {

struct ThreadPool::Loop {
  Call call;
  const void* body;
  int64_t chunks;
  alignas(64) std::atomic<int64_t> next{0};
  std::atomic<int> helpers{0};  // workers inside; changed under the pool's mutex

  void take_chunks() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) call(body, i);
  }
};

ThreadPool& ThreadPool::shared() {
  // Never destroyed: a worker may outlive main, and joining threads in static destructors is how
  // programs hang.
  static ThreadPool* const pool =
      new ThreadPool(settings().threads > 0 ? settings().threads : topology().cores);
  return *pool;
}

ThreadPool::ThreadPool(int threads) { start(threads); }
ThreadPool::~ThreadPool() { stop(); }

int ThreadPool::threads() const {
  std::lock_guard lock(mutex_);
  return int(workers_.size()) + 1;
}

void ThreadPool::resize(int threads) {
  stop();
  start(threads);
}

void ThreadPool::start(int threads) {
  std::lock_guard lock(mutex_);
  stopping_ = false;
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& e) {
    // Fewer do as well: the caller of a loop takes the chunks that no other thread takes.
    log(LogLevel::warning, fmt::format("only {} of {} threads could be started: {}",
                                       workers_.size() + 1, threads, e.what()));
  }
}

void ThreadPool::stop() {
  std::vector<std::thread> workers;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    workers.swap(workers_);
  }
  wake_.notify_all();
  for (std::thread& worker : workers) worker.join();
}

void ThreadPool::run(int64_t chunks, Call call, const void* body) {
  if (chunks <= 1) {
    if (chunks == 1) call(body, 0);
    return;
  }
  Loop loop{.call = call, .body = body, .chunks = chunks};
  {
    std::lock_guard lock(mutex_);
    loops_.push_back(&loop);
  }
  wake_.notify_all();
  loop.take_chunks();
  std::unique_lock lock(mutex_);
  loops_.remove(&loop);
  done_.wait(lock, [&] { return loop.helpers == 0; });
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !loops_.empty(); });
    if (stopping_) return;
    Loop& loop = *loops_.front();
    ++loop.helpers;
    lock.unlock();
    loop.take_chunks();
    lock.lock();
    loops_.remove(&loop);  // nothing is left to take
    if (--loop.helpers == 0) done_.notify_all();
  }
}

}  // namespace tutti::base
