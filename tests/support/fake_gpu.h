// SPDX-License-Identifier: Apache-2.0
// GPUs for tests on machines that have none: devices of type GPU whose memory is the host's.
#pragma once

#include <memory>

#include "device/device.h"
#include "device/memory_pool.h"

namespace tutti::testing {

class FakeGpu : public detail::Device {
 public:
  explicit FakeGpu(int index) : Device("GPU", index) {}
  std::shared_ptr<void> allocate(size_t bytes) override {
    device::MemoryPool& pool = device::MemoryPool::host();
    return {pool.allocate(bytes), [&pool, bytes](void* data) { pool.deallocate(data, bytes); }};
  }
  bool in_host_memory() const override { return true; }
  void copy_from_host(void*, const void*, size_t) override {}
  void copy_to_host(void*, const void*, size_t) override {}
};

class FakeGpuProvider : public device::Provider {
 public:
  explicit FakeGpuProvider(int count) : count_(count) {}
  int initial_count() const override { return count_; }
  std::unique_ptr<detail::Device> make(int index) override {
    return std::make_unique<FakeGpu>(index);
  }

 private:
  int count_;
};

// From here on this process has `count` GPUs.
inline void add_fake_gpus(int count) {
  device::register_provider("GPU", std::make_unique<FakeGpuProvider>(count));
}

}  // namespace tutti::testing
