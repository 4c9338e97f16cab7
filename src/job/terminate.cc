// SPDX-License-Identifier: Apache-2.0
#include "job/terminate.h"

#include <cxxabi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <typeinfo>

#include "base/fork.h"

namespace tutti::group {

namespace {

constexpr std::chrono::seconds kPublishing{1};

// All that the handler uses is here before it runs.
enum State : uint32_t { kRunning, kTerminating, kDescribed, kPublished };
std::atomic<uint32_t> state{kRunning};
char line[2048];          // "rank 1 failed: TEXT"
const char* text = line;  // within it
std::terminate_handler previous = nullptr;

void append(const char* what) {
  const size_t used = std::strlen(line);
  const size_t bytes = std::min(std::strlen(what), sizeof(line) - 2 - used);  // and a line's end
  std::memcpy(line + used, what, bytes);
}

void describe_exception() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (!type) return append("std::terminate was called without an exception");
  try {
    throw;
  } catch (const std::exception& error) {
    append(error.what());
  } catch (...) {
    append("an exception of type ");
    int status = 0;
    char* const name = abi::__cxa_demangle(type->name(), nullptr, nullptr, &status);
    append(name ? name : type->name());
  }
}

bool dumps_core() {
  rlimit limit{};
  return getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur > 0;
}

[[noreturn]] void terminate() {
  const bool own_handler = previous && previous != __gnu_cxx::__verbose_terminate_handler;
  if (base::is_forked_child()) {  // which has no thread to publish, and no part in the job
    if (previous) previous();
    std::abort();
  }
  uint32_t running = kRunning;
  if (!state.compare_exchange_strong(running, kTerminating)) {
    // Another thread is about to end the process, or what() of this one's exception throws.
    std::this_thread::sleep_for(2 * kPublishing);
    std::abort();
  }
  describe_exception();
  state.store(kDescribed);
  state.notify_all();
  const auto until = std::chrono::steady_clock::now() + kPublishing;
  while (state.load() != kPublished && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (own_handler) previous();
  line[std::strlen(line)] = '\n';
  if (write(STDERR_FILENO, line, std::strlen(line)) < 0 || dumps_core()) std::abort();
  _exit(1);
}

}  // namespace

void publish_uncaught_exceptions(int rank, void (*publish)(const char* text)) {
  static std::atomic<bool> installed{false};
  if (installed.exchange(true)) return;
  text = line + std::snprintf(line, sizeof(line), "rank %d failed: ", rank);
  std::thread([publish] {
    for (uint32_t now; (now = state.load()) != kDescribed;) state.wait(now);
    publish(text);
    std::fflush(stdout);  // here, since the throwing thread may hold its lock
    state.store(kPublished);
  }).detach();
  previous = std::set_terminate(terminate);
}

}  // namespace tutti::group
