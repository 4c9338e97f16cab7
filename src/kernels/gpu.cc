// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

namespace tutti::kernels {

GpuKernels& gpu_kernels() {
  return static_cast<const CudaModuleWithKernels*>(device::cuda_module())->kernels();
}

namespace gpu {

namespace {

// `values` on `card`, for what is enqueued next.
class Uploaded {
 public:
  Uploaded(int card, const void* values, size_t bytes)
      : card_(card), stream_(device::current_stream(card)), data_(allocate(bytes), Free{this}) {
    device::cuda_module()->runtime().copy(card, data_.get(), values, bytes, stream_);
  }
  Uploaded(const Uploaded&) = delete;
  Uploaded& operator=(const Uploaded&) = delete;

  template <class T>
  const T* as() const {
    return static_cast<const T*>(data_.get());
  }

 private:
  struct Free {
    const Uploaded* uploaded;
    void operator()(void* data) const {
      device::cuda_module()->runtime().deallocate(uploaded->card_, data, uploaded->stream_);
    }
  };
  void* allocate(size_t bytes) const {
    return device::allocate_on_card(device::cuda_module()->runtime(), card_,
                                    std::max<size_t>(bytes, 1), stream_);
  }

  const int card_;
  const device::Stream stream_;
  const std::unique_ptr<void, Free> data_;
};

}  // namespace

void reduce(int card, std::span<const Reduction> batch) {
  gpu_kernels().reduce(card, device::current_stream(card), batch);
}

void cast(int card, const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  gpu_kernels().cast(card, device::current_stream(card), from, from_type, to, to_type, count);
}

void fill(int card, void* to, const void* element, size_t element_size, int64_t count) {
  gpu_kernels().fill(card, device::current_stream(card), to, element, element_size, count);
}

void update(int card, Update update, DType dtype, void* target, const void* value, int64_t count) {
  gpu_kernels().update(card, device::current_stream(card), update, dtype, target, value, count);
}

void update_rows(int card, Update update, DType dtype, void* target, const void* values,
                 int64_t width, std::span<const int64_t> rows) {
  if (rows.empty() || width == 0) return;
  std::vector<int64_t> order(rows.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return rows[size_t(i)]; });
  std::vector<RowUpdate> updates;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t row = rows[size_t(order[i])];
    if (updates.empty() || updates.back().row != row)
      updates.push_back({row, int64_t(i), int64_t(i)});
    ++updates.back().end;
  }
  const Uploaded card_updates(card, updates.data(), updates.size() * sizeof(RowUpdate));
  const Uploaded card_order(card, order.data(), order.size() * sizeof(int64_t));
  gpu_kernels().update_rows(card, device::current_stream(card), update, dtype, target, values,
                            width, card_updates.as<RowUpdate>(), int64_t(updates.size()),
                            card_order.as<int64_t>());
}

void scale(int card, double* values, int64_t count, double factor, bool divide) {
  gpu_kernels().scale(card, device::current_stream(card), values, count, factor, divide);
}

}  // namespace gpu
}  // namespace tutti::kernels
