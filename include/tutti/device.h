// SPDX-License-Identifier: Apache-2.0
// Device names, and the logical devices of this process.
//
// A device is named "/job:J/replica:R/task:T/device:TYPE:INDEX"; every part may be left out, the
// leading slash too, and "cpu:1" is short for "device:CPU:1". Devices are compared by canonical
// name, so all spellings of a device are one. All functions are safe to call from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// A device name taken apart. Parts that were not given are empty.
struct DeviceSpec {
  std::optional<std::string> job = {};   // "localhost" if there is no job
  std::optional<int> replica = {};       // 0, if Tutti names it
  std::optional<int> task = {};          // a worker's number within its job
  std::optional<std::string> type = {};  // "CPU", "GPU", or a name of the user's own
  std::optional<int> index = {};         // among the task's devices of this type

  // InvalidArgumentError if `name` is not a device name.
  static DeviceSpec parse(std::string_view name);

  // This spec with every part that `other` gives taken from there.
  DeviceSpec merged_with(const DeviceSpec& other) const;

  std::string to_string() const;  // a type without an index prints as "device:CPU:*"
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

// The full name of `device`: what it leaves out comes from `fallback`, then from
// "/job:localhost/replica:0/task:0/device:CPU:0". Says nothing about whether there is such a
// device.
std::string canonicalize(std::string_view device, std::string_view fallback = {});

// The full name of `device`, with the current device scope as the fallback.
std::string resolve(std::string_view device);

// The name of the CPU that hosts `device`: the same job, replica and task, CPU:0.
std::string host_of(std::string_view device);

// "GPU:0" to "GPU:n-1", or "CPU:0" if n is 0, as canonical names.
std::vector<std::string> local_devices_from_num_gpus(int num_gpus);

// Splits the machine's devices of one type ("CPU" or "GPU") into `count` logical devices. Logical
// devices behave like distinct ones and share the hardware. May be called again;
// FailedPreconditionError if a device that would go away still holds tensors. Starts as one CPU.
void set_logical_devices(std::string_view type, int count);

// The canonical names of this process's devices of one type, or of all of them.
std::vector<std::string> list_logical_devices(std::string_view type = {});

// While it lives, tensors made by this thread land on `device` unless they name another. Scopes
// nest: an inner one overrides the parts it gives. Must be destroyed by the thread that made it,
// the innermost first.
class DeviceScope {
 public:
  explicit DeviceScope(std::string_view device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  DeviceSpec outer_;
};

// The canonical name of the device that this thread's scopes select; CPU:0 outside any scope.
std::string current_device();

// Gives back to the system the device memory that Tutti holds in reserve. Reserves never exceed
// what was once in use.
void release_cached_memory();

}  // namespace tutti

#pragma GCC visibility pop
