// SPDX-License-Identifier: Apache-2.0
#include "device/gpu.h"

#include <fmt/format.h>
#include <tutti/cuda.h>
#include <tutti/error.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/module.h"
#include "base/pool_allocator.h"
#include "device/failure.h"

namespace tutti {

namespace device {

namespace {

GpuRuntime& runtime() { return cuda_module()->runtime(); }

// Tutti's own streams of one GPU: that of all operations, and one for uploads, which need not wait
// for what is being computed.
struct OwnStreams {
  explicit OwnStreams(int gpu)
      : operations(runtime().make_stream(gpu)), uploads(runtime().make_stream(gpu)) {}
  Stream operations, uploads;
};

// Made for the GPUs that are used: a stream takes a context, and that takes memory.
const OwnStreams& own_streams(int gpu) {
  struct Slot {
    std::once_flag made;
    std::optional<OwnStreams> streams;
  };
  static Slot* const slots = new Slot[size_t(runtime().gpus())];
  Slot& slot = slots[gpu];
  std::call_once(slot.made, [&] { slot.streams.emplace(gpu); });
  return *slot.streams;
}

Stream own_stream(int gpu) { return own_streams(gpu).operations; }

// The streams that this thread uses instead of Tutti's own.
thread_local std::map<int, Stream> foreign_streams;

// What `stream` does next comes after all that `earlier` has been given to do so far.
void order(int gpu, Stream stream, int earlier_gpu, Stream earlier) {
  if (stream == earlier) return;
  const Event event = runtime().record(earlier_gpu, earlier);
  const std::unique_ptr<void, void (*)(Event)> released(
      event, [](Event recorded) { runtime().release(recorded); });
  runtime().wait(gpu, stream, event);
}

// Memory belongs to Tutti's own stream: a block that comes back is used again for what that stream
// does next. Other streams wait for it when they get a block, and make it wait when they return
// one. Blocks are kept by size, since asking the driver takes longer than a small kernel; what is
// held exceeds the most that was in use at one time by at most a quarter, or by kSlack.
class GpuMemory {
 public:
  explicit GpuMemory(int gpu) : gpu_(gpu) {}

  std::shared_ptr<void> allocate(size_t bytes) {
    const size_t size = rounded(bytes);
    std::shared_ptr<void> memory(
        take(size), [this, size](void* block) { put_back(block, size); },
        base::PoolAllocator<std::byte>());
    if (const Stream stream = current_stream(gpu_); stream != own_stream(gpu_))
      order(gpu_, stream, gpu_, own_stream(gpu_));
    return memory;
  }

  void release_cached() {
    std::lock_guard lock(mutex_);
    shrink_to(0);
    runtime().release_cached(gpu_);
  }

 private:
  static constexpr size_t kSmall = 1 << 20, kLargeStep = 2 << 20, kSlack = 64 << 20;

  static size_t rounded(size_t bytes) {
    if (bytes <= kSmall) return std::bit_ceil(std::max<size_t>(bytes, 256));
    return (bytes + kLargeStep - 1) / kLargeStep * kLargeStep;
  }

  void* take(size_t size) {
    {
      std::lock_guard lock(mutex_);
      in_use_ += size;
      std::vector<void*>& blocks = free_[size];
      if (!blocks.empty()) {
        void* const data = blocks.back();
        blocks.pop_back();
        cached_ -= size;
        most_in_use_ = std::max(most_in_use_, in_use_);
        return data;
      }
      const size_t most = std::max(most_in_use_, in_use_);
      const size_t bound = most + std::max(most / 4, kSlack);
      if (in_use_ + cached_ > bound) shrink_to(bound - in_use_);
    }
    try {
      void* const data = allocate_on_gpu(runtime(), gpu_, size, own_stream(gpu_));
      std::lock_guard lock(mutex_);
      most_in_use_ = std::max(most_in_use_, in_use_);
      return data;
    } catch (...) {
      std::lock_guard lock(mutex_);
      in_use_ -= size;
      throw;
    }
  }

  // Gives blocks back to the driver until at most `bytes` are kept, the largest first.
  void shrink_to(size_t bytes) {
    for (auto entry = free_.rbegin(); entry != free_.rend() && cached_ > bytes; ++entry)
      for (std::vector<void*>& blocks = entry->second; !blocks.empty() && cached_ > bytes;) {
        runtime().deallocate(gpu_, blocks.back(), own_stream(gpu_));
        blocks.pop_back();
        cached_ -= entry->first;
      }
  }

