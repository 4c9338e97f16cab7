// SPDX-License-Identifier: Apache-2.0
// The threads of a strategy's replicas, kept between runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace tutti::strategy {

class ReplicaThreads {
 public:
  // The threads start with the first run.
  explicit ReplicaThreads(int replicas) : replicas_(replicas) {}
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // fn(i) for every i in [0, replicas), all at the same time, 0 on the calling thread; returns when
  // all have. fn must not throw. One run at a time.
  void run(const std::function<void(int)>& fn);

 private:
  void work(int replica);

  const int replicas_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* fn_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<uint32_t> run_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
};

}  // namespace tutti::strategy
