// SPDX-License-Identifier: Apache-2.0
// The map, and the steps that read ahead of their caller on threads of their own: the parallel map
// and prefetch.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/spin.h"
#include "device/gpu.h"
#include "input/dataset_node.h"

namespace tutti {

namespace detail {
namespace {

using MapFunction = std::function<Tensors(const Tensors&)>;

class MapNode : public StepNode<MapNode, false> {
 public:
  MapNode(NodePtr input, MapFunction fn) : StepNode(std::move(input)), fn_(std::move(fn)) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<MapCursor>(*input_, fn_, run);
  }

 private:
  class MapCursor : public StepCursor {
   public:
    MapCursor(const DatasetNode& input, const MapFunction& fn, const Run& run)
        : StepCursor(input, run), fn_(fn) {}

   private:
    std::optional<Tensors> advance() override {
      const std::optional<Tensors> element = input_->next();
      if (!element) return {};
      return fn_(*element);
    }
    const MapFunction& fn_;
  };

  std::string step() const override { return "map(1)"; }
  MapFunction fn_;
};

constexpr int64_t kLargeBuffer = 8;

struct Ahead {
  int threads;
  int64_t limit;  // elements read and not yet asked for, those that a thread works on included
};

// One thread at a time asks the input, which sets the order; any number of them run the function.
class ReadAheadCursor : public Cursor {
 public:
  // Without a function the elements stay as they are.
  ReadAheadCursor(const DatasetNode& input, const MapFunction& fn, Ahead ahead, const Run& run)
      : Cursor(run),
        fn_(fn),
        ahead_(ahead),
        stop_(std::make_shared<Stop>(run.stop)),
        input_(input.start({run.number, stop_})) {}

