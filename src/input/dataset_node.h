// SPDX-License-Identifier: Apache-2.0
// The inside of a Dataset: a tree of nodes, which are the recipe, and of cursors, which are one run
// of it. A new source or transformation is a node and a cursor in a .cc file, with the methods of
// Dataset that make them at its end.
//
// Nodes never change and may be used from any thread. A cursor is for one thread at a time, and its
// node outlives it.
#pragma once

#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "input/state.h"

namespace tutti::detail {

using NodePtr = std::shared_ptr<const DatasetNode>;
using CursorPtr = std::unique_ptr<DatasetCursor>;
using Specs = std::vector<TensorSpec>;

// Asks the threads of a run to stop, even in a step that searches an endless input.
class Stop {
 public:
  explicit Stop(std::shared_ptr<const Stop> outer = {}) : outer_(std::move(outer)) {}
  void request() { requested_.store(true, std::memory_order_relaxed); }
  bool requested() const {
    return requested_.load(std::memory_order_relaxed) || (outer_ && outer_->requested());
  }

 private:
  std::atomic<bool> requested_{false};
  std::shared_ptr<const Stop> outer_;
};

struct Run {
  uint64_t number;  // which repetition; 0 is the first
  std::shared_ptr<const Stop> stop;
};

class DatasetCursor {
 public:
  virtual ~DatasetCursor() = default;
  virtual std::optional<Tensors> next() = 0;
  // Starts its work ahead, if it does any, before the first element is asked for.
  virtual void begin() {}
  virtual void save(StateWriter& state) = 0;
  // Only for a cursor that has given nothing yet.
  virtual void restore(StateReader& state) = 0;
};

// Ends for good with its first end or exception, so that a step need not expect to be asked again.
class Cursor : public DatasetCursor {
 public:
  explicit Cursor(const Run& run) : stop_(run.stop) {}
  std::optional<Tensors> next() final {
    if (ended_) return {};
    ended_ = true;  // unless it returns an element
    if (stop_->requested()) throw CancelledError("dataset: the run was given up");
    std::optional<Tensors> element = advance();
    ended_ = !element;
    return element;
  }
  void save(StateWriter& state) final {
    state.flag(ended_);
    if (!ended_) save_position(state);
  }
  void restore(StateReader& state) final {
    ended_ = state.flag();
    if (!ended_) restore_position(state);
  }

 protected:
  virtual std::optional<Tensors> advance() = 0;
  virtual void save_position(StateWriter& state) = 0;
  virtual void restore_position(StateReader& state) = 0;

 private:
  std::shared_ptr<const Stop> stop_;
  bool ended_ = false;
};

class DatasetNode : public std::enable_shared_from_this<DatasetNode> {
 public:
  virtual ~DatasetNode() = default;
  static const NodePtr& of(const Dataset& dataset);
  static Dataset dataset(NodePtr node) { return Dataset(std::move(node)); }

  virtual CursorPtr start(const Run& run) const = 0;
  virtual int64_t cardinality() const { return Dataset::unknown; }
  virtual std::optional<int64_t> batch_size() const { return {}; }
  virtual bool ends_with_batch() const { return false; }
  // None if only a run can tell. With `look`, it runs for an element if a function decides.
  virtual std::optional<Specs> spec(bool look) const {
    return look ? spec_of_first() : std::nullopt;
  }
  // Have all elements the same shapes, as far as that can be known? A function is taken to return
  // equal shapes for equal shapes.
  virtual bool elements_alike() const { return false; }
  // All that decides what a state must look like. A state fits if these are equal.
  virtual std::string describe() const = 0;

  virtual bool reads_files() const { return false; }
  // If it reads files: the same with its files dealt out.
  virtual NodePtr files_sharded(int64_t num_shards, int64_t index) const;
  // Its elements, which name files, dealt out beneath repetitions, and shuffles removed.
  virtual NodePtr names_sharded(int64_t num_shards, int64_t index) const;

 protected:
  // The spec of the first element, with its extents left open; none if there is no element.
  std::optional<Specs> spec_of_first() const;
};

// The rows of the batches of `dataset` in batches of these sizes, in turn. A size may be 0.
Dataset rebatched(const Dataset& dataset, std::vector<int64_t> sizes, bool drop_remainder = false);

// A source whose elements are known by index.
class IndexedNode : public DatasetNode {
 public:
  CursorPtr start(const Run& run) const override;
  int64_t cardinality() const override {
    return int64_t(std::min(size(), uint64_t(std::numeric_limits<int64_t>::max())));
  }
  bool elements_alike() const override { return true; }
  virtual uint64_t size() const = 0;
  virtual Tensors at(uint64_t index) const = 0;
};

// A step that changes one pipeline. Most leave elements whole.
template <class Self, bool kKeepsElements = true>
class StepNode : public DatasetNode {
 public:
  explicit StepNode(NodePtr input) : input_(std::move(input)) {}
  int64_t cardinality() const override { return input_->cardinality(); }
  std::optional<int64_t> batch_size() const override {
    return kKeepsElements ? input_->batch_size() : std::nullopt;
  }
  std::optional<Specs> spec(bool look) const override {
    return kKeepsElements ? input_->spec(look) : DatasetNode::spec(look);
  }
  bool elements_alike() const override { return input_->elements_alike(); }
  std::string describe() const override { return input_->describe() + "." + step(); }
  bool reads_files() const override { return input_->reads_files(); }
  NodePtr files_sharded(int64_t num_shards, int64_t index) const override {
    return with_input(input_->files_sharded(num_shards, index));
  }

 protected:
  virtual std::string step() const = 0;
  NodePtr with_input(NodePtr input) const {
    auto copy = std::make_shared<Self>(static_cast<const Self&>(*this));
    copy->input_ = std::move(input);
    return copy;
  }

  NodePtr input_;
};

// For a step that holds no more between two elements than its input does.
class StepCursor : public Cursor {
 public:
  StepCursor(const DatasetNode& input, const Run& run) : Cursor(run), input_(input.start(run)) {}

 protected:
  void save_position(StateWriter& state) override { input_->save(state); }
  void restore_position(StateReader& state) override { input_->restore(state); }

  CursorPtr input_;
};

template <class Function>
void check_function(const Function& function, const char* operation) {
  if (!function) throw InvalidArgumentError(fmt::format("{}: the function is empty", operation));
}

inline void check_at_least(int64_t least, int64_t value, const char* what) {
  if (value < least)
    throw InvalidArgumentError(fmt::format("{} is {}, expected {} or more", what, value, least));
}

// A number of elements, or -1.
inline void check_count(int64_t count, const char* what) {
  if (count < -1)
    throw InvalidArgumentError(fmt::format("{} is {}, expected -1 or more", what, count));
}

inline void check_shard(int64_t num_shards, int64_t index, const char* operation) {
  if (num_shards < 1)
    throw InvalidArgumentError(
        fmt::format("{}: num_shards is {}, expected 1 or more", operation, num_shards));
  if (index < 0 || index >= num_shards)
    throw InvalidArgumentError(fmt::format("{}: index is {}, expected 0 to {} for {} shards",
                                           operation, index, num_shards - 1, num_shards));
}

}  // namespace tutti::detail
