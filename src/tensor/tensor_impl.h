// SPDX-License-Identifier: Apache-2.0
// What a Tensor handle points to, for the layers above that need more than the public interface.
#pragma once

#include <tutti/destinations.h>
#include <tutti/tensor.h>

#include <memory>
#include <span>

#include "base/pool_allocator.h"
#include "device/device.h"

namespace tutti {

struct Tensor::Impl {
  Impl(std::shared_ptr<void> memory, void* data, Shape shape, DType dtype, detail::Device& device,
       bool read_only)
      : memory(std::move(memory)),
        data(data),
        shape(std::move(shape)),
        dtype(dtype),
        device(device),
        read_only(read_only) {
    device.tensors.fetch_add(1, std::memory_order_relaxed);
  }
  ~Impl() {
    device.settle();
    device.tensors.fetch_sub(1, std::memory_order_relaxed);
  }
  Impl(const Impl&) = delete;

  std::shared_ptr<void> memory;  // keeps data alive
  void* data;
  Shape shape;
  DType dtype;
  detail::Device& device;
  bool read_only;
};

namespace detail {

struct TensorAccess {
  static Tensor empty(const Shape& shape, DType dtype, Device& device);
  static Tensor wrap(std::shared_ptr<void> memory, void* data, Shape shape, DType dtype,
                     Device& device, bool read_only) {
    return Tensor(std::allocate_shared<const Tensor::Impl>(
        base::PoolAllocator<Tensor::Impl>(), std::move(memory), data, std::move(shape), dtype,
        device, read_only));
  }
  static Device& device(const Tensor& tensor) { return tensor.impl().device; }
  static void* data(const Tensor& tensor) { return tensor.impl().data; }
  static const std::vector<Device*>& devices(const Destinations& destinations) {
    return destinations.devices_;
  }
};

// `count` runs of `run` bytes, each `to_stride` or `from_stride` behind the one before. To the
// host: returns when they are there. Between GPUs it is enqueued.
void copy_runs(Device& to_device, void* to, size_t to_stride, Device& from_device, const void* from,
               size_t from_stride, size_t run, size_t count);

// Copies the elements of `from`, of the same type, number and device, to `to`.
void assign(const Tensor& to, const Tensor& from);

// Multiplies the elements, which are float64, or divides them.
void scale(const Tensor& tensor, double factor, bool divide);
// The elements times a factor, as float64. Those times 0 are zeros, whatever they were.
Tensor scaled(const Tensor& tensor, double factor);

// The tensor itself if `device` can work on its memory, else a copy there.
Tensor within_reach(const Tensor& tensor, Device& device);

// A copy on `device`.
Tensor clone_to(const Tensor& tensor, Device& device);
IndexedSlices clone_to(const IndexedSlices& slices, Device& device);
Value clone_to(const Value& value, Device& device);

}  // namespace detail
}  // namespace tutti
