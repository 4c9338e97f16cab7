// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/error.h>
#include <tutti/mirrored_strategy.h>

#include <algorithm>

#include "device/device.h"

namespace tutti {

namespace {

// Canonical names; all devices if none is named.
std::vector<std::string> chosen(const std::vector<std::string>& devices) {
  std::vector<std::string> names;
  for (const std::string& name : devices) {
    if (name.empty()) throw InvalidArgumentError("MirroredStrategy: a device name is empty");
    names.push_back(device::find(name, "MirroredStrategy").name());
    if (std::find(names.begin(), names.end() - 1, names.back()) != names.end() - 1)
      throw InvalidArgumentError(
          fmt::format("MirroredStrategy: the device {} is named twice", names.back()));
  }
  if (names.empty()) names = list_logical_devices("GPU");
  if (names.empty()) names = list_logical_devices("CPU");
  return names;
}

}  // namespace

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices,
                                   std::shared_ptr<CrossDeviceOps> cross_device_ops)
    : Strategy(chosen(devices),
               cross_device_ops ? std::move(cross_device_ops) : choose_the_best(chosen(devices))) {}

MirroredStrategy::MirroredStrategy(std::shared_ptr<CrossDeviceOps> cross_device_ops)
    : MirroredStrategy(std::vector<std::string>{}, std::move(cross_device_ops)) {}

}  // namespace tutti
