// SPDX-License-Identifier: Apache-2.0
#include "support/fake_cuda.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <tutti/error.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "kernels/cast.h"
#include "kernels/gpu.h"

namespace tutti::testing {

namespace {

using device::Event;
using device::Stream;
using kernels::Reduction;

constexpr size_t kGpuBytes = size_t(1) << 30;
constexpr size_t kGap = 256;  // behind every block, to notice writes past its end
constexpr size_t kAlignment = 256;
constexpr int kRubbish = 0xa5, kGuard = 0xc7;
constexpr size_t kMostRubbish = 4 << 20;  // at either end of a fresh block
constexpr size_t kLongestQueue = 1000;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "fake CUDA: %s\n", why.c_str());
  std::abort();
}

// The memory of one GPU, mapped twice.
class GpuMemory {
 public:
  GpuMemory() {
    const int fd = memfd_create("fake GPU", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, off_t(kGpuBytes)) != 0) fail("no memory for a GPU");
    outside_ = map(fd, PROT_NONE);
    inside_ = map(fd, PROT_READ | PROT_WRITE);
    close(fd);
    free_[0] = kGpuBytes;
  }

  bool holds(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    return at >= outside_ && at < outside_ + kGpuBytes;
  }

  // The memory behind `address` that can be touched. The bytes must lie in one block.
  std::byte* inside(const void* address, size_t bytes) const {
    const size_t at = offset(address);
    auto block = blocks_.upper_bound(at);
    if (block == blocks_.begin()) fail(fmt::format("{} is in no block of memory", address));
    --block;
    if (at + bytes > block->first + block->second.size)
      fail(fmt::format("{} bytes at {} are freed, or past the end of a block of {}", bytes, address,
                       block->second.size));
    return inside_ + at;
  }

  // Null if no memory is left.
  void* take(size_t bytes) {
    const size_t needed = (bytes + kGap + kAlignment - 1) / kAlignment * kAlignment;
    for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
      const auto [at, size] = *hole;
      if (size < needed) continue;
      free_.erase(hole);
      if (size > needed) free_[at + needed] = size - needed;
      blocks_[at] = {bytes, needed, false};
      std::memset(inside_ + at + bytes, kGuard, needed - bytes);
      return outside_ + at;
    }
    return nullptr;
  }

  void doom(const void* address) {
    const auto block = blocks_.find(offset(address));
    if (block == blocks_.end() || block->second.doomed)
      fail(fmt::format("{} is freed twice, or was never allocated", address));
    block->second.doomed = true;
  }

  void give_back(const void* address) {
    const auto block = blocks_.find(offset(address));
    const auto [at, b] = *block;
    for (size_t i = b.size; i < b.taken; ++i)
      if (inside_[at + i] != std::byte(kGuard))
        fail(fmt::format("something was written {} bytes past the end of a block of {}",
                         i - b.size + 1, b.size));
    blocks_.erase(block);
    size_t begin = at, end = at + b.taken;
    auto next = free_.lower_bound(at);
    if (next != free_.end() && next->first == end) {
      end += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin())
      if (const auto before = std::prev(next); before->first + before->second == begin) {
        begin = before->first;
        free_.erase(before);
      }
    free_[begin] = end - begin;
  }

  size_t blocks() const { return blocks_.size(); }

 private:
  struct Block {
    size_t size = 0, taken = 0;
    bool doomed = false;  // its end is enqueued
  };

  static std::byte* map(int fd, int protection) {
    void* const data =
        mmap(nullptr, kGpuBytes, protection, MAP_SHARED | MAP_NORESERVE, fd, off_t(0));
    if (data == MAP_FAILED) fail("no addresses for a GPU");
    return static_cast<std::byte*>(data);
  }
  size_t offset(const void* address) const {
    return size_t(static_cast<const std::byte*>(address) - outside_);
  }

  std::byte *outside_, *inside_;
  std::map<size_t, size_t> free_;
  std::map<size_t, Block> blocks_;
};

struct FakeStream {
  int gpu;
  std::deque<std::function<void()>> queue = {};
  uint64_t enqueued = 0, done = 0;
};

struct FakeEvent {
  FakeStream* stream;
  uint64_t position;
};

// Everything is under one lock, the work itself included.
class FakeCuda : public device::GpuRuntime, public kernels::GpuKernels {
 public:
  FakeCuda() {
    const char* const gpus = std::getenv("TUTTI_TEST_CARDS");
    memories_.resize(size_t(gpus ? std::atoi(gpus) : 1));
    for (size_t i = 0; i < memories_.size(); ++i) default_streams_.push_back(new_stream(int(i)));
  }

