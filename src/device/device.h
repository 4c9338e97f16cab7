// SPDX-License-Identifier: Apache-2.0
// A logical device: its name, its memory, and how bytes get in and out of it. The provider of CPUs
// is in device.cc, that of GPUs in gpu.cc; tests register one of fake GPUs.
#pragma once

#include <tutti/device.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tutti::detail {

// Lives as long as the process, so a reference is always good. All methods may be called from any
// thread.
class Device {
 public:
  Device(std::string type, int index);
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }  // canonical
  const std::string& type() const { return type_; }
  int index() const { return index_; }
  // The number of the GPU that holds its memory; devices of one GPU share it. -1: host memory.
  virtual int gpu() const { return -1; }

  // Pooled, 64-byte aligned memory that goes back to the pool with the last reference.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;
  // Can the CPU read and write it directly? Then the two copies below are never called.
  virtual bool in_host_memory() const = 0;
  // Both run after what was enqueued on the device before. The first returns when `from` has been
  // read, the second when the bytes have arrived.
  virtual void copy_from_host(void* to, const void* from, size_t bytes) = 0;
  virtual void copy_to_host(void* to, const void* from, size_t bytes) = 0;

  // Called when a tensor is released. What this thread has enqueued may still use its memory, which
  // other tensors may share.
  virtual void settle() noexcept {}

  // Tensors that are on this device now.
  std::atomic<int64_t> tensors{0};

 private:
  std::string type_;
  int index_;
  std::string name_;
};

}  // namespace tutti::detail

namespace tutti::device {

using detail::Device;

// Makes the logical devices of one type.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual int initial_count() const = 0;
  virtual std::unique_ptr<Device> make(int index) = 0;
};
void register_provider(std::string type, std::unique_ptr<Provider> provider);

// The device of this name, resolved against the current scope. InvalidArgumentError, quoting the
// name, if it is malformed or there is no such device; `what` starts the text.
Device& find(std::string_view name, std::string_view what);

// The current device of this thread.
Device& current();

// While it lives, this thread's device scopes are set aside, and `device` stands in their place;
// empty: none.
class ScopeSwitch {
 public:
  explicit ScopeSwitch(std::string_view device);
  ~ScopeSwitch();
  ScopeSwitch(const ScopeSwitch&) = delete;
  ScopeSwitch& operator=(const ScopeSwitch&) = delete;

 private:
  DeviceSpec outer_;
  int outer_depth_;
};

// How many DeviceScopes this thread is inside of.
int scope_depth();

}  // namespace tutti::device
