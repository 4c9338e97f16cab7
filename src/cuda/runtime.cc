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
    const cudaError_t status = cudaGetDeviceCount(&cards_);
    if (status == cudaSuccess && cards_ > 0) {
      events_.resize(size_t(cards_));
      return;
    }
    cards_ = 0;
    why_none_ = status == cudaSuccess ? "the CUDA driver sees no card"
                : status == cudaErrorInsufficientDriver
                    ? fmt::format("there is no NVIDIA driver, or one older than CUDA {}.{}",
                                  CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10)
                    : cudaGetErrorString(status);
    cudaGetLastError();
  }

  int cards() const override { return cards_; }
  const std::string& why_none() const override { return why_none_; }

  std::string describe(int card) const override {
    const cudaDeviceProp properties = properties_of(card);
    return fmt::format("{}, {} GiB", properties.name, properties.totalGlobalMem >> 30);
  }
  std::string identity(int card) const override {
    const cudaDeviceProp properties = properties_of(card);
    std::string text;
    for (const char byte : properties.uuid.bytes)
      text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return text;
  }
  size_t memory(int card) const override { return properties_of(card).totalGlobalMem; }

  bool reaches(int card, int peer) override {
    std::lock_guard lock(mutex_);
    const auto known = reaches_.find({card, peer});
    if (known != reaches_.end()) return known->second;
    return reaches_[{card, peer}] = card == peer || try_link(card, peer);
  }

  device::Stream make_stream(int card) override {
    const OnCard here(card);
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    // What is freed is kept for the next allocation.
    cudaMemPool_t pool;
    check(cudaDeviceGetDefaultMemPool(&pool, card), "cudaDeviceGetDefaultMemPool");
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
          "cudaMemPoolSetAttribute");
    return stream;
  }
  void synchronize(int card, device::Stream stream) override {
    const OnCard here(card);
    check(cudaStreamSynchronize(as_stream(stream)), "cudaStreamSynchronize");
  }
  bool finished(int card, device::Stream stream) override {
    const OnCard here(card);
    const cudaError_t status = cudaStreamQuery(as_stream(stream));
    if (status == cudaErrorNotReady) return false;
    check(status, "cudaStreamQuery");
    return true;
  }

  device::Event record(int card, device::Stream stream) override {
    const OnCard here(card);
    const cudaEvent_t event = take_event(card);
    check(cudaEventRecord(event, as_stream(stream)), "cudaEventRecord");
    return event;
  }
  void wait(int card, device::Stream stream, device::Event event) override {
    const OnCard here(card);
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
    if (const auto found = cards_of_events_.find(as_event(event)); found != cards_of_events_.end())
      events_[size_t(found->second)].push_back(found->first);
  }

  void* allocate(int card, size_t bytes, device::Stream stream) override {
    const OnCard here(card);
    void* data = nullptr;
    const cudaError_t status = cudaMallocAsync(&data, bytes, as_stream(stream));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw ResourceExhaustedError(fmt::format(
          "a tensor of {} bytes does not fit on card {} ({}); release_cached_memory gives back "
          "what is held in reserve",
          bytes, card, describe(card)));
    }
    check(status, "cudaMallocAsync");
    return data;
  }
  void deallocate(int card, void* data, device::Stream stream) noexcept override {
    try {
      const OnCard here(card);
      cudaFreeAsync(data, as_stream(stream));
    } catch (const Error&) {
    }
    cudaGetLastError();
  }
  void release_cached(int card) noexcept override {
    cudaMemPool_t pool;
    if (cudaDeviceGetDefaultMemPool(&pool, card) == cudaSuccess && synchronize_card(card))
      cudaMemPoolTrimTo(pool, 0);
    cudaGetLastError();
  }
  void* allocate_pinned(size_t bytes) override {
    void* data = nullptr;
    check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "cudaHostAlloc");
    return data;
  }
  void deallocate_pinned(void* data) noexcept override { cudaFreeHost(data); }

  void copy(int card, void* to, const void* from, size_t bytes, device::Stream stream) override {
    if (bytes == 0) return;
    const OnCard here(card);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)),
          "cudaMemcpyAsync");
    wait_for_pinned(from, stream);
  }
  void copy_runs(int card, void* to, size_t to_stride, const void* from, size_t from_stride,
                 size_t run, size_t count, device::Stream stream) override {
    if (run == 0 || count == 0) return;
    if (std::max(to_stride, from_stride) > size_t(INT_MAX)) {  // more than CUDA takes
      for (size_t i = 0; i < count; ++i)
        copy(card, static_cast<std::byte*>(to) + i * to_stride,
             static_cast<const std::byte*>(from) + i * from_stride, run, stream);
      return;
    }
    const OnCard here(card);
    check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, run, count, cudaMemcpyDefault,
                            as_stream(stream)),
          "cudaMemcpy2DAsync");
    wait_for_pinned(from, stream);
  }

  // Memory of a pool is not open to other cards, but this way it can be copied.
  void copy_between(int to_card, void* to, int from_card, const void* from, size_t bytes,
                    device::Stream stream) override {
    const OnCard here(to_card);
    check(cudaMemcpyPeerAsync(to, to_card, from, from_card, bytes, as_stream(stream)),
          "cudaMemcpyPeerAsync");
  }

 private:
  static cudaDeviceProp properties_of(int card) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, card), "cudaGetDeviceProperties");
    return properties;
  }

  static bool synchronize_card(int card) noexcept {
    try {
      const OnCard here(card);
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

  cudaEvent_t take_event(int card) {
    std::lock_guard lock(mutex_);
    std::vector<cudaEvent_t>& spare = events_[size_t(card)];
    if (!spare.empty()) {
      const cudaEvent_t event = spare.back();
      spare.pop_back();
      return event;
    }
    cudaEvent_t event;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    cards_of_events_[event] = card;
    return event;
  }

  // Some machines claim links that lose data, so a few bytes go over before one is believed in.
  static bool try_link(int card, int peer) {
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, card, peer) != cudaSuccess || !can) {
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
      const OnCard over_there(peer);
      attempt(cudaMalloc(&there, kWords * sizeof(uint32_t)));
      if (good)
        attempt(cudaMemcpy(there, sent.data(), kWords * sizeof(uint32_t), cudaMemcpyDefault));
    }
    {
      const OnCard here(card);
      const cudaError_t enabled = cudaDeviceEnablePeerAccess(peer, 0);
      if (enabled != cudaErrorPeerAccessAlreadyEnabled) attempt(enabled);
      cudaGetLastError();
      if (good) attempt(cudaMalloc(&here_data, kWords * sizeof(uint32_t)));
      if (good) attempt(cudaMemcpyPeer(here_data, card, there, peer, kWords * sizeof(uint32_t)));
      if (good)
        attempt(
            cudaMemcpy(received.data(), here_data, kWords * sizeof(uint32_t), cudaMemcpyDefault));
      cudaFree(here_data);
    }
    const OnCard over_there(peer);
    cudaFree(there);
    return good && received == sent;
  }

  int cards_ = 0;
  std::string why_none_;
  std::mutex mutex_;
  std::vector<std::vector<cudaEvent_t>> events_;  // spare ones, by card
  std::map<cudaEvent_t, int> cards_of_events_;
  std::map<std::pair<int, int>, bool> reaches_;
};

}  // namespace

device::GpuRuntime& runtime() {
  static auto* const instance = new CudaRuntime;
  return *instance;
}

}  // namespace tutti::cuda
