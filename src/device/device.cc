// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/pool_allocator.h"
#include "device/gpu.h"
#include "device/memory_pool.h"

namespace tutti {

namespace device {

namespace {

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int index) : Device("CPU", index) {}

  std::shared_ptr<void> allocate(size_t bytes) override {
    return {MemoryPool::host().allocate(bytes),
            [bytes](void* data) { MemoryPool::host().deallocate(data, bytes); },
            base::PoolAllocator<std::byte>()};
  }
  bool in_host_memory() const override { return true; }
  void copy_from_host(void*, const void*, size_t) override { unreachable(); }
  void copy_to_host(void*, const void*, size_t) override { unreachable(); }

 private:
  [[noreturn]] static void unreachable() {
    throw InternalError("a CPU's memory is host memory: there is nothing to copy");
  }
};

class CpuProvider : public Provider {
 public:
  int initial_count() const override { return 1; }
  std::unique_ptr<Device> make(int index) override { return std::make_unique<CpuDevice>(index); }
};

// Devices are made once and kept for good, so that a Device& never dangles; a count says how many
// of them are there now.
class Registry {
 public:
  static Registry& instance() {
    static Registry* const registry = new Registry;
    return *registry;
  }

  Registry() { add("CPU", std::make_unique<CpuProvider>()); }

  void add(std::string type, std::unique_ptr<Provider> provider) {
    std::lock_guard lock(mutex_);
    Entry& entry = types_[std::move(type)];
    entry.provider = std::move(provider);
    entry.count = entry.provider->initial_count();
    grow(entry);
  }

  // Null if there is none.
  Device* find(std::string_view type, int index) {
    if (type == "GPU") look_for_gpus();
    std::lock_guard lock(mutex_);
    const auto found = types_.find(type);
    if (found == types_.end() || index >= found->second.count) return nullptr;
    return found->second.devices[size_t(index)].get();
  }

  void set_count(std::string_view type, int count) {
    if (type == "GPU") look_for_gpus();
    std::lock_guard lock(mutex_);
    const auto found = types_.find(type);
    if (found == types_.end())
      throw InvalidArgumentError(
          fmt::format("set_logical_devices: this process has no devices of type \"{}\" to split; "
                      "there are {}{}",
                      type, names_of_types(), type == "GPU" ? ". No GPU: " + why_no_gpus() : ""));
    if (count < 1)
      throw InvalidArgumentError(
          fmt::format("set_logical_devices: {} devices were asked for, expected 1 or more", count));
    Entry& entry = found->second;
    for (int i = count; i < entry.count; ++i)
      if (const int64_t tensors = entry.devices[size_t(i)]->tensors; tensors > 0)
        throw FailedPreconditionError(
            fmt::format("set_logical_devices: {} would go away but still holds {} tensor{}",
                        entry.devices[size_t(i)]->name(), tensors, tensors == 1 ? "" : "s"));
    entry.count = count;
    ++generation_;
    grow(entry);
  }

  // Changes whenever devices come or go.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  std::vector<std::string> list(std::string_view type) {
    if (type.empty() || type == "GPU") look_for_gpus();
    std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, entry] : types_)
      if (type.empty() || type == name)
        for (int i = 0; i < entry.count; ++i) names.push_back(entry.devices[size_t(i)]->name());
    return names;
  }

 private:
  struct Entry {
    std::unique_ptr<Provider> provider;
    std::vector<std::unique_ptr<Device>> devices;
    int count = 0;
  };

  // The first caller that asks for GPUs loads the module that knows them, unless there are some
  // already.
  void look_for_gpus() {
    std::call_once(looked_for_gpus_, [&] {
      {
        std::lock_guard lock(mutex_);
        if (types_.contains("GPU")) return;
      }
      if (auto provider = gpu_provider()) add("GPU", std::move(provider));
    });
  }

  void grow(Entry& entry) {
    while (int(entry.devices.size()) < entry.count)
      entry.devices.push_back(entry.provider->make(int(entry.devices.size())));
  }

  std::string names_of_types() {
    std::string names;
    for (const auto& [name, entry] : types_) names += (names.empty() ? "" : ", ") + name;
    return names;
  }

  std::mutex mutex_;
  std::once_flag looked_for_gpus_;
  std::atomic<uint64_t> generation_{0};
  std::map<std::string, Entry, std::less<>> types_;
};

// The parts that this thread's scopes give, and the device they select once it has been asked for.
struct ScopeState {
  DeviceSpec spec;
  Device* device = nullptr;
  uint64_t generation = 0;  // of the registry that `device` was found in
  int depth = 0;
};
thread_local ScopeState scope;

}  // namespace

void register_provider(std::string type, std::unique_ptr<Provider> provider) {
  Registry::instance().add(std::move(type), std::move(provider));
}

Device& find(std::string_view name, std::string_view what) {
  std::string canonical;
  try {
    canonical = resolve(name);
  } catch (const InvalidArgumentError& e) {
    throw InvalidArgumentError(fmt::format("{}: {}", what, e.what()));
  }
  const DeviceSpec spec = DeviceSpec::parse(canonical);
  Device* const device = Registry::instance().find(*spec.type, *spec.index);
  if (device && device->name() == canonical) return *device;
  std::string there;
  for (const std::string& n : list_logical_devices()) there += (there.empty() ? "" : ", ") + n;
  const std::string remedy =
      *spec.type == "CPU" && canonical.starts_with("/job:localhost/replica:0/task:0/")
          ? fmt::format("; set_logical_devices(\"CPU\", {}) would make it",
                        int64_t(*spec.index) + 1)
      : *spec.type == "GPU" && !why_no_gpus().empty() ? ". No GPU: " + why_no_gpus()
                                                      : "";
  throw InvalidArgumentError(fmt::format(
      "{}: there is no device {} in this process, which has {}{}", what, canonical, there, remedy));
}

Device& current() {
  const uint64_t generation = Registry::instance().generation();
  if (!scope.device || scope.generation != generation) {
    scope.device = &find("", "device scope");
    scope.generation = generation;
  }
  return *scope.device;
}

ScopeSwitch::ScopeSwitch(std::string_view device)
    : outer_(std::exchange(scope.spec, DeviceSpec::parse(device))),
      outer_depth_(std::exchange(scope.depth, 0)) {
  scope.device = nullptr;
}

ScopeSwitch::~ScopeSwitch() {
  scope.spec = std::move(outer_);
  scope.depth = outer_depth_;
  scope.device = nullptr;
}

int scope_depth() { return scope.depth; }

}  // namespace device

namespace detail {
Device::Device(std::string type, int index)
    : type_(std::move(type)),
      index_(index),
      name_(canonicalize(fmt::format("/device:{}:{}", type_, index))) {}
}  // namespace detail

std::string current_device() { return resolve(""); }

std::string resolve(std::string_view device) {
  return canonicalize(device, device::scope.spec.to_string());
}

DeviceScope::DeviceScope(std::string_view device) : outer_(device::scope.spec) {
  device::scope.spec = outer_.merged_with(DeviceSpec::parse(device));
  device::scope.device = nullptr;
  ++device::scope.depth;
}

DeviceScope::~DeviceScope() {
  device::scope.spec = std::move(outer_);
  device::scope.device = nullptr;
  --device::scope.depth;
}

void set_logical_devices(std::string_view type, int count) {
  device::Registry::instance().set_count(type, count);
}

std::vector<std::string> list_logical_devices(std::string_view type) {
  return device::Registry::instance().list(type);
}

void release_cached_memory() {
  device::MemoryPool::host().release_cached();
  device::release_cached_gpu_memory();
}

}  // namespace tutti
