// SPDX-License-Identifier: Apache-2.0
#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <tutti/error.h>

#include <cstring>
#include <vector>

#include "tensor/dlpack.h"
#include "tensor/tensor_impl.h"

// The parts of DLPack 1.0 that older headers lack. The layout is fixed by that release for all
// later ones.
#ifndef DLPACK_MAJOR_VERSION
struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};
#endif

namespace tutti {

namespace {

constexpr uint8_t kBool = 6;       // kDLBool
constexpr uint64_t kReadOnly = 1;  // DLPACK_FLAG_BITMASK_READ_ONLY
constexpr uint32_t kMajor = 1, kMinor = 0;
constexpr int kMaxDims = 64;

DLDataType to_dl(DType dtype) {
  const auto of = [&](uint8_t code) { return DLDataType{code, uint8_t(8 * size_of(dtype)), 1}; };
  switch (dtype) {
    case DType::boolean: return of(kBool);
    case DType::int8:
    case DType::int16:
    case DType::int32:
    case DType::int64: return of(kDLInt);
    case DType::uint8:
    case DType::uint16:
    case DType::uint32:
    case DType::uint64: return of(kDLUInt);
    case DType::bfloat16: return of(kDLBfloat);
    case DType::float16:
    case DType::float32:
    case DType::float64: return of(kDLFloat);
  }
  detail::throw_not_a("DType", int(dtype));
}

DType from_dl(DLDataType type) {
  for (size_t i = 0; i < detail::kDTypes.size(); ++i) {
    const DLDataType candidate = to_dl(DType(i));
    if (candidate.code == type.code && candidate.bits == type.bits && type.lanes == 1)
      return DType(i);
  }
  throw InvalidArgumentError(
      fmt::format("from_dlpack: there is no DType for code {}, {} bits, {} lanes", type.code,
                  type.bits, type.lanes));
}

void check_contiguous(const DLTensor& tensor, const Shape& shape) {
  if (!tensor.strides || shape.num_elements() == 0) return;
  int64_t expected = 1;
  for (size_t i = shape.rank(); i-- > 0;) {
    if (shape[i] != 1 && tensor.strides[i] != expected)
      throw InvalidArgumentError(fmt::format(
          "from_dlpack: the memory of shape {} is strided (axis {} by {}, expected {}); make the "
          "tensor contiguous first",
          shape.to_string(), i, tensor.strides[i], expected));
    expected *= shape[i];
  }
}

detail::Device& device_for(int32_t device_type, int32_t device_id) {
  const bool on_host =
      device_type == kDLCPU || device_type == kDLCUDAHost || device_type == kDLROCMHost;
  const int gpu = device_type == kDLCUDA ? device_id : -1;
  if (on_host || gpu >= 0)
    if (detail::Device* const device = detail::device_of_gpu(gpu)) return *device;
  throw InvalidArgumentError(fmt::format(
      "from_dlpack: memory on DLPack's device type {} is not host memory{}; move the tensor to "
      "the CPU first",
      device_type, gpu >= 0 ? fmt::format(", and this process has no GPU {}", gpu) : ""));
}

detail::DLPackView view_of(const DLTensor& tensor, bool read_only) {
  int32_t device_type;  // newer producers know types that the enumeration here does not
  std::memcpy(&device_type, &tensor.device.device_type, sizeof device_type);
  detail::Device& device = device_for(device_type, tensor.device.device_id);
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims || (tensor.ndim > 0 && !tensor.shape))
    throw InvalidArgumentError(
        fmt::format("from_dlpack: a tensor of {} axes without a shape, or with more than {}",
                    tensor.ndim, kMaxDims));
  Shape shape(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim));
  const DType dtype = from_dl(tensor.dtype);
  check_contiguous(tensor, shape);
  void* const data =
      tensor.data ? static_cast<std::byte*>(tensor.data) + tensor.byte_offset : nullptr;
  return {data, std::move(shape), tensor.shape, dtype, device, read_only};
}

