// SPDX-License-Identifier: Apache-2.0
// GPUs and NCCL for tests on machines that have neither: a GPU's memory is the host's, what is
// enqueued happens at once, and the ranks of a communicator are threads.
#pragma once

#include <tutti/error.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "gpu/nccl_link.h"
#include "kernels/cast.h"

namespace tutti::testing {

class FakeRuntime : public device::GpuRuntime {
 public:
  // If not empty, what the GPUs are told apart by.
  std::vector<std::string> identities;
  // Nothing happens on these GPUs any more; or what is launched begins and never ends.
  std::set<int> late;
  std::atomic<bool> hang = false;
  std::atomic<int> events = 0;  // that are not released

  int gpus() const override { return 64; }
  const std::string& why_none() const override { return nothing_; }
  std::string describe(int gpu) const override { return "GPU " + std::to_string(gpu); }
  std::string identity(int gpu) const override {
    return identities.empty() ? describe(gpu) : identities[size_t(gpu)];
  }
  size_t memory(int) const override { return 1 << 30; }
  bool reaches(int, int) override { return true; }
  device::Stream make_stream(int) override { return this; }
  void synchronize(int, device::Stream) override {}
  bool finished(int, device::Stream) override { return true; }
  // A watcher of a launch records before and after it.
  device::Event record(int gpu, device::Stream) override {
    std::lock_guard lock(mutex_);
    ++events;
    const bool end = ++recorded_[gpu] % 2 == 0;
    return new std::atomic<bool>(!late.contains(gpu) && !(hang && end));
  }
  void wait(int, device::Stream, device::Event) override {}
  bool reached(device::Event event) override {
    return static_cast<std::atomic<bool>*>(event)->load();
  }
  void release(device::Event event) noexcept override {
    --events;
    delete static_cast<std::atomic<bool>*>(event);
  }
  void* allocate(int, size_t bytes, device::Stream) override { return std::malloc(bytes); }
  void deallocate(int, void* data, device::Stream) noexcept override { std::free(data); }
  void release_cached(int) noexcept override {}
  void* allocate_pinned(size_t bytes) override { return std::malloc(bytes); }
  void deallocate_pinned(void* data) noexcept override { std::free(data); }
  void copy(int, void* to, const void* from, size_t bytes, device::Stream) override {
    std::memmove(to, from, bytes);
  }
  void copy_between(int, void* to, int, const void* from, size_t bytes, device::Stream) override {
    std::memmove(to, from, bytes);
  }
  void copy_runs(int, void* to, size_t to_stride, const void* from, size_t from_stride, size_t run,
                 size_t count, device::Stream) override {
    for (size_t i = 0; i < count; ++i)
      std::memmove(static_cast<char*>(to) + i * to_stride,
                   static_cast<const char*>(from) + i * from_stride, run);
  }

 private:
  const std::string nothing_;
  std::mutex mutex_;
  std::map<int, int> recorded_;
};

class FakeKernels : public kernels::GpuKernels {
 public:
  void reduce(int, device::Stream, std::span<const kernels::Reduction> batch) override {
    for (const kernels::Reduction& reduction : batch) kernels::reduce_here(reduction, false);
  }
  void cast(int, device::Stream, const void* from, DType from_type, void* to, DType to_type,
            int64_t count) override {
    kernels::cast(from, from_type, to, to_type, count);
  }
  void fill(int, device::Stream, void*, const void*, size_t, int64_t) override { unused(); }
  void update(int, device::Stream, kernels::Update, DType, void*, const void*, int64_t) override {
    unused();
  }
  void update_rows(int, device::Stream, kernels::Update, DType, void*, const void*, int64_t,
                   const kernels::RowUpdate*, int64_t, const int64_t*) override {
    unused();
  }
  void scale(int, device::Stream, double*, int64_t, double, bool) override { unused(); }

 private:
  [[noreturn]] static void unused() { throw InternalError("no collective needs this kernel"); }
};

// What happened, and what is to happen.
struct FakeNccl {
  std::atomic<int> opened = 0, launched = 0, aborted = 0, closed = 0;
  std::atomic<bool> absent = false;
  std::atomic<bool> broken = false;       // async_error says so
  std::vector<std::string> order;         // of the calls of open_all's communicators
  device::GpuRuntime* runtime = nullptr;  // whose memory it is

  // That of the test which is running. What the communicators of another do still counts there.
  static FakeNccl& instance() { return *latest().load(); }
  static void renew(device::GpuRuntime* runtime) {
    // Never gone: threads of an earlier test may have it.
    static auto& all = *new std::deque<FakeNccl>;
    all.emplace_back().runtime = runtime;
    latest().store(&all.back());
  }

 private:
  static std::atomic<FakeNccl*>& latest() {
    static FakeNccl first;
    static std::atomic<FakeNccl*> fake{&first};
    return fake;
  }
};

// What one rank asks for in a launch.
struct FakeCall {
  enum Kind { all_reduce, reduce, reduce_scatter, broadcast, all_gather, send, recv } kind;
  const void* in;
  void* out;
  int64_t count;  // elements, or bytes
  DType dtype;
  ReduceOp op;
  int peer;
  device::Stream stream = nullptr;
  int gpu = -1;

