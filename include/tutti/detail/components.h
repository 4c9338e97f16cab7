// SPDX-License-Identifier: Apache-2.0
// What PerReplica and Mirrored have in common: one component per replica or device.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

class Tensor;
struct IndexedSlices;
class Value;

namespace detail {

template <class T>
inline constexpr bool IsValue =
    std::is_same_v<T, Tensor> || std::is_same_v<T, IndexedSlices> || std::is_same_v<T, Value>;

// The local id of the replica that this thread runs, or -1 outside of any replica function.
int local_replica_id();
[[noreturn]] void throw_component_out_of_range(size_t index, size_t size);
[[noreturn]] void throw_not_in_replica(size_t size);
// Which of these devices is the current one; 0 if none is.
size_t component_on_current_device(const std::vector<std::string>& devices);

// One component per local replica, in replica order; a component may be of any type, move-only ones
// included.
template <class T>
class Components {
  using Storage = std::conditional_t<std::is_same_v<T, bool>, std::deque<bool>, std::vector<T>>;

 public:
  Components() = default;
  Components(std::initializer_list<T> components) : components_(components) {}
  explicit Components(std::vector<T> components) {
    if constexpr (std::is_same_v<T, bool>)
      components_.assign(components.begin(), components.end());
    else
      components_ = std::move(components);
  }

  size_t size() const { return components_.size(); }
  bool empty() const { return components_.empty(); }
  const T& operator[](size_t i) const {
    if (i >= size()) throw_component_out_of_range(i, size());
    return components_[i];
  }
  auto begin() const { return components_.begin(); }
  auto end() const { return components_.end(); }

  // The canonical device of each component, in order; a device may occur twice.
  std::vector<std::string> devices() const
    requires requires(const T& t) { std::string(t.device()); }
  {
    std::vector<std::string> names;
    for (const T& component : components_) names.push_back(component.device());
    return names;
  }

 protected:
  template <class F>
  auto mapped(F&& f) const {
    std::vector<std::decay_t<std::invoke_result_t<F&, const T&>>> results;
    results.reserve(size());
    for (const T& component : components_) results.push_back(std::invoke(f, component));
    return results;
  }

 private:
  Storage components_;
};

}  // namespace detail
}  // namespace tutti

#pragma GCC visibility pop
