// SPDX-License-Identifier: Apache-2.0
// Tutti's side of dlpack_exchange.py: tensors as handles of a C interface.
#include <tutti/tutti.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

thread_local std::string last_error;
int released = 0;

// What `f` returns, or null, with the error kept for exchange_error.
template <class F>
auto guarded(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& e) {
    last_error = e.what();
    return nullptr;
  }
}

const tutti::Tensor& tensor(void* handle) { return *static_cast<tutti::Tensor*>(handle); }

}  // namespace

extern "C" {

const char* exchange_error() { return last_error.c_str(); }

// How many tensors of exchange_make have been given back.
int exchange_released() { return released; }

// A tensor of zeros, whose end exchange_released counts.
void* exchange_make(int dtype, const int64_t* extents, int rank) {
  return guarded([&] {
    const tutti::Tensor memory = tutti::Tensor::zeros(
        tutti::Shape(std::vector<int64_t>(extents, extents + rank)), tutti::DType(dtype));
    const std::shared_ptr<void> owner(memory.data(), [memory](void*) { ++released; });
    return new tutti::Tensor(
        tutti::Tensor::borrow(memory.data(), memory.shape(), memory.dtype(), {}, owner));
  });
}

void exchange_drop(void* handle) { delete static_cast<tutti::Tensor*>(handle); }

void* exchange_export(void* handle, int versioned) {
  return guarded([&]() -> void* {
    if (versioned) return tensor(handle).to_dlpack_versioned();
    return tensor(handle).to_dlpack();
  });
}

void* exchange_import(void* managed, int versioned) {
  return guarded([&] {
    if (versioned)
      return new tutti::Tensor(
          tutti::Tensor::from_dlpack(static_cast<DLManagedTensorVersioned*>(managed)));
    return new tutti::Tensor(tutti::Tensor::from_dlpack(static_cast<DLManagedTensor*>(managed)));
  });
}

const void* exchange_data(void* handle) { return tensor(handle).const_data(); }
int exchange_dtype(void* handle) { return int(tensor(handle).dtype()); }
int exchange_rank(void* handle) { return int(tensor(handle).shape().rank()); }
int64_t exchange_extent(void* handle, int axis) { return tensor(handle).shape()[size_t(axis)]; }
int exchange_read_only(void* handle) { return tensor(handle).is_read_only(); }

double exchange_get(void* handle, int64_t index) {
  return tensor(handle).to(tutti::DType::float64).to_vector<double>()[size_t(index)];
}

void exchange_set(void* handle, int64_t index, double value) {
  const tutti::Tensor& target = tensor(handle);
  const size_t bytes = tutti::size_of(target.dtype());
  const tutti::Tensor element = tutti::Tensor::full({}, value, target.dtype());
  std::memcpy(static_cast<char*>(target.data()) + size_t(index) * bytes, element.data(), bytes);
}

}  // extern "C"
