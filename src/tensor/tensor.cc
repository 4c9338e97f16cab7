// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/error.h>
#include <tutti/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/gpu.h"
#include "kernels/cast.h"
#include "kernels/gpu.h"
#include "kernels/reduce.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

size_t size_in_bytes(const Shape& shape, DType dtype) {
  size_t bytes;
  if (__builtin_mul_overflow(size_t(shape.num_elements()), size_of(dtype), &bytes) ||
      bytes > size_t(std::numeric_limits<int64_t>::max()))
    throw ResourceExhaustedError(
        fmt::format("a tensor of {}{} is larger than any memory", name(dtype), shape.to_string()));
  return bytes;
}

detail::Device& device_named(std::string_view name) {
  return name.empty() ? device::current() : device::find(name, "tensor");
}

}  // namespace

namespace detail {

Tensor TensorAccess::empty(const Shape& shape, DType dtype, Device& device) {
  std::shared_ptr<void> memory = device.allocate(size_in_bytes(shape, dtype));
  void* const data = memory.get();
  return wrap(std::move(memory), data, shape, dtype, device, false);
}

Tensor clone_to(const Tensor& tensor, Device& device) {
  const Tensor copy = TensorAccess::empty(tensor.shape(), tensor.dtype(), device);
  Device& from = TensorAccess::device(tensor);
  const void* const source = tensor.const_data();
  void* const target = TensorAccess::data(copy);
  copy_runs(device, target, tensor.num_bytes(), from, source, tensor.num_bytes(),
            tensor.num_bytes(), 1);
  return copy;
}

Tensor within_reach(const Tensor& tensor, Device& device) {
  return TensorAccess::device(tensor).gpu() == device.gpu() ? tensor : clone_to(tensor, device);
}

void scale(const Tensor& tensor, double factor, bool divide) {
  if (const int gpu = TensorAccess::device(tensor).gpu(); gpu >= 0)
    return kernels::gpu::scale(gpu, static_cast<double*>(tensor.data()), tensor.num_elements(),
                               factor, divide);
  for (double& x : tensor.span<double>()) x = divide ? x / factor : x * factor;
}

Tensor scaled(const Tensor& tensor, double factor) {
  if (factor == 0) return Tensor::zeros(tensor.shape(), DType::float64, tensor.device());
  const Tensor result = tensor.to(DType::float64);
  scale(result, factor, false);
  return result;
}

void copy_runs(Device& to_device, void* to, size_t to_stride, Device& from_device, const void* from,
               size_t from_stride, size_t run, size_t count) {
  if (!to_device.in_host_memory() || !from_device.in_host_memory())
    return device::copy_runs(to_device, to, to_stride, from_device, from, from_stride, run, count);
  for (size_t i = 0; i < count; ++i)
    kernels::copy(static_cast<std::byte*>(to) + i * to_stride,
                  static_cast<const std::byte*>(from) + i * from_stride, run);
}

void assign(const Tensor& to, const Tensor& from) {
  Device& device = TensorAccess::device(to);
  copy_runs(device, to.data(), 0, device, from.const_data(), 0, from.num_bytes(), 1);
}

}  // namespace detail

using detail::TensorAccess;

const Tensor::Impl& Tensor::impl() const {
  if (!impl_)
    throw FailedPreconditionError("this Tensor holds nothing: it was default-constructed");
  return *impl_;
}

Tensor Tensor::empty(const Shape& shape, DType dtype, std::string_view device) {
  return TensorAccess::empty(shape, dtype, device_named(device));
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, std::string_view device) {
  return full(shape, 0, dtype, device);
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, std::string_view device) {
  (void)size_of(dtype);  // which throws for what is not a DType
  alignas(8) std::byte element[8];
  kernels::cast(&value, DType::float64, element, dtype, 1);
  if (is_integer(dtype) || dtype == DType::boolean) {
    double back;
    kernels::cast(element, dtype, &back, DType::float64, 1);
    // The largest 64-bit integers round up to a power of two, which they are not.
    const bool rounded_up =
        (dtype == DType::int64 && value >= 0x1p63) || (dtype == DType::uint64 && value >= 0x1p64);
    if (back != value || rounded_up)
      throw InvalidArgumentError(fmt::format("full: {} cannot hold {:g}", name(dtype), value));
  }
  detail::Device& target = device_named(device);
  const Tensor result = TensorAccess::empty(shape, dtype, target);
  std::byte* const data = static_cast<std::byte*>(TensorAccess::data(result));
  if (!target.in_host_memory()) {
    kernels::gpu::fill(target.gpu(), data, element, size_of(dtype), result.num_elements());
    return result;
  }
  // Fill one block by doubling, then the rest from it.
  const size_t bytes = result.num_bytes(), block = std::min<size_t>(bytes, 4096);
  if (bytes) std::memcpy(data, element, size_of(dtype));
  for (size_t done = size_of(dtype); done < block; done *= 2)
    std::memcpy(data + done, data, std::min(done, block - done));
  for (size_t done = block; done < bytes; done += block)
    std::memcpy(data + done, data, std::min(block, bytes - done));
  return result;
}

