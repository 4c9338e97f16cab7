// SPDX-License-Identifier: Apache-2.0
// What more than one Transport needs.
#pragma once

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <tutti/error.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "group/net/transport.h"

namespace tutti::group {

// Messages come and go all the time: their memory is kept. With the transport's lock held.
template <class T>
class Pool {
 public:
  T* make(T what) {
    if (free_.empty()) free_.push_back(&all_.emplace_back());
    T* const made = free_.back();
    free_.pop_back();
    *made = std::move(what);
    return made;
  }
  void drop(T* old) { free_.push_back(old); }

 private:
  std::deque<T> all_;  // all that were ever there at once
  std::vector<T*> free_;
};

// For tutti info --job: the interface that the options name. `otherwise`: what is used without one.
inline std::string describe_interface(const TransportOptions& options, const char* otherwise) {
  if (!options.interfaces.empty()) return options.interfaces + " (TUTTI_INTERFACES)";
  if (options.interface.empty())
    return fmt::format("{} (rank {} has no interface with {})", otherwise, options.rank,
                       options.address);
  return fmt::format("{}, on rank {} (it has {})", options.interface, options.rank,
                     options.address);
}

// Threads that sleep until something comes, or until another thread has taken in what they sleep
// for. All with the transport's lock held.
class Sleepers {
 public:
  Sleepers() : free_{new_eventfd()} {}
  ~Sleepers() {
    for (const int event : free_) close(event);
  }
  Sleepers(const Sleepers&) = delete;

  // Waits until there is something in the file, another thread calls wake(), or `at_most` has
  // passed. The lock is released meanwhile.
  void sleep(std::unique_lock<std::mutex>& lock, int file, std::chrono::nanoseconds at_most) {
    if (free_.empty()) free_.push_back(new_eventfd());
    const int event = free_.back();
    free_.pop_back();
    sleeping_.push_back(event);
    lock.unlock();
    pollfd files[] = {{file, POLLIN, 0}, {event, POLLIN, 0}};
    const timespec time{at_most.count() / 1'000'000'000, at_most.count() % 1'000'000'000};
    ppoll(files, 2, &time, nullptr);
    lock.lock();
    uint64_t count;
    if (std::erase(sleeping_, event) == 0) [[maybe_unused]]
      const ssize_t taken = read(event, &count, sizeof(count));
    free_.push_back(event);
  }
  // Called by a thread that has taken something in.
  void wake() {
    const uint64_t count = 1;
    for (const int event : sleeping_) [[maybe_unused]]
      const ssize_t written = write(event, &count, sizeof(count));
    sleeping_.clear();
  }

 private:
  static int new_eventfd() {
    const int file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (file < 0)
      throw ResourceExhaustedError("no file is left to wake a thread with; raise ulimit -n");
    return file;
  }

  std::vector<int> free_, sleeping_;  // eventfds: unused ones, and those of threads that sleep
};

}  // namespace tutti::group
