// SPDX-License-Identifier: Apache-2.0
// A thread of execution that runs on the thread of its world, until it pauses.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace tutti::sim {

// Stacks of one size, most of which is never touched. Not thread-safe.
class Stacks {
 public:
  static constexpr size_t kBytes = 256 << 10;

  ~Stacks();
  std::byte* take();  // the lowest address
  void give_back(std::byte* stack) { free_.push_back(stack); }

 private:
  std::vector<std::byte*> slabs_, free_;
};

// For use on one thread.
class Fiber {
 public:
  Fiber(Stacks& stacks, std::function<void()> body);
  ~Fiber();  // it must be over, or never have begun
  Fiber(const Fiber&) = delete;

  // Runs it until it pauses or is over. `body` throws nothing.
  void resume();
  // Called by the fiber itself.
  void pause();
  bool is_over() const { return over_; }

 private:
  void run();
  void switch_to(void*& from, void* to);

  Stacks& stacks_;
  std::byte* const stack_;
  std::function<void()> body_;
  void* context_;            // of the fiber while it is paused
  void* resumer_ = nullptr;  // of the thread while the fiber runs
  // The exceptions that are being handled on the side that does not run.
  struct {
    void* caught = nullptr;
    unsigned uncaught = 0;
  } exceptions_;
  bool over_ = false;
  void* sanitizer_ = nullptr;  // what a sanitizer knows this fiber by, and the thread
  void* sanitizer_thread_ = nullptr;
  const void* thread_stack_ = nullptr;
  size_t thread_stack_bytes_ = 0;
};

}  // namespace tutti::sim
