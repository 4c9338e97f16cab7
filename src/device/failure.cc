// SPDX-License-Identifier: Apache-2.0
#include "device/failure.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

namespace tutti::device {

namespace {

struct Failures {
  std::mutex mutex;
  std::map<int, std::pair<ErrorCode, std::string>> by_gpu;
  std::atomic<bool> any = false;
};

// Never destroyed: threads may wait for a GPU while the process ends.
Failures& failures() {
  static auto* const failures = new Failures;
  return *failures;
}

}  // namespace

void fail(int gpu, ErrorCode code, const std::string& text) {
  Failures& all = failures();
  std::lock_guard lock(all.mutex);
  all.by_gpu.try_emplace(gpu, code, text);
  all.any.store(true, std::memory_order_release);
}

void throw_failure(int gpu) {
  Failures& all = failures();
  if (!all.any.load(std::memory_order_acquire)) return;
  std::unique_lock lock(all.mutex);
  const auto found = all.by_gpu.find(gpu);
  if (found == all.by_gpu.end()) return;
  const auto [code, text] = found->second;
  all.by_gpu.erase(found);
  all.any.store(!all.by_gpu.empty());
  lock.unlock();
  throw_error(code, text);
}

}  // namespace tutti::device
