// SPDX-License-Identifier: Apache-2.0
// Work: an operation of a group that goes on in the background.
#pragma once

#include <memory>
#include <utility>

namespace tutti::detail {
class WorkQueue;
}

#pragma GCC visibility push(default)

namespace tutti {

// A value; copies stand for the same operation. It runs while a core is idle, and after
// 100 ms in any case; a thread that waits for it runs it itself. So the threads of the program that
// compute keep their cores.
class Work {
 public:
  Work() = default;
  // Returns when the operation is done; on GPUs, what this thread enqueues from here on comes after
  // it. Throws its error, every time it is asked.
  void wait();
  bool done() const;  // never waits

 private:
  friend class detail::WorkQueue;
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace tutti

#pragma GCC visibility pop