  ~ReadAheadCursor() override {
    {
      std::lock_guard lock(mutex_);
      stop_->request();
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void begin() override {
    if (threads_.empty()) start();
  }

 private:
  struct Slot {
    Tensors element;
    std::exception_ptr error;
    bool done = false;
  };

  // No thread starts on another element while it lives. Needs the lock.
  struct Pause {
    explicit Pause(ReadAheadCursor& cursor) : cursor(cursor) { cursor.paused_ = true; }
    ~Pause() {
      cursor.paused_ = false;
      cursor.room_.notify_all();
    }
    ReadAheadCursor& cursor;
  };

  std::optional<Tensors> advance() override {
    begin();
    std::unique_lock lock(mutex_);
    const auto ready = [&] {
      return slots_.empty() ? exhausted_ && working_ == 0 : slots_.front()->done;
    };
    // The next element is often a few microseconds away, and falling asleep takes longer than that.
    for (int round = 0; round < 20 && !ready(); ++round) {
      lock.unlock();
      for (int i = 0; i < 50; ++i) base::pause();
      lock.lock();
    }
    done_.wait(lock, ready);
    if (slots_.empty()) return {};
    const std::unique_ptr<Slot> slot = std::move(slots_.front());
    slots_.pop_front();
    // A lone thread is woken to fill half of a large buffer, rather than for every element.
    const bool wake = ahead_.threads > 1 || ahead_.limit < kLargeBuffer ||
                      int64_t(slots_.size()) <= ahead_.limit / 2;
    lock.unlock();
    if (wake) room_.notify_one();
    if (slot->error) std::rethrow_exception(std::exchange(slot->error, nullptr));
    device::Fence().wait();  // for what the threads have enqueued on GPUs
    return std::move(slot->element);
  }

  void start() {
    device::hand_over();
    try {
      for (int i = 0; i < ahead_.threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& e) {
      if (threads_.empty())
        throw ResourceExhaustedError(
            fmt::format("dataset: cannot start a thread to read ahead: {}", e.what()));
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      room_.wait(lock, [&] {
        return stopping_ ||
               (!paused_ && !exhausted_ && !asking_ && int64_t(slots_.size()) < ahead_.limit);
      });
      if (stopping_) return;
      ++working_;
      if (Slot* const slot = read(lock)) {
        room_.notify_one();
        if (fn_ && !slot->error) call(*slot, lock);
        slot->done = true;
        if (slot->error) exhausted_ = true;
      }
      --working_;
      done_.notify_all();
    }
  }

  // The slot of the next element of the input, or null at its end. Not locked while it asks.
  Slot* read(std::unique_lock<std::mutex>& lock) {
    asking_ = true;
    lock.unlock();
    auto slot = std::make_unique<Slot>();
    bool end = false;
    try {
      if (std::optional<Tensors> element = input_->next())
        slot->element = *std::move(element);
      else
        end = true;
    } catch (...) {
      slot->error = std::current_exception();
    }
    lock.lock();
    asking_ = false;
    if (end) {
      exhausted_ = true;
      return nullptr;
    }
    slots_.push_back(std::move(slot));
    return slots_.back().get();
  }

  void call(Slot& slot, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    try {
      slot.element = fn_(slot.element);
    } catch (...) {
      slot.error = std::current_exception();
    }
    lock.lock();
  }

  void save_position(StateWriter& state) override {
    std::unique_lock lock(mutex_);
    const Pause pause(*this);
    done_.wait(lock, [&] { return working_ == 0; });
    input_->save(state);
    state.flag(exhausted_);
    state.number(slots_.size());
    for (const std::unique_ptr<Slot>& slot : slots_) {
      state.flag(slot->error != nullptr);
      if (slot->error)
        state.error(slot->error);
      else
        state.element(slot->element);
    }
  }

  void restore_position(StateReader& state) override {
    input_->restore(state);
    exhausted_ = state.flag();
    const uint64_t count =
        state.count_up_to(uint64_t(ahead_.limit), 9, "the number of elements read ahead");
    for (uint64_t i = 0; i < count; ++i) {
      auto slot = std::make_unique<Slot>();
      slot->done = true;
      if (state.flag())
        slot->error = state.error();
      else
        slot->element = state.element();
      slots_.push_back(std::move(slot));
    }
  }

  const MapFunction& fn_;
  const Ahead ahead_;
  const std::shared_ptr<Stop> stop_;
  const CursorPtr input_;  // of the thread that set asking_ or, if none works, paused_

  std::mutex mutex_;
  std::condition_variable room_, done_;
  std::deque<std::unique_ptr<Slot>> slots_;  // in the order of the elements
  int working_ = 0;                          // threads that are not waiting for room
  bool asking_ = false, paused_ = false, stopping_ = false;
  bool exhausted_ = false;  // by the end of the input or by an error: nothing more is read
  std::vector<std::thread> threads_;
};

class ParallelMapNode : public StepNode<ParallelMapNode, false> {
 public:
  ParallelMapNode(NodePtr input, MapFunction fn, int threads)
      : StepNode(std::move(input)), fn_(std::move(fn)), threads_(threads) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<ReadAheadCursor>(*input_, fn_, Ahead{threads_, threads_}, run);
  }

 private:
  std::string step() const override { return fmt::format("map({})", threads_); }
  MapFunction fn_;
  int threads_;
};

class PrefetchNode : public StepNode<PrefetchNode> {
 public:
  PrefetchNode(NodePtr input, int64_t buffer_size)
      : StepNode(std::move(input)), buffer_size_(buffer_size) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<ReadAheadCursor>(*input_, none_, Ahead{1, buffer_size_}, run);
  }
  bool ends_with_batch() const override { return input_->ends_with_batch(); }
  NodePtr names_sharded(int64_t num_shards, int64_t index) const override {
    return with_input(input_->names_sharded(num_shards, index));
  }

 private:
  std::string step() const override { return fmt::format("prefetch({})", buffer_size_); }
  MapFunction none_;
  int64_t buffer_size_;
};

}  // namespace
}  // namespace detail

using detail::check_at_least;
using detail::DatasetNode;

Dataset Dataset::map(std::function<Components(const Components&)> fn,
                     int num_parallel_calls) const {
  detail::check_function(fn, "map");
  check_at_least(1, num_parallel_calls, "map: num_parallel_calls");
  const detail::NodePtr& input = DatasetNode::of(*this);
  if (num_parallel_calls == 1)
    return Dataset(std::make_shared<detail::MapNode>(input, std::move(fn)));
  return Dataset(
      std::make_shared<detail::ParallelMapNode>(input, std::move(fn), num_parallel_calls));
}

Dataset Dataset::prefetch(int64_t buffer_size) const {
  check_at_least(0, buffer_size, "prefetch: buffer_size");
  if (buffer_size == 0) return *this;
  return Dataset(std::make_shared<detail::PrefetchNode>(DatasetNode::of(*this), buffer_size));
}

}  // namespace tutti
