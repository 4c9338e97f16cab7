// What more than one Transport needs.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <tutti/error.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <vector>

namespace tutti::group {

// Messages come and go all the time: their memory is kept. With the transport's lock held.
template <class T>
class Pool {
 public:
  T* make(const T& what) {
    if (free_.empty()) free_.push_back(&all_.emplace_back());
    T* const made = free_.back();
    free_.pop_back();
    *made = what;
    return made;
  }
  void drop(T* old) { free_.push_back(old); }

 private:
  std::deque<T> all_;  // all that were ever there at once
  std::vector<T*> free_;
};

// Threads that sleep until something comes, or until another thread has taken in what they sleep
// for.
class Sleepers {
 public:
  Sleepers() : wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE)) {
    if (wake_ < 0)
      throw ResourceExhaustedError(
          "no file is left to wake a thread with: a rank needs one for every other rank, and some "
          "more; raise ulimit -n");
  }
  ~Sleepers() { close(wake_); }
  Sleepers(const Sleepers&) = delete;

  // With the transport's lock held, where there is something to sleep for: whoever takes anything
  // in from now on wakes this thread.
  void enter() { count_.fetch_add(1); }
  // Then, without the lock: until there is something in the file.
  void sleep(int file, std::chrono::nanoseconds at_most) {
    pollfd files[] = {{file, POLLIN, 0}, {wake_, POLLIN, 0}};
    const timespec time{at_most.count() / 1'000'000'000, at_most.count() % 1'000'000'000};
    ppoll(files, 2, &time, nullptr);
    count_.fetch_sub(1);
    uint64_t mine;
    if (files[1].revents & POLLIN) [[maybe_unused]]
      const ssize_t taken = read(wake_, &mine, sizeof(mine));
  }
  // With the lock held, by who has taken something in.
  void wake() {
    const uint64_t all = count_.load();
    if (all == 0) return;
    [[maybe_unused]] const ssize_t written = write(wake_, &all, sizeof(all));
  }

 private:
  const int wake_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace tutti::group