  void put_back(void* data, size_t size) noexcept {
    try {
      if (const Stream stream = current_stream(gpu_); stream != own_stream(gpu_))
        order(gpu_, own_stream(gpu_), gpu_, stream);
      std::lock_guard lock(mutex_);
      in_use_ -= size;
      free_[size].push_back(data);
      cached_ += size;
    } catch (const std::exception&) {
      // The GPU is lost, or the process is at its end.
    }
  }

  const int gpu_;
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  size_t in_use_ = 0, most_in_use_ = 0, cached_ = 0;
};

GpuMemory& memory_of(int gpu) {
  static auto* const memories = [] {
    auto* const all = new std::vector<std::unique_ptr<GpuMemory>>;
    for (int i = 0; i < runtime().gpus(); ++i) all->push_back(std::make_unique<GpuMemory>(i));
    return all;
  }();
  return *(*memories)[size_t(gpu)];
}

class GpuDevice : public Device {
 public:
  GpuDevice(int index, int gpu) : Device("GPU", index), gpu_(gpu) {}

  int gpu() const override { return gpu_; }
  std::shared_ptr<void> allocate(size_t bytes) override { return memory_of(gpu_).allocate(bytes); }
  bool in_host_memory() const override { return false; }
  void settle() noexcept override {
    if (foreign_streams.empty()) return;
    try {
      order(gpu_, own_stream(gpu_), gpu_, current_stream(gpu_));
    } catch (const Error&) {
      // The GPU is lost, or the process is at its end.
    }
  }
  void copy_from_host(void* to, const void* from, size_t bytes) override {
    runtime().copy(gpu_, to, from, bytes, current_stream(gpu_));
  }
  void copy_to_host(void* to, const void* from, size_t bytes) override {
    const Stream stream = current_stream(gpu_);
    runtime().copy(gpu_, to, from, bytes, stream);
    runtime().synchronize(gpu_, stream);
    throw_failure(gpu_);
  }

