// SPDX-License-Identifier: Apache-2.0
// Destinations: where the result of a reduction goes.
#pragma once

#include <tutti/values.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// Anything that names devices: a device string, a list of them, a tensor, or a distributed value
// (an all-reduce passes the value itself). It says where and is never written.
//
// InvalidArgumentError on construction if a name is empty, malformed or names a device that is
// not there, if there is no device at all, and if a list of names has a device twice. A
// distributed value may hold two components on one device: it then names the device twice, and gets
// two results.
class Destinations {
 public:
  Destinations(std::string_view device);
  Destinations(const char* device) : Destinations(std::string_view(device)) {}
  Destinations(const std::string& device) : Destinations(std::string_view(device)) {}
  Destinations(const std::vector<std::string>& devices);
  Destinations(std::initializer_list<std::string_view> devices);
  Destinations(const Tensor& tensor) { add(tensor); }
  Destinations(const IndexedSlices& slices) { add(slices); }
  Destinations(const Value& value) { add(value); }

  template <class T>
    requires std::is_constructible_v<Destinations, const T&>
  Destinations(const PerReplica<T>& value) : Destinations(Components{}, value) {}
  template <class T>
    requires std::is_constructible_v<Destinations, const T&>
  Destinations(const Mirrored<T>& value) : Destinations(Components{}, value) {}

  size_t size() const { return devices_.size(); }  // a device that is named twice counts twice
  std::vector<std::string> devices() const;        // canonical names, in order

  // Do both name the same set of devices?
  bool matches(const Destinations& other) const;

 private:
  friend struct detail::TensorAccess;
  struct Components {};
  template <class C>
  Destinations(Components, const C& components) {
    devices_.reserve(components.size());
    for (const auto& component : components) add(component);
    check_not_empty();
  }

  void add(std::string_view name);
  void add(const Tensor& tensor);
  void add(const IndexedSlices& slices) { add(slices.values); }
  void add(const Value& value) { value.is_sparse() ? add(value.slices()) : add(value.tensor()); }
  void check_not_empty() const;

  std::vector<detail::Device*> devices_;
};

}  // namespace tutti

#pragma GCC visibility pop
