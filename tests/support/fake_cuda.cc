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

constexpr size_t kCardBytes = size_t(1) << 30;
constexpr size_t kGap = 256;  // behind every block, to notice writes past its end
constexpr size_t kAlignment = 256;
constexpr int kRubbish = 0xa5, kGuard = 0xc7;
constexpr size_t kMostRubbish = 4 << 20;  // at either end of a fresh block
constexpr size_t kLongestQueue = 1000;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "fake CUDA: %s\n", why.c_str());
  std::abort();
}

// The memory of one card, mapped twice.
class CardMemory {
 public:
  CardMemory() {
    const int fd = memfd_create("fake card", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, off_t(kCardBytes)) != 0) fail("no memory for a card");
    outside_ = map(fd, PROT_NONE);
    inside_ = map(fd, PROT_READ | PROT_WRITE);
    close(fd);
    free_[0] = kCardBytes;
  }

  bool holds(const void* address) const {
    const auto* const at = static_cast<const std::byte*>(address);
    return at >= outside_ && at < outside_ + kCardBytes;
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
        mmap(nullptr, kCardBytes, protection, MAP_SHARED | MAP_NORESERVE, fd, off_t(0));
    if (data == MAP_FAILED) fail("no addresses for a card");
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
  int card;
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
    const char* const cards = std::getenv("TUTTI_TEST_CARDS");
    memories_.resize(size_t(cards ? std::atoi(cards) : 1));
    for (size_t i = 0; i < memories_.size(); ++i) default_streams_.push_back(new_stream(int(i)));
  }

  FakeCudaCounts counts() {
    std::lock_guard lock(mutex_);
    FakeCudaCounts result = counts_;
    for (const CardMemory& memory : memories_) result.blocks += int64_t(memory.blocks());
    return result;
  }

  int cards() const override { return int(memories_.size()); }
  const std::string& why_none() const override { return why_none_; }
  std::string describe(int card) const override { return fmt::format("fake card {}, 1 GiB", card); }
  std::string identity(int card) const override { return fmt::format("fake-{}", card); }
  size_t memory(int) const override { return kCardBytes; }
  bool reaches(int, int) override { return true; }

  Stream make_stream(int card) override {
    std::lock_guard lock(mutex_);
    return new_stream(card);
  }
  void synchronize(int card, Stream stream) override {
    std::lock_guard lock(mutex_);
    ++counts_.synchronizations;
    run_all(stream_of(card, stream));
  }
  bool finished(int card, Stream stream) override {
    std::lock_guard lock(mutex_);
    FakeStream& s = stream_of(card, stream);
    run_until(s, std::min(s.done + 1, s.enqueued));
    return s.done == s.enqueued;
  }
  Event record(int card, Stream stream) override {
    std::lock_guard lock(mutex_);
    FakeStream& s = stream_of(card, stream);
    auto* const event = new FakeEvent{&s, s.enqueued};
    events_.insert(event);
    return event;
  }
  void wait(int card, Stream stream, Event event) override {
    std::lock_guard lock(mutex_);
    ++counts_.waits;
    const FakeEvent e = event_of(event);
    enqueue(card, stream, [this, e] { run_until(*e.stream, e.position); });
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

  void* allocate(int card, size_t bytes, Stream stream) override {
    std::lock_guard lock(mutex_);
    ++counts_.allocations;
    CardMemory& memory = memories_[size_t(card)];
    void* data = memory.take(bytes);
    if (!data) {
      for (const auto& s : streams_) run_all(*s);
      data = memory.take(bytes);
    }
    if (!data)
      throw ResourceExhaustedError(
          fmt::format("a tensor of {} bytes does not fit on card {} ({}); release_cached_memory "
                      "gives back what is held in reserve",
                      bytes, card, describe(card)));
    enqueue(card, stream, [this, card, data, bytes] {
      std::byte* const fresh = inside(card, data, bytes);
      const size_t part = std::min(bytes, kMostRubbish);
      std::memset(fresh, kRubbish, part);
      std::memset(fresh + bytes - part, kRubbish, part);
    });
    return data;
  }
  void deallocate(int card, void* data, Stream stream) noexcept override {
    std::lock_guard lock(mutex_);
    CardMemory& memory = memories_[size_t(card)];
    memory.doom(data);
    enqueue(card, stream, [&memory, data] { memory.give_back(data); });
  }
  void release_cached(int card) noexcept override {
    std::lock_guard lock(mutex_);
    for (const auto& s : streams_)
      if (s->card == card) run_all(*s);
  }
  void* allocate_pinned(size_t bytes) override {
    return std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  }
  void deallocate_pinned(void* data) noexcept override { std::free(data); }

  void copy_between(int to_card, void* to, int from_card, const void* from, size_t bytes,
                    Stream stream) override {
    if (bytes == 0) return;
    std::lock_guard lock(mutex_);
    if (card_of(to) != to_card || card_of(from) != from_card) fail("a copy names other cards");
    move_runs(to_card, to, bytes, from, bytes, bytes, 1, stream);
  }
  void copy(int card, void* to, const void* from, size_t bytes, Stream stream) override {
    copy_runs(card, to, bytes, from, bytes, bytes, 1, stream);
  }
  void copy_runs(int card, void* to, size_t to_stride, const void* from, size_t from_stride,
                 size_t run, size_t count, Stream stream) override {
    if (run == 0 || count == 0) return;
    if (count > 1 && (to_stride < run || from_stride < run)) fail("runs of bytes overlap");
    std::lock_guard lock(mutex_);
    if (card_of(to) >= 0 && card_of(from) >= 0 && card_of(to) != card_of(from))
      fail("a copy between cards is not open to this call");
    move_runs(card, to, to_stride, from, from_stride, run, count, stream);
  }
  void move_runs(int card, void* to, size_t to_stride, const void* from, size_t from_stride,
                 size_t run, size_t count, Stream stream) {
    ++counts_.copies;
    const size_t from_bytes = (count - 1) * from_stride + run;
    const size_t to_bytes = (count - 1) * to_stride + run;
    std::vector<std::byte> read_now;
    if (card_of(from) < 0) {
      read_now.resize(run * count);
      for (size_t i = 0; i < count; ++i)
        std::memcpy(read_now.data() + i * run,
                    static_cast<const std::byte*>(from) + i * from_stride, run);
    }
    enqueue(card, stream, [=, this, read_now = std::move(read_now)] {
      const bool is_here = !read_now.empty();
      const std::byte* const source = is_here ? read_now.data() : anywhere(from, from_bytes);
      std::byte* const target = anywhere(to, to_bytes);
      for (size_t i = 0; i < count; ++i)
        std::memmove(target + i * to_stride, source + i * (is_here ? run : from_stride), run);
    });
  }

  void reduce(int card, Stream stream, std::span<const Reduction> batch) override {
    std::lock_guard lock(mutex_);
    ++counts_.launches;
    for (const Reduction& r : batch) {
      std::vector<const void*> from(r.inputs.begin(), r.inputs.end());
      std::vector<void*> to(r.outputs.begin(), r.outputs.end());
      Reduction mine = r;
      enqueue(card, stream, [=, this]() mutable {
        const auto count = size_t(mine.count);
        if (count == 0) return;
        for (const void*& input : from) input = inside(card, input, count * size_of(mine.dtype));
        for (void*& output : to)
          output = inside(card, output, count * size_of(result_dtype(mine.op, mine.dtype)));
        mine.inputs = from;
        mine.outputs = to;
        kernels::reduce_here(mine, false);
      });
    }
  }
  void cast(int card, Stream stream, const void* from, DType from_type, void* to, DType to_type,
            int64_t count) override {
    launch(card, stream, [=, this] {
      kernels::cast(inside(card, from, size_t(count) * size_of(from_type)), from_type,
                    inside(card, to, size_t(count) * size_of(to_type)), to_type, count);
    });
  }
  void fill(int card, Stream stream, void* to, const void* element, size_t element_size,
            int64_t count) override {
    std::vector<std::byte> value(static_cast<const std::byte*>(element),
                                 static_cast<const std::byte*>(element) + element_size);
    launch(card, stream, [=, this] {
      const size_t bytes = size_t(count) * element_size;
      std::byte* const target = inside(card, to, bytes);
      if (bytes) std::memcpy(target, value.data(), element_size);
      for (size_t done = element_size; done < bytes; done *= 2)
        std::memcpy(target + done, target, std::min(done, bytes - done));
    });
  }
  void update(int card, Stream stream, kernels::Update update, DType dtype, void* target,
              const void* value, int64_t count) override {
    launch(card, stream, [=, this] { apply(card, update, dtype, target, value, count); });
  }
  void update_rows(int card, Stream stream, kernels::Update update, DType dtype, void* target,
                   const void* values, int64_t width, const kernels::RowUpdate* rows,
                   int64_t num_rows, const int64_t* order) override {
    launch(card, stream, [=, this] {
      const size_t row_bytes = size_t(width) * size_of(dtype);
      const auto* const updates = reinterpret_cast<const kernels::RowUpdate*>(
          inside(card, rows, size_t(num_rows) * sizeof(kernels::RowUpdate)));
      for (int64_t r = 0; r < num_rows; ++r)
        for (int64_t k = updates[r].begin; k < updates[r].end; ++k) {
          const auto from =
              *reinterpret_cast<const int64_t*>(inside(card, order + k, sizeof(int64_t)));
          apply(card, update, dtype,
                static_cast<std::byte*>(target) + size_t(updates[r].row) * row_bytes,
                static_cast<const std::byte*>(values) + size_t(from) * row_bytes, width);
        }
    });
  }
  void scale(int card, Stream stream, double* values, int64_t count, double factor,
             bool divide) override {
    launch(card, stream, [=, this] {
      auto* const x =
          reinterpret_cast<double*>(inside(card, values, size_t(count) * sizeof(double)));
      for (int64_t i = 0; i < count; ++i) x[i] = divide ? x[i] / factor : x[i] * factor;
    });
  }

 private:
  FakeStream* new_stream(int card) {
    streams_.push_back(std::make_unique<FakeStream>(FakeStream{card}));
    return streams_.back().get();
  }
  FakeStream& stream_of(int card, Stream stream) {
    if (!stream) return *default_streams_[size_t(card)];
    for (const auto& s : streams_)
      if (s.get() == stream) {
        if (s->card != card)
          fail(fmt::format("a stream of card {} was given for card {}", s->card, card));
        return *s;
      }
    fail("what was given for a stream is none");
  }
  FakeEvent event_of(Event event) {
    auto* const e = static_cast<FakeEvent*>(event);
    if (!events_.contains(e)) fail("an event is used after its release");
    return *e;
  }

  int card_of(const void* address) const {
    for (size_t i = 0; i < memories_.size(); ++i)
      if (memories_[i].holds(address)) return int(i);
    return -1;
  }
  // Memory that a kernel touches: its own card's.
  std::byte* inside(int card, const void* address, size_t bytes) const {
    if (bytes == 0) return nullptr;
    if (const int holder = card_of(address); holder != card)
      fail(holder < 0 ? fmt::format("card {} was given host memory", card)
                      : fmt::format("card {} was given memory of card {}", card, holder));
    return memories_[size_t(card)].inside(address, bytes);
  }
  // Memory that is copied from or to.
  std::byte* anywhere(const void* address, size_t bytes) const {
    const int card = card_of(address);
    return card < 0 ? static_cast<std::byte*>(const_cast<void*>(address))
                    : inside(card, address, bytes);
  }

  void enqueue(int card, Stream stream, std::function<void()> work) {
    FakeStream& s = stream_of(card, stream);
    s.queue.push_back(std::move(work));
    ++s.enqueued;
    if (s.queue.size() > kLongestQueue) run_all(s);
  }
  void launch(int card, Stream stream, std::function<void()> work) {
    std::lock_guard lock(mutex_);
    ++counts_.launches;
    enqueue(card, stream, std::move(work));
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

  void apply(int card, kernels::Update update, DType dtype, void* target, const void* value,
             int64_t count) {
    const size_t bytes = size_t(count) * size_of(dtype);
    void* const to = inside(card, target, bytes);
    const void* const from = inside(card, value, bytes);
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
  std::deque<CardMemory> memories_;
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