Tensor Tensor::copy_of(const void* host_values, const Shape& shape, DType dtype,
                       std::string_view device) {
  detail::Device& target = device_named(device);
  const Tensor tensor = TensorAccess::empty(shape, dtype, target);
  if (tensor.num_bytes() == 0) return tensor;
  if (target.in_host_memory())
    std::memcpy(TensorAccess::data(tensor), host_values, tensor.num_bytes());
  else
    target.copy_from_host(TensorAccess::data(tensor), host_values, tensor.num_bytes());
  return tensor;
}

Tensor Tensor::borrow(void* data, const Shape& shape, DType dtype, std::string_view device,
                      std::shared_ptr<void> owner) {
  const size_t bytes = size_in_bytes(shape, dtype);
  if (data == nullptr && bytes > 0)
    throw InvalidArgumentError(
        fmt::format("borrow: the memory of {}{} is null", name(dtype), shape.to_string()));
  if (reinterpret_cast<uintptr_t>(data) % size_of(dtype) != 0)
    throw InvalidArgumentError(
        fmt::format("borrow: the memory at {} is not aligned for {}", data, name(dtype)));
  return TensorAccess::wrap(std::move(owner), data, shape, dtype, device_named(device), false);
}

DType Tensor::dtype() const { return impl().dtype; }
const Shape& Tensor::shape() const { return impl().shape; }
const std::string& Tensor::device() const { return impl().device.name(); }
int64_t Tensor::num_elements() const { return impl().shape.num_elements(); }
size_t Tensor::num_bytes() const { return size_t(num_elements()) * size_of(dtype()); }
bool Tensor::is_read_only() const { return impl().read_only; }
const void* Tensor::const_data() const { return impl().data; }

void* Tensor::data() const {
  if (impl().read_only)
    throw InvalidArgumentError(
        fmt::format("data: the memory of {} is read-only; use const_data, span<const T> or clone",
                    to_string()));
  return impl().data;
}

void Tensor::check_span(DType expected) const {
  if (dtype() != expected)
    throw InvalidArgumentError(fmt::format(
        "the tensor is {}, and was asked for elements of type {}", to_string(), name(expected)));
  if (!impl().device.in_host_memory())
    throw InvalidArgumentError(fmt::format(
        "span: {} is not in host memory; copy it with clone_to(\"/cpu:0\") or to_vector",
        to_string()));
}

void Tensor::check_single() const {
  if (num_elements() != 1)
    throw InvalidArgumentError(
        fmt::format("item: {} has {} elements, expected 1", to_string(), num_elements()));
}

Tensor Tensor::on_host(DType expected) const {
  if (impl().device.in_host_memory()) return *this;
  if (dtype() != expected)
    throw InvalidArgumentError(fmt::format(
        "the tensor is {}, and was asked for elements of type {}", to_string(), name(expected)));
  return clone_to(host_of(device()));
}

Tensor Tensor::clone() const { return detail::clone_to(*this, impl().device); }
Tensor Tensor::clone_to(std::string_view device) const {
  return detail::clone_to(*this, device::find(device, "clone_to"));
}

Tensor Tensor::reshape(std::span<const int64_t> extents) const {
  std::vector<int64_t> resolved(extents.begin(), extents.end());
  const auto open = std::ranges::find(resolved, -1);
  if (open != resolved.end()) {
    *open = 1;
    const int64_t others = Shape(resolved).num_elements();  // a second -1 is an error here
    *open = others ? num_elements() / others : 0;
  }
  Shape shape(std::move(resolved));
  if (shape.num_elements() != num_elements())
    throw InvalidArgumentError(
        fmt::format("reshape: {} has {} elements and does not fit shape [{}]", to_string(),
                    num_elements(), fmt::join(extents, ", ")));
  return TensorAccess::wrap(impl().memory, impl().data, std::move(shape), dtype(), impl().device,
                            impl().read_only);
}

Tensor Tensor::to(DType target) const {
  if (target == dtype()) return clone();
  const Tensor result = TensorAccess::empty(shape(), target, impl().device);
  void* const to = TensorAccess::data(result);
  if (impl().device.in_host_memory())
    kernels::cast(const_data(), dtype(), to, target, num_elements());
  else
    kernels::gpu::cast(impl().device.gpu(), const_data(), dtype(), to, target, num_elements());
  return result;
}

std::string Tensor::to_string() const {
  return fmt::format("{}{} on {}", name(dtype()), shape().to_string(), device());
}

}  // namespace tutti
