// SPDX-License-Identifier: Apache-2.0
// Tensors that come through DLPack. The input fills in the structure; the memory it points to is
// there.
#include <dlpack/dlpack.h>
#include <tutti/error.h>
#include <tutti/tensor.h>

#include <algorithm>
#include <array>
#include <optional>

#include "fuzz.h"

// What DLPack 1.0 adds, as the document lays it out.
#ifndef DLPACK_MAJOR_VERSION
struct DLPackVersion {
  uint32_t major, minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};
#endif

namespace tutti::fuzz {
namespace {

constexpr int kMaxRank = 64, kAxes = 80;
constexpr size_t kBytes = 4096;
constexpr std::array<DLDataType, 13> kTypes{{{6, 8, 1},
                                             {kDLInt, 8, 1},
                                             {kDLInt, 16, 1},
                                             {kDLInt, 32, 1},
                                             {kDLInt, 64, 1},
                                             {kDLUInt, 8, 1},
                                             {kDLUInt, 16, 1},
                                             {kDLUInt, 32, 1},
                                             {kDLUInt, 64, 1},
                                             {kDLFloat, 16, 1},
                                             {kDLBfloat, 16, 1},
                                             {kDLFloat, 32, 1},
                                             {kDLFloat, 64, 1}}};

bool same(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

enum Form : uint8_t {
  versioned = 1,
  no_strides = 2,
  contiguous_strides = 4,
  no_shape = 8,
  no_data = 16,
  no_deleter = 32,
  listed_type = 64,
};

// What a tensor points to, and how often it was given back.
struct Backing {
  alignas(64) std::array<uint8_t, kBytes> memory;
  std::array<int64_t, kAxes> shape{}, strides{};
  int deleted = 0;
};

// Small numbers are short, so that most inputs have shapes that could be real.
int64_t extent(Numbers& numbers) {
  const uint8_t first = numbers.take<uint8_t>();
  return first < 200 ? first % 20 : numbers.take<int64_t>();
}

DLTensor tensor_of(Numbers& numbers, uint8_t form, Backing& backing) {
  DLTensor tensor{};
  const auto device_type = numbers.take<int32_t>();
  std::memcpy(&tensor.device.device_type, &device_type, sizeof device_type);
  tensor.device.device_id = numbers.take<int32_t>();
  tensor.ndim = numbers.take<int32_t>();
  if (tensor.ndim > kAxes) tensor.ndim %= kAxes + 1;
  tensor.dtype.code = numbers.take<uint8_t>();
  tensor.dtype.bits = numbers.take<uint8_t>();
  tensor.dtype.lanes = numbers.take<uint16_t>();
  if (form & listed_type) tensor.dtype = kTypes[tensor.dtype.code % kTypes.size()];
  tensor.byte_offset = numbers.take<uint16_t>() % (kBytes + 1);
  const size_t axes = size_t(std::max(tensor.ndim, 0));
  for (size_t i = 0; i < axes; ++i) backing.shape[i] = extent(numbers);
  uint64_t stride = 1;
  for (size_t i = axes; i-- > 0;) {
    backing.strides[i] = form & contiguous_strides ? int64_t(stride) : extent(numbers);
    stride *= uint64_t(backing.shape[i]);
  }
  tensor.shape = form & no_shape ? nullptr : backing.shape.data();
  tensor.strides = form & no_strides ? nullptr : backing.strides.data();
  tensor.data = form & no_data ? nullptr : backing.memory.data();
  return tensor;
}

// None if there is no such thing, or more of them than can be counted.
std::optional<int64_t> num_elements(const DLTensor& tensor) {
  int64_t product = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) return {};
    if (__builtin_mul_overflow(product, tensor.shape[i], &product)) return {};
  }
  return product;
}

// Checks that what was taken may be taken.
void check_valid(const DLTensor& source) {
  int32_t device_type;
  std::memcpy(&device_type, &source.device.device_type, sizeof device_type);
  check(device_type == kDLCPU || device_type == kDLCUDAHost || device_type == kDLROCMHost,
        "only host memory is taken");
  check(source.ndim >= 0 && source.ndim <= kMaxRank, "the rank is within its limits");
  check(std::ranges::any_of(kTypes, [&](DLDataType t) { return same(t, source.dtype); }),
        "the type is one of ours");
  const auto elements = num_elements(source);
  check(elements.has_value(), "the shape is one");
  check(source.data || *elements == 0, "there is memory");
  if (!source.strides) return;
  int64_t stride = 1;
  for (int i = source.ndim; *elements > 0 && i-- > 0;) {
    check(source.shape[i] == 1 || source.strides[i] == stride, "the memory is contiguous");
    stride *= source.shape[i];
  }
}

void check_same(const DLTensor& source, const Tensor& tensor) {
  const std::span<const int64_t> shape(source.shape, size_t(source.ndim));
  check(std::ranges::equal(tensor.shape().extents(), shape), "the shape is the same");
  check(same(kTypes[size_t(tensor.dtype())], source.dtype), "the type is the same");
  const auto* const data = static_cast<const uint8_t*>(source.data);
  check(tensor.const_data() == (data ? data + source.byte_offset : nullptr),
        "the memory is the same");
}

template <class Managed>
void check_exported(Managed* exported, const Tensor& tensor) {
  check_valid(exported->dl_tensor);
  check_same(exported->dl_tensor, tensor);
  const Tensor back = Tensor::from_dlpack(exported);
  check(back.shape() == tensor.shape() && back.dtype() == tensor.dtype() &&
            back.const_data() == tensor.const_data(),
        "a tensor that went out and came back is the same");
}

void check_imported(const DLTensor& source, const Tensor& tensor, bool read_only) {
  check_valid(source);
  check_same(source, tensor);
  check(tensor.is_read_only() == read_only, "the memory is read-only where the sender says so");
  if (source.data && tensor.num_bytes() <= kBytes - source.byte_offset) {
    const Tensor copy = tensor.clone();
    check(copy.num_bytes() == 0 ||
              std::memcmp(copy.const_data(), tensor.const_data(), copy.num_bytes()) == 0,
          "a copy holds the same");
  }
  auto* const exported = tensor.to_dlpack_versioned();
  check(exported->version.major == 1, "what goes out has the version that comes in");
  check((exported->flags & 1) == uint64_t(read_only), "the receiver is told what is read-only");
  check_exported(exported, tensor);
  try {
    check_exported(tensor.to_dlpack(), tensor);
    check(!read_only, "read-only memory goes out only in the form that says so");
  } catch (const InvalidArgumentError&) {
    check(read_only, "memory that may be written goes out in both forms");
  }
}

template <class Managed>
void exchange(Managed& managed, Backing& backing, bool read_only) {
  const bool has_deleter = managed.deleter != nullptr;
  bool imported = false;
  try {
    const Tensor tensor = Tensor::from_dlpack(&managed);
    imported = true;
    check_imported(managed.dl_tensor, tensor, read_only);
    check(backing.deleted == 0, "the memory is kept while there is a handle");
  } catch (const InvalidArgumentError&) {
    check(!imported, "what was taken can be used");
  } catch (const ResourceExhaustedError&) {
    check(!imported, "what was taken can be used");
  }
  check(backing.deleted == (imported && has_deleter ? 1 : 0),
        "what was taken is given back once, and nothing else is");
}

template <class Managed>
void count_deletion(Managed* self) {
  ++static_cast<Backing*>(self->manager_ctx)->deleted;
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::fuzz;
  Numbers numbers({data, size});
  Backing backing;
  for (size_t i = 0; i < kBytes; ++i) backing.memory[i] = uint8_t(i * 7 % 251);
  const auto form = numbers.take<uint8_t>();
  if (form & versioned) {
    DLManagedTensorVersioned managed{};
    managed.version.major = numbers.take<uint8_t>();
    managed.version.minor = numbers.take<uint8_t>();
    managed.flags = numbers.take<uint64_t>();
    managed.manager_ctx = &backing;
    managed.deleter = form & no_deleter ? nullptr : &count_deletion<DLManagedTensorVersioned>;
    managed.dl_tensor = tensor_of(numbers, form, backing);
    exchange(managed, backing, managed.flags & 1);
  } else {
    DLManagedTensor managed{};
    managed.manager_ctx = &backing;
    managed.deleter = form & no_deleter ? nullptr : &count_deletion<DLManagedTensor>;
    managed.dl_tensor = tensor_of(numbers, form, backing);
    exchange(managed, backing, false);
  }
  return 0;
}