 private:
  const int gpu_;
};

// As many devices as GPUs, unless more are asked for: then the GPUs take turns.
class GpuProvider : public Provider {
 public:
  int initial_count() const override { return runtime().gpus(); }
  std::unique_ptr<Device> make(int index) override {
    return std::make_unique<GpuDevice>(index, index % runtime().gpus());
  }
};

struct Loaded {
  const CudaModule* module = nullptr;
  std::string why_none;
};

std::atomic<bool> in_use = false;
const CudaModule* stand_in = nullptr;

const Loaded& loaded() {
  static const Loaded* const result = [] {
    auto* const found = new Loaded;
    try {
      const auto* const module =
          stand_in ? stand_in : static_cast<const CudaModule*>(base::load_module("cuda").interface);
      if (module->runtime().gpus() > 0)
        found->module = module;
      else
        found->why_none = module->runtime().why_none();
    } catch (const UnavailableError& e) {
      found->why_none = e.what();
    }
    in_use = found->module != nullptr;
    return found;
  }();
  return *result;
}

}  // namespace

const CudaModule* cuda_module() { return loaded().module; }
const std::string& why_no_gpus() { return loaded().why_none; }
void set_cuda_module(const CudaModule& module) { stand_in = &module; }

std::unique_ptr<Provider> gpu_provider() {
  return cuda_module() ? std::make_unique<GpuProvider>() : nullptr;
}

Stream current_stream(int gpu) {
  if (!foreign_streams.empty())
    if (const auto found = foreign_streams.find(gpu); found != foreign_streams.end())
      return found->second;
  return own_stream(gpu);
}

void release_cached_gpu_memory() {
  if (!in_use) return;
  for (int gpu = 0; gpu < runtime().gpus(); ++gpu) memory_of(gpu).release_cached();
}

void* allocate_on_gpu(GpuRuntime& runtime, int gpu, size_t bytes, Stream stream) {
  try {
    return runtime.allocate(gpu, bytes, stream);
  } catch (const ResourceExhaustedError&) {
    release_cached_gpu_memory();
  }
  return runtime.allocate(gpu, bytes, stream);
}

std::shared_ptr<void> upload(int gpu, const void* from, size_t bytes) {
  const Stream uploads = own_streams(gpu).uploads;
  void* const data = allocate_on_gpu(runtime(), gpu, std::max<size_t>(bytes, 1), uploads);
  std::shared_ptr<void> memory(data, [gpu, uploads](void* block) {
    try {
      order(gpu, uploads, gpu, current_stream(gpu));
      order(gpu, uploads, gpu, own_stream(gpu));  // where others may have used it
    } catch (const Error&) {
      return;  // the GPU is lost
    }
    runtime().deallocate(gpu, block, uploads);
  });
  runtime().copy(gpu, data, from, bytes, uploads);
  order(gpu, current_stream(gpu), gpu, uploads);
  return memory;
}

Fence Fence::here() {
  Fence fence;
  for (const auto& [gpu, stream] : foreign_streams)
    fence.points_.push_back({gpu, stream, runtime().record(gpu, stream)});
  return fence;
}

void Fence::wait() const {
  for (const Point& point : points_)
    if (const Stream mine = current_stream(point.gpu); mine != point.stream)
      runtime().wait(point.gpu, mine, point.event);
  // What was enqueued on Tutti's own streams before; there is no harm in waiting for more of it.
  for (const auto& [gpu, stream] : foreign_streams) order(gpu, stream, gpu, own_stream(gpu));
}

Fence::~Fence() {
  for (const Point& point : points_) runtime().release(point.event);
}

void hand_over() {
  for (const auto& [gpu, stream] : foreign_streams) order(gpu, own_stream(gpu), gpu, stream);
}

void copy(const Device& to_device, void* to, const Device& from_device, const void* from,
          size_t bytes) {
  copy_runs(to_device, to, bytes, from_device, from, bytes, bytes, 1);
}

void copy_runs(const Device& to_device, void* to, size_t to_stride, const Device& from_device,
               const void* from, size_t from_stride, size_t run, size_t count) {
  if (run == 0 || count == 0) return;
  const int to_gpu = to_device.gpu(), from_gpu = from_device.gpu();
  const int gpu = to_gpu >= 0 ? to_gpu : from_gpu;
  const Stream stream = current_stream(gpu);
  const bool between = to_gpu >= 0 && from_gpu >= 0 && to_gpu != from_gpu;
  if (between) order(gpu, stream, from_gpu, current_stream(from_gpu));
  if (between)
    for (size_t i = 0; i < count; ++i)
      runtime().copy_between(to_gpu, static_cast<std::byte*>(to) + i * to_stride, from_gpu,
                             static_cast<const std::byte*>(from) + i * from_stride, run, stream);
  else if (count == 1)
    runtime().copy(gpu, to, from, run, stream);
  else
    runtime().copy_runs(gpu, to, to_stride, from, from_stride, run, count, stream);
  if (between) order(from_gpu, current_stream(from_gpu), gpu, stream);  // it may be freed there
  if (to_gpu >= 0) return;
  runtime().synchronize(gpu, stream);
  throw_failure(gpu);
}

}  // namespace device

namespace {

int gpu_of(std::string_view name, std::string_view what) {
  const detail::Device& device = device::find(name.empty() ? "/gpu:0" : name, what);
  if (device.gpu() < 0)
    throw InvalidArgumentError(fmt::format("{}: {} is not a GPU", what, device.name()));
  return device.gpu();
}

}  // namespace

void* cuda_stream(std::string_view device) {
  return device::current_stream(gpu_of(device, "cuda_stream"));
}

int cuda_device(std::string_view device) { return gpu_of(device, "cuda_device"); }

void synchronize(std::string_view device) {
  const int gpu = gpu_of(device, "synchronize");
  device::runtime().synchronize(gpu, device::current_stream(gpu));
  device::throw_failure(gpu);
}

StreamScope::StreamScope(void* stream, std::string_view device)
    : gpu_(gpu_of(device, "StreamScope")), stream_(stream) {
  const device::Stream before = device::current_stream(gpu_);
  device::order(gpu_, stream, gpu_, before);
  const auto found = device::foreign_streams.find(gpu_);
  if (found != device::foreign_streams.end()) outer_ = found->second;
  device::foreign_streams[gpu_] = stream;
}

StreamScope::~StreamScope() {
  if (outer_)
    device::foreign_streams[gpu_] = *outer_;
  else
    device::foreign_streams.erase(gpu_);
  try {
    device::order(gpu_, device::current_stream(gpu_), gpu_, stream_);
  } catch (const Error&) {
    // The GPU is lost; the next wait for it throws.
  }
}

}  // namespace tutti
