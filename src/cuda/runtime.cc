// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/check.h"
#include "cuda/cuda.h"

namespace tutti::cuda {

namespace {

cudaStream_t as_stream(device::Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(device::Event event) { return static_cast<cudaEvent_t>(event); }

class CudaRuntime : public device::GpuRuntime {
 public:
  CudaRuntime() {
    const cudaError_t status = cudaGetDeviceCount(&gpus_);
    if (status == cudaSuccess && gpus_ > 0) {
      events_.resize(size_t(gpus_));
      return;
    }
    gpus_ = 0;
    why_none_ = status == cudaSuccess ? "the CUDA driver sees no GPU"
                : status == cudaErrorInsufficientDriver
                    ? fmt::format("there is no NVIDIA driver, or one older than CUDA {}.{}",
                                  CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10)
                    : cudaGetErrorString(status);
    cudaGetLastError();
  }

  int gpus() const override { return gpus_; }
  const std::string& why_none() const override { return why_none_; }

  std::string describe(int gpu) const override {
    const cudaDeviceProp properties = properties_of(gpu);
    return fmt::format("{}, {} GiB", properties.name, properties.totalGlobalMem >> 30);
  }
  std::string identity(int gpu) const override {
    const cudaDeviceProp properties = properties_of(gpu);
    std::string text;
    for (const char byte : properties.uuid.bytes)
      text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
  }
  size_t memory(int gpu) const override { return properties_of(gpu).totalGlobalMem; }

  bool reaches(int gpu, int peer) override {
    std::lock_guard lock(mutex_);
    const auto known = reaches_.find({gpu, peer});
    if (known != reaches_.end()) return known->second;
    return reaches_[{gpu, peer}] = gpu == peer || try_link(gpu, peer);
  }

  device::Stream make_stream(int gpu) override {
    const OnGpu here(gpu);
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    // What is freed is kept for the next allocation.
    cudaMemPool_t pool;
    check(cudaDeviceGetDefaultMemPool(&pool, gpu), "cudaDeviceGetDefaultMemPool");
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
          "cudaMemPoolSetAttribute");
    return stream;
  }
  void synchronize(int gpu, device::Stream stream) override {
    const OnGpu here(gpu);
    check(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize");
  }
  bool finished(int gpu, device::Stream stream) override {
    const OnGpu here(gpu);
    const cudaError_t status = cudaStreamQuery(as_stream(stream));
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaStreamQuery");
    return true;
  }

  device::Event record(int gpu, device::Stream stream) override {
    const OnGpu here(gpu);
    const cudaEvent_t event = take_event(gpu);
    check(cudaEventRecord(event, as_stream(stream)), "cudaEventRecord");
    return event;
  }
  void wait(int gpu, device::Stream stream, device::Event event) override {
    const OnGpu here(gpu);
    check(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "cudaStreamWaitEvent");
  }
  bool reached(device::Event event) override {
    const cudaError_t status = cudaEventQuery(as_event(event));
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaEventQuery");
    return true;
  }
  void release(device::Event event) noexcept override {
    std::lock_guard lock(mutex_);
    if (const auto found = gpus_of_events_.find(as_event(event)); found != gpus_of_events_.end())
      events_[size_t(found->second)].push_back(found->first);
  }

  void* allocate(int gpu, size_t bytes, device::Stream stream) override {
    const OnGpu here(gpu);
    void* data = nullptr;
    const cudaError_t status = cudaMallocAsync(&data, bytes, as_stream(stream));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw ResourceExhaustedError(fmt::format(
          "a tensor of {} bytes does not fit on GPU {} ({}); release_cached_memory gives back "
          "what is held in reserve",
          bytes, gpu, describe(gpu)));
    }
    check(status, "cudaMallocAsync");
    return data;
  }
  void deallocate(int gpu, void* data, device::Stream stream) noexcept override {
    try {
      const OnGpu here(gpu);
      cudaFreeAsync(data, as_stream(stream));
    } catch (const Error&) {
    }
    cudaGetLastError();
  }
  void release_cached(int gpu) noexcept override {
    cudaMemPool_t pool;
    if (cudaDeviceGetDefaultMemPool(&pool, gpu) == cudaSuccess && synchronize_gpu(gpu))
      cudaMemPoolTrimTo(pool, 0);
    cudaGetLastError();
  }
  void* allocate_pinned(size_t bytes) override {
    void* data = nullptr;
    check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cudaHostAlloc");
    return data;
  }
  void deallocate_pinned(void* data) noexcept override { cudaFreeHost(data); }

  void copy(int gpu, void* to, const void* from, size_t bytes, device::Stream stream) override {
    if (bytes == 0) return;
    const OnGpu here(gpu);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)),
          "cudaMemcpyAsync");
    wait_for_pinned(from, stream);
  }
  void copy_runs(int gpu, void* to, size_t to_stride, const void* from, size_t from_stride,
                 size_t run, size_t count, device::Stream stream) override {
    if (run == 0 || count == 0) return;
    if (std::max(to_stride, from_stride) > size_t(INT_MAX)) {  // more than CUDA takes
      for (size_t i = 0; i < count; ++i)
        copy(gpu, static_cast<std::byte*>(to) + i * to_stride,
             static_cast<const std::byte*>(from) + i * from_stride, run, stream);
      return;
    }
    const OnGpu here(gpu);
    check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, run, count, cudaMemcpyDefault,
                            as_stream(stream)),
          "cudaMemcpy2DAsync");
    wait_for_pinned(from, stream);
  }

  // Memory of a pool is not open to other GPUs, but this way it can be copied.
  void copy_between(int to_gpu, void* to, int from_gpu, const void* from, size_t bytes,
                    device::Stream stream) override {
    const OnGpu here(to_gpu);
    check(cudaMemcpyPeerAsync(to, to_gpu, from, from_gpu, bytes, as_stream(stream)),
          "cudaMemcpyPeerAsync");
  }

 private:
  static cudaDeviceProp properties_of(int gpu) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties");
    return properties;
  }

  static bool synchronize_gpu(int gpu) noexcept {
    try {
      const OnGpu here(gpu);
      return cudaDeviceSynchronize() == cudaSuccess;
    } catch (const Error&) {
      return false;
    }
  }

  // Pinned host memory is read while the copy is under way; pageable memory was before it returned.
  static void wait_for_pinned(const void* from, device::Stream stream) {
    cudaPointerAttributes attributes{};
    const cudaError_t status = cudaPointerGetAttributes(&attributes, from);
    if (status != cudaSuccess) {
      cudaGetLastError();
      return;
    }
    if (attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged)
      check(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize");
  }

  cudaEvent_t take_event(int gpu) {
    std::lock_guard lock(mutex_);
    std::vector<cudaEvent_t>& spare = events_[size_t(gpu)];
    if (!spare.empty()) {
      const cudaEvent_t event = spare.back();
      spare.pop_back();
      return event;
    }
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    gpus_of_events_[event] = gpu;
    return event;
  }

  // Some machines claim links that lose data, so a few bytes go over before one is believed in.
  static bool try_link(int gpu, int peer) {
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, gpu, peer) != cudaSuccess || !can) {
      cudaGetLastError();
      return false;
    }
    constexpr size_t kWords = 1 << 16;
    std::vector<uint32_t> sent(kWords), received(kWords);
    for (size_t i = 0; i < kWords; ++i) sent[i] = uint32_t(i) * 2654435761u;
    void *there = nullptr, *here_data = nullptr;
    bool good = true;
    const auto attempt = [&](cudaError_t status) {
      good = good && status == cudaSuccess;
      cudaGetLastError();
    };
    {
      const OnGpu over_there(peer);
      attempt(cudaMalloc(&there, kWords * sizeof(uint32_t)));
      if (good)
        attempt(cudaMemcpy(there, sent.data(), kWords * sizeof(uint32_t), cudaMemcpyDefault));
    }
    {
      const OnGpu here(gpu);
      const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
      if (enabled != cudaErrorPeerAccessAlreadyEnabled) attempt(enabled);
      cudaGetLastError();
      if (good) attempt(cudaMalloc(&here_data, kWords * sizeof(uint32_t)));
      if (good) attempt(cudaMemcpyPeer(here_data, gpu, there, peer, kWords * sizeof(uint32_t)));
      if (good)
        attempt(
            cudaMemcpy(received.data(), here_data, kWords * sizeof(uint32_t), cudaMemcpyDefault));
      cudaFree(here_data);
    }
    const OnGpu over_there(peer);
    cudaFree(there);
    return good && received == sent;
  }

  int gpus_ = 0;
  std::string why_none_;
  std::mutex mutex_;
  std::vector<std::vector<cudaEvent_t>> events_;  // spare ones, by GPU
  std::map<cudaEvent_t, int> gpus_of_events_;
  std::map<std::pair<int, int>, bool> reaches_;
};

}  // namespace

device::GpuRuntime& runtime() {
  static auto* const instance = new CudaRuntime;
  return *instance;
}

}  // namespace tutti::cuda
