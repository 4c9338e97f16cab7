// SPDX-License-Identifier: Apache-2.0
// GPUs: what the module "cuda" does for us, the streams of this thread, and the devices on top.
//
// Everything that touches a GPU is enqueued on a stream: this thread's stream of that GPU. By
// default that is one stream of Tutti's per GPU, the same for all threads, so that operations
// happen in the order they were called; a StreamScope puts another in its place.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"

namespace tutti::device {

using Stream = void*;  // a cudaStream_t
using Event = void*;   // a cudaEvent_t

// Plain calls, each for one GPU. Thread-safe. Errors of the driver become an InternalError, or a
// ResourceExhaustedError if the GPU has no memory left.
class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;

  // 0 if there is none, with the reason.
  virtual int gpus() const = 0;
  virtual const std::string& why_none() const = 0;
  virtual std::string describe(int gpu) const = 0;  // "NVIDIA H200, 139 GiB"
  virtual std::string identity(int gpu) const = 0;  // the same in every process
  virtual size_t memory(int gpu) const = 0;         // bytes in all
  // Can `gpu` read and write the memory of `peer` directly? Tried with real data.
  virtual bool reaches(int gpu, int peer) = 0;

  virtual Stream make_stream(int gpu) = 0;
  virtual void synchronize(int gpu, Stream stream) = 0;
  virtual bool finished(int gpu, Stream stream) = 0;  // all that was enqueued so far
  virtual Event record(int gpu, Stream stream) = 0;
  virtual void wait(int gpu, Stream stream, Event event) = 0;  // also one of another GPU
  virtual bool reached(Event event) = 0;
  virtual void release(Event event) noexcept = 0;

  // Stream-ordered memory: usable by what is enqueued on `stream` next, and free again once the
  // stream has reached the deallocation.
  virtual void* allocate(int gpu, size_t bytes, Stream stream) = 0;
  virtual void deallocate(int gpu, void* data, Stream stream) noexcept = 0;
  virtual void release_cached(int gpu) noexcept = 0;
  virtual void* allocate_pinned(size_t bytes) = 0;
  virtual void deallocate_pinned(void* data) noexcept = 0;

  // Between memory of `gpu` and the host's, or within the GPU; enqueued. Host memory has been
  // read when it returns.
  virtual void copy(int gpu, void* to, const void* from, size_t bytes, Stream stream) = 0;
  // `count` runs of `run` bytes, each `to_stride` or `from_stride` behind the one before.
  virtual void copy_runs(int gpu, void* to, size_t to_stride, const void* from, size_t from_stride,
                         size_t run, size_t count, Stream stream) = 0;
  // From one GPU to another, by a stream of the first.
  virtual void copy_between(int to_gpu, void* to, int from_gpu, const void* from, size_t bytes,
                            Stream stream) = 0;
};

// What the module "cuda" hands out. Each is a kernels::CudaModuleWithKernels.
struct CudaModule {
  GpuRuntime& (*runtime)();
};

// The module, or null if it cannot be loaded or the machine has no GPU; `why_no_gpus` then says
// why.
const CudaModule* cuda_module();
const std::string& why_no_gpus();

// For tests: used in place of the module. To be called before the first use of a GPU.
void set_cuda_module(const CudaModule& module);

// Memory straight from the driver. If there is none left, what Tutti holds in reserve goes back
// first.
void* allocate_on_gpu(GpuRuntime& runtime, int gpu, size_t bytes, Stream stream);

// The GPUs of this machine; null if there are none.
std::unique_ptr<Provider> gpu_provider();
void release_cached_gpu_memory();

// This thread's stream of `gpu`.
Stream current_stream(int gpu);

// Host memory, copied to `gpu` while it computes something else; what this thread enqueues next
// finds it there.
std::shared_ptr<void> upload(int gpu, const void* from, size_t bytes);

// A point in what this thread has enqueued so far, on all GPUs; another thread that waits for it
// enqueues behind it. Costs nothing while both use Tutti's own streams.
class Fence {
 public:
  Fence() = default;
  ~Fence();
  Fence(Fence&& other) noexcept : points_(std::exchange(other.points_, {})) {}
  Fence& operator=(Fence&& other) noexcept {
    std::swap(points_, other.points_);
    return *this;
  }

  static Fence here();
  void wait() const;

 private:
  struct Point {
    int gpu;
    Stream stream;
    Event event;
  };
  std::vector<Point> points_;
};

// Orders what threads on Tutti's own streams enqueue from here on behind what this thread has
// enqueued. Fence().wait() orders this thread behind their results.
void hand_over();

// Copies between two memories of which at least one is a GPU's. To the host: returns when the bytes
// are there. Else enqueued.
void copy(const Device& to_device, void* to, const Device& from_device, const void* from,
          size_t bytes);
void copy_runs(const Device& to_device, void* to, size_t to_stride, const Device& from_device,
               const void* from, size_t from_stride, size_t run, size_t count);

}  // namespace tutti::device
