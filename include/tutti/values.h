// SPDX-License-Identifier: Apache-2.0
// The values that replicas exchange: Tensor or IndexedSlices, one per replica (PerReplica) or equal
// on all (Mirrored).
#pragma once

#include <tutti/detail/components.h>
#include <tutti/error.h>
#include <tutti/tensor.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// Rows of a larger tensor: values[i] belongs to row indices[i]. A row that is named twice means the
// sum of both.
struct IndexedSlices {
  Tensor values;                          // [n, ...]
  Tensor indices;                         // [n], int32 or int64
  std::optional<Shape> dense_shape = {};  // of the tensor the rows are taken from

  // Those of `values`.
  const std::string& device() const { return values.device(); }
  DType dtype() const { return values.dtype(); }

  // The tensor with these rows, and zero elsewhere. Rows named twice are added in their order;
  // 16-bit floats in 32 bits, rounded once. InvalidArgumentError without a dense_shape or if an
  // index lies outside of it.
  Tensor to_dense() const;

  // The same slices with every row named once, in ascending order.
  IndexedSlices merged() const;

  // Copies of both parts.
  IndexedSlices clone_to(std::string_view device) const;

  // InvalidArgumentError if the parts do not belong together; `what` starts the text. Indices
  // are not looked at.
  void validate(std::string_view what) const;
};

// A Tensor or an IndexedSlices.
class Value {
 public:
  Value(Tensor tensor) : value_(std::move(tensor)) {}
  Value(IndexedSlices slices) : value_(std::move(slices)) {}

  // Whether it is an IndexedSlices.
  bool is_sparse() const { return std::holds_alternative<IndexedSlices>(value_); }
  const Tensor& tensor() const;         // InvalidArgumentError if it is sparse
  const IndexedSlices& slices() const;  // InvalidArgumentError if it is dense

  // As the Tensor or the IndexedSlices in it does.
  const std::string& device() const;
  DType dtype() const;
  Value clone_to(std::string_view device) const;

 private:
  std::variant<Tensor, IndexedSlices> value_;
};

// One component per local replica; they may differ. Immutable. A range: size(), empty(), [i],
// begin() and end(); devices() of components that have one. OutOfRangeError past the last.
template <class T>
class PerReplica : public detail::Components<T> {
 public:
  using detail::Components<T>::Components;
  PerReplica() = default;
  template <class U>
    requires(!std::is_same_v<U, T> && std::is_convertible_v<const U&, T>)
  PerReplica(const PerReplica<U>& other) : PerReplica(std::vector<T>(other.begin(), other.end())) {}
  // A single tensor or slices counts as one replica.
  template <class U>
    requires(std::is_same_v<T, Value> && detail::IsValue<std::decay_t<U>>)
  PerReplica(U&& value) : PerReplica(std::vector<T>(1, std::forward<U>(value))) {}

  // f of each component. Members work too: results.map(&Result::loss).
  template <class F>
  auto map(F&& f) const {
    auto results = this->mapped(std::forward<F>(f));
    return PerReplica<typename decltype(results)::value_type>(std::move(results));
  }

  // Inside a replica function: that replica's component. InvalidArgumentError elsewhere.
  const T& get() const {
    const int id = detail::local_replica_id();
    if (id < 0) detail::throw_not_in_replica(this->size());
    return (*this)[size_t(id)];
  }
};

// One component per device; all are equal. Immutable. A range as PerReplica is. Not a PerReplica:
// what is equal already needs no reduction.
template <class T>
class Mirrored : public detail::Components<T> {
 public:
  using detail::Components<T>::Components;
  Mirrored() = default;
  template <class U>
    requires(!std::is_same_v<U, T> && std::is_convertible_v<const U&, T>)
  Mirrored(const Mirrored<U>& other) : Mirrored(std::vector<T>(other.begin(), other.end())) {}

  // f of each component.
  template <class F>
  auto map(F&& f) const {
    auto results = this->mapped(std::forward<F>(f));
    return Mirrored<typename decltype(results)::value_type>(std::move(results));
  }

  // Inside a replica function that replica's component; elsewhere the one on the current device, or
  // else the first.
  const T& get() const {
    if (const int id = detail::local_replica_id(); id >= 0) return (*this)[size_t(id)];
    if constexpr (requires { this->devices(); })
      return (*this)[detail::component_on_current_device(this->devices())];
    return (*this)[0];
  }
  // A Mirrored stands for its component, so that Mirrored<int>{7, 7} + 1 is 8.
  operator const T&() const { return get(); }
};

}  // namespace tutti

#pragma GCC visibility pop