  FakeCudaCounts counts() {
    std::lock_guard lock(mutex_);
    FakeCudaCounts result = counts_;
    for (const GpuMemory& memory : memories_) result.blocks += int64_t(memory.blocks());
    return result;
  }

  int gpus() const override { return int(memories_.size()); }
  const std::string& why_none() const override { return why_none_; }
  std::string describe(int gpu) const override { return fmt::format("fake GPU {}, 1 GiB", gpu); }
  std::string identity(int gpu) const override { return fmt::format("fake-{}", gpu); }
  size_t memory(int) const override { return kGpuBytes; }
  bool reaches(int, int) override { return true; }

  Stream make_stream(int gpu) override {
    std::lock_guard lock(mutex_);
    return new_stream(gpu);
  }
  void synchronize(int gpu, Stream stream) override {
    std::lock_guard lock(mutex_);
    ++counts_.synchronizations;
    run_all(stream_of(gpu, stream));
  }
  bool finished(int gpu, Stream stream) override {
    std::lock_guard lock(mutex_);
    FakeStream& s = stream_of(gpu, stream);
    run_until(s, std::min(s.done + 1, s.enqueued));
    return s.done == s.enqueued;
  }
  Event record(int gpu, Stream stream) override {
    std::lock_guard lock(mutex_);
    FakeStream& s = stream_of(gpu, stream);
    auto* const event = new FakeEvent{&s, s.enqueued};
    events_.insert(event);
    return event;
  }
  void wait(int gpu, Stream stream, Event event) override {
    std::lock_guard lock(mutex_);
    ++counts_.waits;
    const FakeEvent e = event_of(event);
    enqueue(gpu, stream, [this, e] { run_until(*e.stream, e.position); });
  }
  bool reached(Event event) override {
    std::lock_guard lock(mutex_);
    const FakeEvent e = event_of(event);
    run_until(*e.stream, std::min(e.stream->done + 1, e.position));
    return e.stream->done >= e.position;
  }
  void release(Event event) noexcept override {
    std::lock_guard lock(mutex_);
    auto* const e = static_cast<FakeEvent*>(event);
    if (!events_.erase(e)) fail("an event is released twice");
    delete e;
  }

