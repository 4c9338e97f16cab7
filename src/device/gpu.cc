#include "device/gpu.h"

#include <fmt/format.h>
#include <tutti/cuda.h>
#include <tutti/error.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include "base/module.h"

namespace tutti {

namespace device {

namespace {

GpuRuntime& runtime() { return cuda_module()->runtime(); }

// Tutti's own streams of one card: that of all operations, and one for uploads, which need not wait
// for what is being computed.
struct OwnStreams {
  explicit OwnStreams(int card)
      : operations(runtime().make_stream(card)), uploads(runtime().make_stream(card)) {}
  Stream operations, uploads;
};

const OwnStreams& own_streams(int card) {
  static const auto* const streams = [] {
    auto* const all = new std::vector<OwnStreams>;
    for (int i = 0; i < runtime().cards(); ++i) all->emplace_back(i);
    return all;
  }();
  return (*streams)[size_t(card)];
}

Stream own_stream(int card) { return own_streams(card).operations; }

// The streams that this thread uses instead of Tutti's own.
thread_local std::map<int, Stream> foreign_streams;

// What `stream` does next comes after all that `earlier` has been given to do so far.
void order(int card, Stream stream, int earlier_card, Stream earlier) {
  if (stream == earlier) return;
  const Event event = runtime().record(earlier_card, earlier);
  runtime().wait(card, stream, event);
  runtime().release(event);
}

// Memory belongs to Tutti's own stream: a block that comes back is used again for what that stream
// does next. Other streams wait for it when they get a block, and make it wait when they return
// one. Small blocks are kept here, by size, since asking the driver takes as long as using them.
class GpuMemory {
 public:
  explicit GpuMemory(int card) : card_(card) {}

  std::shared_ptr<void> allocate(size_t bytes) {
    const size_t size =
        bytes <= kLargestSmall ? std::bit_ceil(std::max<size_t>(bytes, kSmallest)) : bytes;
    void* const data = take(size);
    if (const Stream stream = current_stream(card_); stream != own_stream(card_))
      order(card_, stream, card_, own_stream(card_));
    return {data, [this, size](void* block) { put_back(block, size); }};
  }

  // From the driver. What is held in reserve goes back to it before anybody is told that there is
  // nothing left.
  void* allocate_new(size_t bytes, Stream stream) {
    try {
      return runtime().allocate(card_, bytes, stream);
    } catch (const ResourceExhaustedError&) {
      release_cached();
    }
    return runtime().allocate(card_, bytes, stream);
  }

  void release_cached() {
    std::lock_guard lock(mutex_);
    for (auto& [size, blocks] : free_)
      for (void* const block : blocks) runtime().deallocate(card_, block, own_stream(card_));
    free_.clear();
    runtime().release_cached(card_);
  }

 private:
  static constexpr size_t kSmallest = 256, kLargestSmall = 1 << 20, kMostOfOneSize = 256;

  void* take(size_t size) {
    if (size <= kLargestSmall) {
      std::lock_guard lock(mutex_);
      std::vector<void*>& blocks = free_[size];
      if (!blocks.empty()) {
        void* const data = blocks.back();
        blocks.pop_back();
        return data;
      }
    }
    return allocate_new(size, own_stream(card_));
  }

  void put_back(void* data, size_t size) noexcept {
    try {
      if (const Stream stream = current_stream(card_); stream != own_stream(card_))
        order(card_, own_stream(card_), card_, stream);
      if (size <= kLargestSmall) {
        std::lock_guard lock(mutex_);
        std::vector<void*>& blocks = free_[size];
        if (blocks.size() < kMostOfOneSize) return blocks.push_back(data);
      }
    } catch (const Error&) {
      return;  // the card is lost, or the process is at its end
    }
    runtime().deallocate(card_, data, own_stream(card_));
  }

  const int card_;
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
};

GpuMemory& memory_of(int card) {
  static auto* const memories = [] {
    auto* const all = new std::vector<std::unique_ptr<GpuMemory>>;
    for (int i = 0; i < runtime().cards(); ++i) all->push_back(std::make_unique<GpuMemory>(i));
    return all;
  }();
  return *(*memories)[size_t(card)];
}

class GpuDevice : public Device {
 public:
  GpuDevice(int index, int card) : Device("GPU", index), card_(card) {}

  int card() const override { return card_; }
  std::shared_ptr<void> allocate(size_t bytes) override { return memory_of(card_).allocate(bytes); }
  bool in_host_memory() const override { return false; }
  void copy_from_host(void* to, const void* from, size_t bytes) override {
    runtime().copy(card_, to, from, bytes, current_stream(card_));
  }
  void copy_to_host(void* to, const void* from, size_t bytes) override {
    const Stream stream = current_stream(card_);
    runtime().copy(card_, to, from, bytes, stream);
    runtime().synchronize(card_, stream);
  }

