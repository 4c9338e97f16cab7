// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/destinations.h>
#include <tutti/error.h>

#include <algorithm>

#include "tensor/tensor_impl.h"

namespace tutti {

Destinations::Destinations(std::string_view device) { add(device); }

Destinations::Destinations(const std::vector<std::string>& devices) {
  for (const std::string& device : devices) {
    add(device);
    if (std::find(devices_.begin(), devices_.end() - 1, devices_.back()) != devices_.end() - 1)
      throw InvalidArgumentError(
          fmt::format("destinations: the list names {} twice", devices_.back()->name()));
  }
  check_not_empty();
}

Destinations::Destinations(std::initializer_list<std::string_view> devices)
    : Destinations(std::vector<std::string>(devices.begin(), devices.end())) {}

void Destinations::add(std::string_view name) {
  if (name.empty()) throw InvalidArgumentError("destinations: the device name is empty");
  devices_.push_back(&device::find(name, "destinations"));
}

void Destinations::add(const Tensor& tensor) {
  if (!tensor)
    throw InvalidArgumentError("destinations: the tensor holds nothing, so it has no device");
  devices_.push_back(&detail::TensorAccess::device(tensor));
}

void Destinations::check_not_empty() const {
  if (devices_.empty())
    throw InvalidArgumentError("destinations: there is no device (and no replica) in them");
}

std::vector<std::string> Destinations::devices() const {
  std::vector<std::string> names;
  for (const detail::Device* device : devices_) names.push_back(device->name());
  return names;
}

bool Destinations::matches(const Destinations& other) const {
  const auto within = [](const auto& a, const auto& b) {
    return std::ranges::all_of(
        a, [&](auto* device) { return std::ranges::find(b, device) != b.end(); });
  };
  return within(devices_, other.devices_) && within(other.devices_, devices_);
}

}  // namespace tutti