  void* allocate(int gpu, size_t bytes, Stream stream) override {
    std::lock_guard lock(mutex_);
    ++counts_.allocations;
    GpuMemory& memory = memories_[size_t(gpu)];
    void* data = memory.take(bytes);
    if (!data) {
      for (const auto& s : streams_) run_all(*s);
      data = memory.take(bytes);
    }
    if (!data)
      throw ResourceExhaustedError(
          fmt::format("a tensor of {} bytes does not fit on GPU {} ({}); release_cached_memory "
                      "gives back what is held in reserve",
                      bytes, gpu, describe(gpu)));
    enqueue(gpu, stream, [this, gpu, data, bytes] {
      std::byte* const fresh = inside(gpu, data, bytes);
      const size_t part = std::min(bytes, kMostRubbish);
      std::memset(fresh, kRubbish, part);
      std::memset(fresh + bytes - part, kRubbish, part);
    });
    return data;
  }
  void deallocate(int gpu, void* data, Stream stream) noexcept override {
    std::lock_guard lock(mutex_);
    GpuMemory& memory = memories_[size_t(gpu)];
    memory.doom(data);
    enqueue(gpu, stream, [&memory, data] { memory.give_back(data); });
  }
  void release_cached(int gpu) noexcept override {
    std::lock_guard lock(mutex_);
    for (const auto& s : streams_)
      if (s->gpu == gpu) run_all(*s);
  }
  void* allocate_pinned(size_t bytes) override {
    return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  void deallocate_pinned(void* data) noexcept override { std::free(data); }

  void copy_between(int to_gpu, void* to, int from_gpu, const void* from, size_t bytes,
                    Stream stream) override {
    if (bytes == 0) return;
    std::lock_guard lock(mutex_);
    if (gpu_of(to) != to_gpu || gpu_of(from) != from_gpu) fail("a copy names other GPUs");
    move_runs(to_gpu, to, bytes, from, bytes, bytes, 1, stream);
  }
  void copy(int gpu, void* to, const void* from, size_t bytes, Stream stream) override {
    copy_runs(gpu, to, bytes, from, bytes, bytes, 1, stream);
  }
  void copy_runs(int gpu, void* to, size_t to_stride, const void* from, size_t from_stride,
                 size_t run, size_t count, Stream stream) override {
    if (run == 0 || count == 0) return;
    if (count > 1 && (to_stride < run || from_stride < run)) fail("runs of bytes overlap");
    std::lock_guard lock(mutex_);
    if (gpu_of(to) >= 0 && gpu_of(from) >= 0 && gpu_of(to) != gpu_of(from))
      fail("a copy between GPUs is not open to this call");
    move_runs(gpu, to, to_stride, from, from_stride, run, count, stream);
  }
  void move_runs(int gpu, void* to, size_t to_stride, const void* from, size_t from_stride,
                 size_t run, size_t count, Stream stream) {
    ++counts_.copies;
    const size_t from_bytes = (count - 1) * from_stride + run;
    const size_t to_bytes = (count - 1) * to_stride + run;
    std::vector<std::byte> read_now;
    if (gpu_of(from) < 0) {
      read_now.resize(run * count);
      for (size_t i = 0; i < count; ++i)
        std::memcpy(read_now.data() + i * run,
                    static_cast<const std::byte*>(from) + i * from_stride, run);
    }
    enqueue(gpu, stream, [=, this, read_now = std::move(read_now)] {
      const bool is_here = !read_now.empty();
      const std::byte* const source = is_here ? read_now.data() : anywhere(from, from_bytes);
      std::byte* const target = anywhere(to, to_bytes);
      for (size_t i = 0; i < count; ++i)
        std::memmove(target + i * to_stride, source + i * (is_here ? run : from_stride), run);
    });
  }

  void reduce(int gpu, Stream stream, std::span<const Reduction> batch) override {
    std::lock_guard lock(mutex_);
    ++counts_.launches;
    for (const Reduction& r : batch) {
      std::vector<const void*> from(r.inputs.begin(), r.inputs.end());
      std::vector<void*> to(r.outputs.begin(), r.outputs.end());
      Reduction mine = r;
      enqueue(gpu, stream, [=, this]() mutable {
        const auto count = size_t(mine.count);
        if (count == 0) return;
        for (const void*& input : from) input = inside(gpu, input, count * size_of(mine.dtype));
        for (void*& output : to)
          output = inside(gpu, output, count * size_of(result_dtype(mine.op, mine.dtype)));
        mine.inputs = from;
        mine.outputs = to;
        kernels::reduce_here(mine, false);
      });
    }
  }
  void cast(int gpu, Stream stream, const void* from, DType from_type, void* to, DType to_type,
            int64_t count) override {
    launch(gpu, stream, [=, this] {
      kernels::cast(inside(gpu, from, size_t(count) * size_of(from_type)), from_type,
                    inside(gpu, to, size_t(count) * size_of(to_type)), to_type, count);
    });
  }
  void fill(int gpu, Stream stream, void* to, const void* element, size_t element_size,
            int64_t count) override {
    std::vector<std::byte> value(static_cast<const std::byte*>(element),
                                 static_cast<const std::byte*>(element) + element_size);
    launch(gpu, stream, [=, this] {
      const size_t bytes = size_t(count) * element_size;
      std::byte* const target = inside(gpu, to, bytes);
      if (bytes) std::memcpy(target, value.data(), element_size);
      for (size_t done = element_size; done < bytes; done *= 2)
        std::memcpy(target + done, target, std::min(done, bytes - done));
    });
  }
  void update(int gpu, Stream stream, kernels::Update update, DType dtype, void* target,
              const void* value, int64_t count) override {
    launch(gpu, stream, [=, this] { apply(gpu, update, dtype, target, value, count); });
  }
  void update_rows(int gpu, Stream stream, kernels::Update update, DType dtype, void* target,
                   const void* values, int64_t width, const kernels::RowUpdate* rows,
                   int64_t num_rows, const int64_t* order) override {
    launch(gpu, stream, [=, this] {
      const size_t row_bytes = size_t(width) * size_of(dtype);
      const auto* const updates = reinterpret_cast<const kernels::RowUpdate*>(
          inside(gpu, rows, size_t(num_rows) * sizeof(kernels::RowUpdate)));
      for (int64_t r = 0; r < num_rows; ++r)
        for (int64_t k = updates[r].begin; k < updates[r].end; ++k) {
          const auto from =
              *reinterpret_cast<const int64_t*>(inside(gpu, order + k, sizeof(int64_t)));
          apply(gpu, update, dtype,
                static_cast<std::byte*>(target) + size_t(updates[r].row) * row_bytes,
                static_cast<const std::byte*>(values) + size_t(from) * row_bytes, width);
        }
    });
  }
  void scale(int gpu, Stream stream, double* values, int64_t count, double factor,
             bool divide) override {
    launch(gpu, stream, [=, this] {
      auto* const x =
          reinterpret_cast<double*>(inside(gpu, values, size_t(count) * sizeof(double)));
      for (int64_t i = 0; i < count; ++i) x[i] = divide ? x[i] / factor : x[i] * factor;
    });
  }

 private:
  FakeStream* new_stream(int gpu) {
    streams_.push_back(std::make_unique<FakeStream>(FakeStream{gpu}));
    return streams_.back().get();
  }
  FakeStream& stream_of(int gpu, Stream stream) {
    if (!stream) return *default_streams_[size_t(gpu)];
    for (const auto& s : streams_)
      if (s.get() == stream) {
        if (s->gpu != gpu)
          fail(fmt::format("a stream of GPU {} was given for GPU {}", s->gpu, gpu));
        return *s;
      }
    fail("what was given for a stream is none");
  }
  FakeEvent event_of(Event event) {
    auto* const e = static_cast<FakeEvent*>(event);
    if (!events_.contains(e)) fail("an event is used after its release");
    return *e;
  }

  int gpu_of(const void* address) const {
    for (size_t i = 0; i < memories_.size(); ++i)
      if (memories_[i].holds(address)) return int(i);
    return -1;
  }
  // Memory that a kernel touches: its own GPU's.
  std::byte* inside(int gpu, const void* address, size_t bytes) const {
    if (bytes == 0) return nullptr;
    if (const int holder = gpu_of(address); holder != gpu)
      fail(holder < 0 ? fmt::format("GPU {} was given host memory", gpu)
                      : fmt::format("GPU {} was given memory of GPU {}", gpu, holder));
    return memories_[size_t(gpu)].inside(address, bytes);
  }
  // Memory that is copied from or to.
  std::byte* anywhere(const void* address, size_t bytes) const {
    const int gpu = gpu_of(address);
    return gpu < 0 ? static_cast<std::byte*>(const_cast<void*>(address))
                   : inside(gpu, address, bytes);
  }

  void enqueue(int gpu, Stream stream, std::function<void()> work) {
    FakeStream& s = stream_of(gpu, stream);
    s.queue.push_back(std::move(work));
    ++s.enqueued;
    if (s.queue.size() > kLongestQueue) run_all(s);
  }
  void launch(int gpu, Stream stream, std::function<void()> work) {
    std::lock_guard lock(mutex_);
    ++counts_.launches;
    enqueue(gpu, stream, std::move(work));
  }
  void run_until(FakeStream& stream, uint64_t position) {
    while (stream.done < position) {
      const std::function<void()> work = std::move(stream.queue.front());
      stream.queue.pop_front();
      work();
      ++stream.done;
    }
  }
  void run_all(FakeStream& stream) { run_until(stream, stream.enqueued); }

  void apply(int gpu, kernels::Update update, DType dtype, void* target, const void* value,
             int64_t count) {
    const size_t bytes = size_t(count) * size_of(dtype);
    void* const to = inside(gpu, target, bytes);
    const void* const from = inside(gpu, value, bytes);
    kernels::with_type(dtype, [&]<class T>(T*) {
      using Acc = std::conditional_t<std::is_class_v<T>, float, T>;
      for (int64_t i = 0; i < count; ++i) {
        T& x = static_cast<T*>(to)[i];
        x = T(kernels::updated<Acc>(update, Acc(x), Acc(static_cast<const T*>(from)[i])));
      }
    });
  }

  std::mutex mutex_;
  const std::string why_none_ = "the fake was told to have no cards";
  std::deque<GpuMemory> memories_;
  std::vector<std::unique_ptr<FakeStream>> streams_;
  std::vector<FakeStream*> default_streams_;  // what a null stream means
  std::set<FakeEvent*> events_;
  FakeCudaCounts counts_;
};

FakeCuda& fake() {
  static auto* const instance = new FakeCuda;
  return *instance;
}

}  // namespace

const device::CudaModule& fake_cuda() {
  static const kernels::CudaModuleWithKernels module{
      {[]() -> device::GpuRuntime& { return fake(); }},
      []() -> kernels::GpuKernels& { return fake(); }};
  return module;
}

FakeCudaCounts fake_cuda_counts() { return fake().counts(); }

}  // namespace tutti::testing
