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

// `values` on `gpu`, for what is enqueued next.
class Uploaded {
 public:
  Uploaded(int gpu, const void* values, size_t bytes)
      : gpu_(gpu), stream_(device::current_stream(gpu)), data_(allocate(bytes), Free{this}) {
    device::cuda_module()->runtime().copy(gpu, data_.get(), values, bytes, stream_);
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
      device::cuda_module()->runtime().deallocate(uploaded->gpu_, data, uploaded->stream_);
    }
  };
  void* allocate(size_t bytes) const {
    return device::allocate_on_gpu(device::cuda_module()->runtime(), gpu_,
                                   std::max<size_t>(bytes, 1), stream_);
  }

  const int gpu_;
  const device::Stream stream_;
  const std::unique_ptr<void, Free> data_;
};

}  // namespace

void reduce(int gpu, std::span<const Reduction> batch) {
  gpu_kernels().reduce(gpu, device::current_stream(gpu), batch);
}

void cast(int gpu, const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  gpu_kernels().cast(gpu, device::current_stream(gpu), from, from_type, to, to_type, count);
}

void fill(int gpu, void* to, const void* element, size_t element_size, int64_t count) {
  gpu_kernels().fill(gpu, device::current_stream(gpu), to, element, element_size, count);
}

void update(int gpu, Update update, DType dtype, void* target, const void* value, int64_t count) {
  gpu_kernels().update(gpu, device::current_stream(gpu), update, dtype, target, value, count);
}

void update_rows(int gpu, Update update, DType dtype, void* target, const void* values,
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
  const Uploaded gpu_updates(gpu, updates.data(), updates.size() * sizeof(RowUpdate));
  const Uploaded gpu_order(gpu, order.data(), order.size() * sizeof(int64_t));
  gpu_kernels().update_rows(gpu, device::current_stream(gpu), update, dtype, target, values, width,
                            gpu_updates.as<RowUpdate>(), int64_t(updates.size()),
                            gpu_order.as<int64_t>());
}

void scale(int gpu, double* values, int64_t count, double factor, bool divide) {
  gpu_kernels().scale(gpu, device::current_stream(gpu), values, count, factor, divide);
}

}  // namespace gpu
}  // namespace tutti::kernels
