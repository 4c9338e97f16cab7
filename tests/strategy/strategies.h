// SPDX-License-Identifier: Apache-2.0
// What the tests of the strategies share.
#pragma once

#include <tutti/tutti.h>

#include <initializer_list>
#include <mutex>
#include <string>
#include <vector>

#include "base/log.h"
#include "support/cpus.h"
#include "support/expect.h"

namespace tutti::testing {

using Floats = std::vector<float>;
using Longs = std::vector<int64_t>;

// The first n logical CPUs, of which there are eight.
inline std::vector<std::string> cpus(size_t n) {
  set_logical_devices("CPU", 8);
  std::vector<std::string> names;
  for (size_t i = 0; i < n; ++i) names.push_back(cpu(i));
  return names;
}

inline Tensor number(double value, std::string_view device = {}) {
  return Tensor::scalar<float>(float(value), device);
}

// A scalar for each replica, on its device.
inline PerReplica<Tensor> numbers(std::initializer_list<double> values) {
  std::vector<Tensor> parts;
  for (const double value : values) parts.push_back(number(value, cpu(parts.size())));
  return PerReplica<Tensor>(std::move(parts));
}

// This replica's id, on its device.
inline Tensor id_of(const ReplicaContext& ctx) {
  return number(ctx.replica_id_in_sync_group(), ctx.device());
}

// Rows of one element each.
inline IndexedSlices rows(std::initializer_list<float> values,
                          std::initializer_list<int64_t> indices, std::string_view device = {}) {
  return {Tensor::of<float>(values, device), Tensor::of<int64_t>(indices, device)};
}

// While it lives, what is logged goes here.
class CapturedLog {
 public:
  CapturedLog() {
    base::set_log_sink([this](base::LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex_);
      if (level >= base::LogLevel::warning) texts_.emplace_back(text);
    });
  }
  ~CapturedLog() { base::set_log_sink(nullptr); }
  std::vector<std::string> texts() {
    std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace tutti::testing
