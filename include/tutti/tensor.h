// SPDX-License-Identifier: Apache-2.0
// Tensor: a handle to contiguous memory on one device.
#pragma once

#include <tutti/dtype.h>
#include <tutti/shape.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The structures of DLPack, the common C interface for tensors. Include any version of its header
// to fill them in.
struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace tutti::detail {
class Device;
struct TensorAccess;
}  // namespace tutti::detail

#pragma GCC visibility push(default)

namespace tutti {

// A handle to reference-counted, contiguous, 64-byte aligned memory. Copies of a Tensor share the
// memory; clone() copies it. A default-constructed Tensor holds nothing, and asking it for anything
// is a FailedPreconditionError.
//
// If a function takes a device, an empty name means the current device (see DeviceScope).
//
// Thread safety: a handle is like an int; the memory is the user's to guard.
class Tensor {
 public:
  Tensor() = default;

  // New memory, uninitialised or zero.
  static Tensor empty(const Shape& shape, DType dtype, std::string_view device = {});
  static Tensor zeros(const Shape& shape, DType dtype, std::string_view device = {});
  // InvalidArgumentError if an integer dtype cannot hold `value`.
  static Tensor full(const Shape& shape, double value, DType dtype, std::string_view device = {});

  // A copy of these elements, of rank 1; or of one, of rank 0.
  template <Element T>
  static Tensor of(std::initializer_list<T> values, std::string_view device = {}) {
    return copy_of(values.begin(), Shape{int64_t(values.size())}, dtype_of<T>::value, device);
  }
  template <Element T>
  static Tensor of(std::span<const T> values, std::string_view device = {}) {
    return copy_of(values.data(), Shape{int64_t(values.size())}, dtype_of<T>::value, device);
  }
  template <Element T>
  static Tensor scalar(T value, std::string_view device = {}) {
    return copy_of(&value, Shape{}, dtype_of<T>::value, device);
  }

  // Memory that the caller owns, used in place. `owner` is kept alive as long as any handle is;
  // without one, the memory must outlive them all. It need not be aligned beyond its element type.
  static Tensor borrow(void* data, const Shape& shape, DType dtype, std::string_view device = {},
                       std::shared_ptr<void> owner = {});

  // Takes over a tensor of another library's, without a copy; its deleter runs when the last handle
  // goes. On an error the caller keeps it. InvalidArgumentError for what Tutti has no type or
  // device for, and for strided memory. On a GPU, in both directions, the memory may be used by
  // what this thread enqueues next on its stream; a StreamScope makes that the other library's.
  static Tensor from_dlpack(DLManagedTensor* tensor);
  static Tensor from_dlpack(DLManagedTensorVersioned* tensor);
  // A handle for another library, without a copy. The receiver calls its deleter.
  DLManagedTensor* to_dlpack() const;
  DLManagedTensorVersioned* to_dlpack_versioned() const;

  explicit operator bool() const { return impl_ != nullptr; }  // does it hold anything?
  // What the memory holds. References are good as long as this handle or a copy of it.
  DType dtype() const;
  const Shape& shape() const;
  const std::string& device() const;  // the canonical name
  int64_t num_elements() const;
  size_t num_bytes() const;
  bool is_read_only() const;  // set by DLPack; such memory is never handed out for writing

  void* data() const;              // InvalidArgumentError if the memory is read-only
  const void* const_data() const;  // on a GPU it is the GPU's address

  // The elements, in place. T must be the tensor's type, or const of it. InvalidArgumentError if
  // the tensor is not in host memory, or is read-only and T is not const.
  template <class T>
    requires Element<T>
  std::span<T> span() const {
    check_span(dtype_of<std::remove_cv_t<T>>::value);
    if constexpr (std::is_const_v<T>)
      return {static_cast<T*>(const_data()), size_t(num_elements())};
    else
      return {static_cast<T*>(data()), size_t(num_elements())};
  }

  // A copy of the elements in host memory.
  template <Element T>
  std::vector<T> to_vector() const {
    const Tensor host = on_host(dtype_of<T>::value);
    const std::span<const T> values = host.span<const T>();
    return std::vector<T>(values.begin(), values.end());
  }

  // The only element.
  template <Element T>
  T item() const {
    const Tensor host = on_host(dtype_of<T>::value);
    check_single();
    return host.span<const T>()[0];
  }

  // A copy of the memory, on the same device or on another.
  Tensor clone() const;
  Tensor clone_to(std::string_view device) const;  // always a copy, also if it is there already

  // The same memory seen in another shape; one extent may be -1 and follows from the others.
  Tensor reshape(std::span<const int64_t> extents) const;
  Tensor reshape(const std::vector<int64_t>& extents) const {
    return reshape(std::span<const int64_t>(extents));
  }
  Tensor reshape(const Shape& shape) const { return reshape(shape.extents()); }
  Tensor reshape(std::initializer_list<int64_t> extents) const {
    return reshape(std::span<const int64_t>(extents.begin(), extents.size()));
  }

  // A copy with another element type. Floats round to nearest even, once; floats become integers by
  // truncation, with what does not fit saturated and NaN as 0; integers wrap; bool is "not zero".
  Tensor to(DType dtype) const;

  // "float32[3, 2] on /job:localhost/replica:0/task:0/device:CPU:0"
  std::string to_string() const;

 private:
  friend struct detail::TensorAccess;
  struct Impl;

  explicit Tensor(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  static Tensor copy_of(const void* host_values, const Shape& shape, DType dtype,
                        std::string_view device);
  const Impl& impl() const;
  Tensor on_host(DType expected) const;
  void check_span(DType expected) const;
  void check_single() const;

  std::shared_ptr<const Impl> impl_;
};

}  // namespace tutti

#pragma GCC visibility pop