  // Goes through the GPU's own copies: other code may not be able to touch its memory.
  std::vector<std::byte> fetch(size_t bytes) const {
    std::vector<std::byte> host(bytes);
    device::GpuRuntime& runtime = *FakeNccl::instance().runtime;
    runtime.copy(gpu, host.data(), in, bytes, stream);
    runtime.synchronize(gpu, stream);
    return host;
  }
  void store(const std::byte* data, size_t bytes) const {
    FakeNccl::instance().runtime->copy(gpu, out, data, bytes, stream);
  }
};

// Where the ranks of a communicator meet. The last to come does what all have asked for.
class FakeClique {
 public:
  explicit FakeClique(size_t size) : size_(size), calls_(size) {}

  void run(size_t rank, std::vector<FakeCall> calls, const group::StillWanted& still_wanted) {
    std::unique_lock lock(mutex_);
    const int turn = turn_;
    calls_[rank] = std::move(calls);
    if (++here_ == size_) {
      work();
      here_ = 0;
      ++turn_;
      changed_.notify_all();
      return;
    }
    while (turn_ == turn) {
      changed_.wait_for(lock, std::chrono::milliseconds(1));
      if (turn_ != turn) return;
      lock.unlock();
      still_wanted();
      lock.lock();
    }
  }

 private:
  void work() {
    std::map<std::pair<int, int>, std::deque<FakeCall>> sent;
    std::vector<std::vector<FakeCall>> collectives(size_);
    for (size_t r = 0; r < size_; ++r)
      for (const FakeCall& call : calls_[r])
        if (call.kind == FakeCall::send)
          sent[{int(r), call.peer}].push_back(call);
        else if (call.kind != FakeCall::recv)
          collectives[r].push_back(call);
    for (size_t r = 0; r < size_; ++r)
      for (const FakeCall& call : calls_[r])
        if (call.kind == FakeCall::recv) {
          std::deque<FakeCall>& from = sent[{call.peer, int(r)}];
          if (from.empty() || from.front().count != call.count) std::abort();  // NCCL would hang
          call.store(from.front().fetch(size_t(call.count)).data(), size_t(call.count));
          from.pop_front();
        }
    for (const auto& [way, left] : sent)
      if (!left.empty()) std::abort();
    for (size_t k = 0; k < collectives[0].size(); ++k) {
      std::vector<FakeCall> all;
      for (size_t r = 0; r < size_; ++r) all.push_back(collectives[r].at(k));
      collective(all);
    }
  }

  void collective(const std::vector<FakeCall>& all) {
    const FakeCall& first = all[0];
    const auto count = size_t(first.count);
    for (const FakeCall& call : all)
      if (call.kind != first.kind || call.count != first.count || call.dtype != first.dtype ||
          call.op != first.op || call.peer != first.peer)
        std::abort();
    if (first.kind == FakeCall::broadcast) {
      const std::vector<std::byte> data = all[size_t(first.peer)].fetch(count);
      for (size_t r = 0; r < size_; ++r)
        if (int(r) != first.peer) all[r].store(data.data(), count);
      return;
    }
    if (first.kind == FakeCall::all_gather) {
      std::vector<std::byte> joined;
      for (const FakeCall& call : all) {
        const std::vector<std::byte> part = call.fetch(count);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      for (const FakeCall& call : all) call.store(joined.data(), joined.size());
      return;
    }
    // A sum of 16-bit floats, or a mean, would be NCCL's own.
    if (first.dtype == DType::float16 || first.dtype == DType::bfloat16 ||
        first.op == ReduceOp::MEAN)
      std::abort();
    const bool scatters = first.kind == FakeCall::reduce_scatter;
    const size_t total = count * (scatters ? size_ : 1), bytes = total * size_of(first.dtype);
    std::vector<std::byte> result(bytes);
    std::vector<std::vector<std::byte>> leaves;
    for (const FakeCall& call : all) leaves.push_back(call.fetch(bytes));
    std::vector<const void*> inputs;
    for (const std::vector<std::byte>& leaf : leaves) inputs.push_back(leaf.data());
    void* const output = result.data();
    kernels::reduce_here({.inputs = inputs,
                          .outputs = {&output, 1},
                          .count = int64_t(total),
                          .dtype = first.dtype,
                          .op = first.op},
                         false);
    for (size_t r = 0; r < size_; ++r) {
      if (first.kind == FakeCall::reduce && int(r) != first.peer) continue;
      const size_t part = bytes / (scatters ? size_ : 1);
      all[r].store(result.data() + (scatters ? r * part : 0), part);
    }
  }

  const size_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<FakeCall>> calls_;
  size_t here_ = 0;
  int turn_ = 0;
};

class FakeCommunicator : public group::NcclCommunicator {
 public:
  // `recorded`: one thread speaks for all.
  FakeCommunicator(std::shared_ptr<FakeClique> clique, int rank, int gpu, bool recorded)
      : clique_(std::move(clique)), rank_(size_t(rank)), gpu_(gpu), recorded_(recorded) {
    ++nccl.opened;
  }

  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  device::Stream stream) override {
    calls.push_back({FakeCall::all_reduce, in, out, count, dtype, op, -1, stream, gpu_});
    if (recorded_) nccl.order.push_back(std::to_string(gpu_) + ":" + std::to_string(count));
  }
  void reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op, int root,
              device::Stream stream) override {
    calls.push_back({FakeCall::reduce, in, out, count, dtype, op, root, stream, gpu_});
  }
  void reduce_scatter(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                      device::Stream stream) override {
    calls.push_back({FakeCall::reduce_scatter, in, out, count, dtype, op, -1, stream, gpu_});
  }
  void broadcast(void* data, size_t bytes, int root, device::Stream stream) override {
    calls.push_back({FakeCall::broadcast, data, data, int64_t(bytes), {}, {}, root, stream, gpu_});
  }
  void all_gather(const void* in, void* out, size_t bytes, device::Stream stream) override {
    calls.push_back({FakeCall::all_gather, in, out, int64_t(bytes), {}, {}, -1, stream, gpu_});
  }
  void send(const void* in, size_t bytes, int peer, device::Stream stream) override {
    calls.push_back({FakeCall::send, in, nullptr, int64_t(bytes), {}, {}, peer, stream, gpu_});
  }
  void recv(void* out, size_t bytes, int peer, device::Stream stream) override {
    calls.push_back({FakeCall::recv, nullptr, out, int64_t(bytes), {}, {}, peer, stream, gpu_});
  }
  std::string async_error() override { return nccl.broken ? "nccl: remote process exited" : ""; }
  void abort() noexcept override { ++nccl.aborted; }

