// SPDX-License-Identifier: Apache-2.0
// A pool of threads that share out the chunks of a loop.
//
// The calling thread works too and takes whatever no other thread has taken, so a loop ends even
// when every other thread is busy, and small loops cost no hand-off. Any number of loops may run at
// once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace tutti::base {

class ThreadPool {
 public:
  // The pool of this process: TUTTI_THREADS threads, or one per core. Never destroyed.
  static ThreadPool& shared();

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;       // the caller of a loop included
  void resize(int threads);  // while no loop runs

  // body(i) for every i in [0, chunks), each once, in no particular order. `body` must not throw.
  template <class Body>
  void for_each(int64_t chunks, const Body& body) {
    run(
        chunks, [](const void* b, int64_t i) { (*static_cast<const Body*>(b))(i); }, &body);
  }

 private:
  struct Loop;
  using Call = void (*)(const void* body, int64_t chunk);

  void run(int64_t chunks, Call call, const void* body);
  void work();
  void start(int threads);
  void stop();

  mutable std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::list<Loop*> loops_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tutti::base