template <class Managed>
Tensor import(Managed* managed) {
  detail::DLPackView view = detail::view(managed);
  (void)Tensor::borrow(view.data, view.shape, view.dtype, view.device.name());  // for its checks
  std::shared_ptr<void> owner(managed, [](void* m) {
    auto* const self = static_cast<Managed*>(m);
    if (self->deleter) self->deleter(self);
  });
  return detail::TensorAccess::wrap(std::move(owner), view.data, std::move(view.shape), view.dtype,
                                    view.device, view.read_only);
}

template <class Managed>
struct Exported {
  Managed managed{};
  Tensor tensor;
  std::vector<int64_t> shape, strides;
};

template <class Managed>
Managed* export_as(const Tensor& tensor) {
  const detail::Device& device = detail::TensorAccess::device(tensor);
  if (!device.in_host_memory() && device.gpu() < 0)
    throw InvalidArgumentError(
        fmt::format("to_dlpack: {} is in memory that DLPack has no name for", tensor.to_string()));
  auto* const exported = new Exported<Managed>;
  exported->tensor = tensor;
  exported->shape.assign(tensor.shape().begin(), tensor.shape().end());
  exported->strides.assign(exported->shape.size(), 1);
  for (size_t i = exported->shape.size(); i-- > 1;)
    exported->strides[i - 1] = exported->strides[i] * exported->shape[i];
  Managed& managed = exported->managed;
  managed.manager_ctx = exported;
  managed.deleter = [](Managed* self) {
    delete static_cast<Exported<Managed>*>(self->manager_ctx);
  };
  managed.dl_tensor = {
      .data = const_cast<void*>(tensor.const_data()),
      .device = device.gpu() < 0 ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, device.gpu()},
      .ndim = int32_t(exported->shape.size()),
      .dtype = to_dl(tensor.dtype()),
      .shape = exported->shape.data(),
      .strides = exported->strides.data(),
      .byte_offset = 0};
  return &managed;
}

}  // namespace

namespace detail {

DLPackView view(const DLManagedTensor* tensor) {
  if (!tensor) throw InvalidArgumentError("from_dlpack: the tensor is null");
  return view_of(tensor->dl_tensor, false);
}

DLPackView view(const DLManagedTensorVersioned* tensor) {
  if (!tensor) throw InvalidArgumentError("from_dlpack: the tensor is null");
  if (tensor->version.major != kMajor)
    throw InvalidArgumentError(
        fmt::format("from_dlpack: the tensor follows version {}.{} of DLPack, expected {}.x",
                    tensor->version.major, tensor->version.minor, kMajor));
  return view_of(tensor->dl_tensor, tensor->flags & kReadOnly);
}

Device* device_of_gpu(int gpu) {
  Device& current = device::current();
  if (gpu < 0 ? current.in_host_memory() : current.gpu() == gpu) return &current;
  if (gpu < 0) return &device::find("/cpu:0", "tensor");
  for (const std::string& name : list_logical_devices("GPU"))
    if (Device& device = device::find(name, "tensor"); device.gpu() == gpu) return &device;
  return nullptr;
}

}  // namespace detail

Tensor Tensor::from_dlpack(DLManagedTensor* tensor) { return import(tensor); }
Tensor Tensor::from_dlpack(DLManagedTensorVersioned* tensor) { return import(tensor); }

DLManagedTensor* Tensor::to_dlpack() const {
  if (is_read_only())
    throw InvalidArgumentError(
        "to_dlpack: the memory is read-only, which only to_dlpack_versioned can tell the receiver");
  return export_as<DLManagedTensor>(*this);
}

DLManagedTensorVersioned* Tensor::to_dlpack_versioned() const {
  auto* const managed = export_as<DLManagedTensorVersioned>(*this);
  managed->version = {kMajor, kMinor};
  managed->flags = is_read_only() ? kReadOnly : 0;
  return managed;
}

}  // namespace tutti