  void run(const group::StillWanted& still_wanted) {
    clique_->run(rank_, std::exchange(calls, {}), still_wanted);
  }

  FakeNccl& nccl = FakeNccl::instance();
  std::vector<FakeCall> calls;

 private:
  const std::shared_ptr<FakeClique> clique_;
  const size_t rank_;
  const int gpu_;
  const bool recorded_;
};

inline const group::NcclModule* fake_nccl_module() {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<FakeClique>> cliques;
  static std::atomic<int> ids = 0;
  static const group::NcclModule module{
      .version = [] { return std::string("0.0.0"); },
      .unique_id = [] { return std::string(100, '\0') + std::to_string(1000 + ids++); },
      .open = [](const std::string& id, int rank, int size, int gpu,
                 const group::StillWanted&) -> std::unique_ptr<group::NcclCommunicator> {
        std::lock_guard lock(mutex);
        std::shared_ptr<FakeClique>& clique = cliques[id];
        if (!clique) clique = std::make_shared<FakeClique>(size_t(size));
        return std::make_unique<FakeCommunicator>(clique, rank, gpu, false);
      },
      .open_all =
          [](std::span<const int> gpus, const group::StillWanted&) {
            const auto clique = std::make_shared<FakeClique>(gpus.size());
            group::NcclCommunicators all;
            for (size_t i = 0; i < gpus.size(); ++i)
              all.push_back(std::make_unique<FakeCommunicator>(clique, int(i), gpus[i], true));
            return all;
          },
      .launch =
          [](std::span<const std::unique_ptr<group::NcclCommunicator>> communicators,
             const std::function<void()>& calls, const group::StillWanted& still_wanted) {
            calls();
            ++static_cast<FakeCommunicator*>(communicators[0].get())->nccl.launched;
            std::vector<std::thread> ranks;
            for (const auto& communicator : communicators.subspan(1))
              ranks.emplace_back([&still_wanted, each = communicator.get()] {
                static_cast<FakeCommunicator*>(each)->run(still_wanted);
              });
            static_cast<FakeCommunicator*>(communicators[0].get())->run(still_wanted);
            for (std::thread& rank : ranks) rank.join();
          },
      .close =
          [](group::NcclCommunicators all, const group::StillWanted&) noexcept {
            ++static_cast<FakeCommunicator*>(all[0].get())->nccl.closed;
          }};
  return FakeNccl::instance().absent ? nullptr : &module;
}

struct FakeGpus {
  FakeRuntime runtime;
  FakeKernels kernels;
  const group::GpuSupport gpus{
      runtime, kernels,
      [](int gpu) -> device::Stream { return reinterpret_cast<device::Stream>(intptr_t(gpu) + 1); },
      fake_nccl_module,
      []() -> const std::string& {
        static const std::string why = "there is no NCCL here";
        return why;
      }};

  // Never destroyed: what watches them may outlive a test.
  static FakeGpus& make() {
    static std::deque<FakeGpus> all;
    FakeNccl::renew(&all.emplace_back().runtime);
    return all.back();
  }
};

}  // namespace tutti::testing