 private:
  const int card_;
};

// As many devices as cards, unless more are asked for: then the cards take turns.
class GpuProvider : public Provider {
 public:
  int initial_count() const override { return runtime().cards(); }
  std::unique_ptr<Device> make(int index) override {
    return std::make_unique<GpuDevice>(index, index % runtime().cards());
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
      if (module->runtime().cards() > 0)
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

Stream current_stream(int card) {
  if (!foreign_streams.empty())
    if (const auto found = foreign_streams.find(card); found != foreign_streams.end())
      return found->second;
  return own_stream(card);
}

void release_cached_gpu_memory() {
  if (!in_use) return;
  for (int card = 0; card < runtime().cards(); ++card) memory_of(card).release_cached();
}

std::shared_ptr<void> upload(int card, const void* from, size_t bytes) {
  const Stream uploads = own_streams(card).uploads;
  void* const data = memory_of(card).allocate_new(std::max<size_t>(bytes, 1), uploads);
  std::shared_ptr<void> memory(data, [card, uploads](void* block) {
    try {
      order(card, uploads, card, current_stream(card));
    } catch (const Error&) {
      return;  // the card is lost
    }
    runtime().deallocate(card, block, uploads);
  });
  runtime().copy(card, data, from, bytes, uploads);
  order(card, current_stream(card), card, uploads);
  return memory;
}

Fence Fence::here() {
  Fence fence;
  for (const auto& [card, stream] : foreign_streams)
    fence.points_.push_back({card, stream, runtime().record(card, stream)});
  return fence;
}

void Fence::wait() const {
  for (const Point& point : points_)
    if (const Stream mine = current_stream(point.card); mine != point.stream)
      runtime().wait(point.card, mine, point.event);
  // What was enqueued on Tutti's own streams before; there is no harm in waiting for more of it.
  for (const auto& [card, stream] : foreign_streams) order(card, stream, card, own_stream(card));
}

Fence::~Fence() {
  for (const Point& point : points_) runtime().release(point.event);
}

void copy(const Device& to_device, void* to, const Device& from_device, const void* from,
          size_t bytes) {
  copy_runs(to_device, to, bytes, from_device, from, bytes, bytes, 1);
}

void copy_runs(const Device& to_device, void* to, size_t to_stride, const Device& from_device,
               const void* from, size_t from_stride, size_t run, size_t count) {
  if (run == 0 || count == 0) return;
  const int to_card = to_device.card(), from_card = from_device.card();
  const int card = to_card >= 0 ? to_card : from_card;
  const Stream stream = current_stream(card);
  const bool between = to_card >= 0 && from_card >= 0 && to_card != from_card;
  if (between) order(card, stream, from_card, current_stream(from_card));
  if (count == 1)
    runtime().copy(card, to, from, run, stream);
  else
    runtime().copy_runs(card, to, to_stride, from, from_stride, run, count, stream);
  if (between) order(from_card, current_stream(from_card), card, stream);  // it may be freed there
  if (to_card < 0) runtime().synchronize(card, stream);
}

}  // namespace device

namespace {

int card_of(std::string_view name, std::string_view what) {
  const detail::Device& device = device::find(name.empty() ? "/gpu:0" : name, what);
  if (device.card() < 0)
    throw InvalidArgumentError(fmt::format("{}: {} is not a GPU", what, device.name()));
  return device.card();
}

}  // namespace

void* cuda_stream(std::string_view device) {
  return device::current_stream(card_of(device, "cuda_stream"));
}

int cuda_card(std::string_view device) { return card_of(device, "cuda_card"); }

void synchronize(std::string_view device) {
  const int card = card_of(device, "synchronize");
  device::runtime().synchronize(card, device::current_stream(card));
}

StreamScope::StreamScope(void* stream, std::string_view device)
    : card_(card_of(device, "StreamScope")), stream_(stream) {
  const device::Stream before = device::current_stream(card_);
  device::order(card_, stream, card_, before);
  const auto found = device::foreign_streams.find(card_);
  if (found != device::foreign_streams.end()) outer_ = found->second;
  device::foreign_streams[card_] = stream;
}

StreamScope::~StreamScope() {
  if (outer_)
    device::foreign_streams[card_] = *outer_;
  else
    device::foreign_streams.erase(card_);
  try {
    device::order(card_, device::current_stream(card_), card_, stream_);
  } catch (const Error&) {
    // The card is lost; whoever waits for it next is told.
  }
}

}  // namespace tutti
