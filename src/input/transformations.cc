// SPDX-License-Identifier: Apache-2.0
// Steps that look at one element after the other.
#include <fmt/ranges.h>

#include <utility>

#include "input/dataset_node.h"
#include "input/elements.h"

namespace tutti {

namespace detail {
namespace {

class FilterNode : public StepNode<FilterNode> {
 public:
  using Function = std::function<bool(const Tensors&)>;
  FilterNode(NodePtr input, Function keep) : StepNode(std::move(input)), keep_(std::move(keep)) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<FilterCursor>(*input_, keep_, run);
  }
  int64_t cardinality() const override { return input_->cardinality() == 0 ? 0 : Dataset::unknown; }

 private:
  class FilterCursor : public StepCursor {
   public:
    FilterCursor(const DatasetNode& input, const Function& keep, const Run& run)
        : StepCursor(input, run), keep_(keep) {}

   private:
    std::optional<Tensors> advance() override {
      std::optional<Tensors> element;
      do element = input_->next();
      while (element && !keep_(*element));
      return element;
    }
    const Function& keep_;
  };

  std::string step() const override { return "filter()"; }
  Function keep_;
};

class TakeWhileNode : public StepNode<TakeWhileNode> {
 public:
  using Function = std::function<bool(const Tensors&)>;
  TakeWhileNode(NodePtr input, Function predicate)
      : StepNode(std::move(input)), predicate_(std::move(predicate)) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<TakeWhileCursor>(*input_, predicate_, run);
  }
  int64_t cardinality() const override { return input_->cardinality() == 0 ? 0 : Dataset::unknown; }

 private:
  class TakeWhileCursor : public StepCursor {
   public:
    TakeWhileCursor(const DatasetNode& input, const Function& predicate, const Run& run)
        : StepCursor(input, run), predicate_(predicate) {}

   private:
    std::optional<Tensors> advance() override {
      std::optional<Tensors> element = input_->next();
      if (element && !predicate_(*element)) return {};
      return element;
    }
    const Function& predicate_;
  };

  std::string step() const override { return "take_while()"; }
  Function predicate_;
};

// The spec of batches of `size` rows, or of any number (-1).
std::optional<Specs> in_batches(std::optional<Specs> specs, int64_t size) {
  if (specs)
    for (TensorSpec& spec : *specs) spec.shape.insert(spec.shape.begin(), size);
  return specs;
}

// The spec of the rows of batches.
std::optional<Specs> in_rows(std::optional<Specs> specs) {
  if (specs)
    for (TensorSpec& spec : *specs)
      if (!spec.shape.empty()) spec.shape.erase(spec.shape.begin());
  return specs;
}

// Batches elements that are alike, or are padded to be.
class BatchNode : public StepNode<BatchNode> {
 public:
  BatchNode(NodePtr input, int64_t size, bool drop_remainder, std::optional<Padding> padding = {})
      : StepNode(std::move(input)),
        size_(size),
        drop_remainder_(drop_remainder),
        padding_(std::move(padding)) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<BatchCursor>(*this, run);
  }
  int64_t cardinality() const override {
    const int64_t elements = input_->cardinality();
    if (elements < 0) return elements;
    return elements / size_ + (!drop_remainder_ && elements % size_ != 0);
  }
  std::optional<int64_t> batch_size() const override { return size_; }
  bool ends_with_batch() const override { return true; }
  std::optional<Specs> spec(bool look) const override {
    std::optional<Specs> specs = input_->spec(look);
    for (size_t i = 0; specs && padding_ && i < std::min(specs->size(), padding_->shapes.size());
         ++i)
      (*specs)[i].shape = padding_->shapes[i];
    return in_batches(std::move(specs), drop_remainder_ ? size_ : -1);
  }
  bool elements_alike() const override { return drop_remainder_; }

 private:
  class BatchCursor : public StepCursor {
   public:
    BatchCursor(const BatchNode& node, const Run& run)
        : StepCursor(*node.input_, run), node_(node) {}

   private:
    std::optional<Tensors> advance() override {
      std::vector<Tensors> elements;
      while (int64_t(elements.size()) < node_.size_) {
        std::optional<Tensors> element = input_->next();
        if (!element) break;
        elements.push_back(*std::move(element));
      }
      if (elements.empty()) return {};
      if (node_.drop_remainder_ && int64_t(elements.size()) < node_.size_) return {};
      return node_.padding_ ? padded(elements, *node_.padding_) : stacked(elements);
    }
    const BatchNode& node_;
  };

  std::string step() const override {
    if (!padding_) return fmt::format("batch({}, {})", size_, drop_remainder_);
    return fmt::format("padded_batch({}, {}, {})", size_, padding_->shapes, drop_remainder_);
  }
  int64_t size_;
  bool drop_remainder_;
  std::optional<Padding> padding_;
};

// A batch, and which of its rows is next.
class RowsCursor : public StepCursor {
 public:
  RowsCursor(const DatasetNode& input, const char* operation, const Run& run)
      : StepCursor(input, run), operation_(operation) {}

 protected:
  // Makes `rows_` a batch with rows left, if there is one.
  bool find_rows() {
    while (!rows_ || row_ == rows_->size()) {
      std::optional<Tensors> batch = input_->next();
      if (!batch) return false;
      rows_.emplace(*std::move(batch), operation_);
      row_ = 0;
    }
    return true;
  }
  void save_position(StateWriter& state) override {
    StepCursor::save_position(state);
    const bool rows_left = rows_ && row_ < rows_->size();
    state.flag(rows_left);
    if (!rows_left) return;
    state.element(rows_->components());
    state.number(uint64_t(row_));
  }
  void restore_position(StateReader& state) override {
    StepCursor::restore_position(state);
    if (!state.flag()) return;
    try {
      rows_.emplace(state.element(), operation_);
    } catch (const InvalidArgumentError& e) {
      StateReader::fail(e.what());
    }
    row_ = int64_t(state.number_up_to(uint64_t(rows_->size()), "the row of a batch"));
  }

  std::optional<Rows> rows_;
  int64_t row_ = 0;

 private:
  const char* operation_;
};

class UnbatchNode : public StepNode<UnbatchNode, false> {
 public:
  using StepNode::StepNode;
  CursorPtr start(const Run& run) const override {
    return std::make_unique<UnbatchCursor>(*input_, run);
  }
  int64_t cardinality() const override { return input_->cardinality() == 0 ? 0 : Dataset::unknown; }
  std::optional<Specs> spec(bool look) const override { return in_rows(input_->spec(look)); }

 private:
  class UnbatchCursor : public RowsCursor {
   public:
    UnbatchCursor(const DatasetNode& input, const Run& run) : RowsCursor(input, "unbatch", run) {}

   private:
    std::optional<Tensors> advance() override {
      if (!find_rows()) return {};
      return (*rows_)[row_++];
    }
  };

  std::string step() const override { return "unbatch()"; }
};

class RebatchNode : public StepNode<RebatchNode, false> {
 public:
  RebatchNode(NodePtr input, std::vector<int64_t> sizes, bool drop_remainder)
      : StepNode(std::move(input)), sizes_(std::move(sizes)), drop_remainder_(drop_remainder) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<RebatchCursor>(*this, run);
  }
  int64_t cardinality() const override { return input_->cardinality() == 0 ? 0 : Dataset::unknown; }
  std::optional<int64_t> batch_size() const override {
    return sizes_.size() == 1 ? std::optional(sizes_[0]) : std::nullopt;
  }
  bool ends_with_batch() const override { return sizes_.size() == 1; }
  std::optional<Specs> spec(bool look) const override {
    return in_batches(in_rows(input_->spec(look)), elements_alike() ? sizes_[0] : -1);
  }
  bool elements_alike() const override { return drop_remainder_ && sizes_.size() == 1; }

 private:
  class RebatchCursor : public RowsCursor {
   public:
    RebatchCursor(const RebatchNode& node, const Run& run)
        : RowsCursor(*node.input_, "rebatch", run), node_(node) {}

   private:
    std::optional<Tensors> advance() override {
      const int64_t size = node_.sizes_[turn_];
      std::vector<Tensors> parts;
      int64_t got = 0;
      while ((parts.empty() || got < size) && find_rows()) {
        const int64_t taken = std::min(size - got, rows_->size() - row_);
        parts.push_back(rows_->range(row_, row_ + taken));
        row_ += taken;
        got += taken;
      }
      if (parts.empty() || (node_.drop_remainder_ && got < size)) return {};
      turn_ = (turn_ + 1) % node_.sizes_.size();
      return concatenated(parts);
    }
    void save_position(StateWriter& state) override {
      RowsCursor::save_position(state);
      state.number(turn_);
    }
    void restore_position(StateReader& state) override {
      RowsCursor::restore_position(state);
      turn_ = state.number_up_to(node_.sizes_.size() - 1, "the turn of a batch size");
    }
    const RebatchNode& node_;
    size_t turn_ = 0;
  };

  std::string step() const override {
    return fmt::format("rebatch({}, {})", sizes_, drop_remainder_);
  }
  std::vector<int64_t> sizes_;
  bool drop_remainder_;
};

class TakeNode : public StepNode<TakeNode> {
 public:
  TakeNode(NodePtr input, int64_t count) : StepNode(std::move(input)), count_(count) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<TakeCursor>(*input_, count_, run);
  }
  int64_t cardinality() const override {
    const int64_t elements = input_->cardinality();
    if (elements == Dataset::infinite || count_ == 0) return count_;
    return elements == Dataset::unknown ? elements : std::min(elements, count_);
  }

 private:
  class TakeCursor : public StepCursor {
   public:
    TakeCursor(const DatasetNode& input, int64_t count, const Run& run)
        : StepCursor(input, run), left_(count), count_(count) {}

   private:
    std::optional<Tensors> advance() override {
      if (left_ == 0) return {};
      --left_;
      return input_->next();
    }
    void save_position(StateWriter& state) override {
      StepCursor::save_position(state);
      state.number(uint64_t(left_));
    }
    void restore_position(StateReader& state) override {
      StepCursor::restore_position(state);
      left_ = int64_t(state.number_up_to(uint64_t(count_), "the number of elements to take"));
    }
    int64_t left_, count_;
  };

  std::string step() const override { return fmt::format("take({})", count_); }
  int64_t count_;
};

// Drops `first` elements before the first one it gives, and `between` before every other.
class DropCursor : public StepCursor {
 public:
  struct Gaps {
    int64_t first, between;
  };
  DropCursor(const DatasetNode& input, Gaps gaps, const Run& run)
      : StepCursor(input, run), gaps_(gaps) {}

 private:
  std::optional<Tensors> advance() override {
    const int64_t gap = std::exchange(started_, true) ? gaps_.between : gaps_.first;
    if (gap < 0) return {};  // all of them
    for (int64_t i = 0; i < gap; ++i)
      if (!input_->next()) return {};
    return input_->next();
  }
  void save_position(StateWriter& state) override {
    StepCursor::save_position(state);
    state.flag(started_);
  }
  void restore_position(StateReader& state) override {
    StepCursor::restore_position(state);
    started_ = state.flag();
  }

  Gaps gaps_;
  bool started_ = false;
};

class SkipNode : public StepNode<SkipNode> {
 public:
  SkipNode(NodePtr input, int64_t count) : StepNode(std::move(input)), count_(count) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<DropCursor>(*input_, DropCursor::Gaps{count_, 0}, run);
  }
  int64_t cardinality() const override {
    const int64_t elements = input_->cardinality();
    if (count_ < 0) return 0;
    return elements < 0 ? elements : std::max<int64_t>(elements - count_, 0);
  }

 private:
  std::string step() const override { return fmt::format("skip({})", count_); }
  int64_t count_;
};

class ShardNode : public StepNode<ShardNode> {
 public:
  ShardNode(NodePtr input, int64_t num_shards, int64_t index)
      : StepNode(std::move(input)), num_shards_(num_shards), index_(index) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<DropCursor>(*input_, DropCursor::Gaps{index_, num_shards_ - 1}, run);
  }
  int64_t cardinality() const override {
    const int64_t elements = input_->cardinality();
    return elements < 0 ? elements : elements / num_shards_ + (elements % num_shards_ > index_);
  }

 private:
  std::string step() const override { return fmt::format("shard({}, {})", num_shards_, index_); }
  int64_t num_shards_, index_;
};

}  // namespace
}  // namespace detail

using detail::check_at_least;
using detail::check_function;
using detail::DatasetNode;

Dataset Dataset::filter(std::function<bool(const Components&)> keep) const {
  check_function(keep, "filter");
  return Dataset(std::make_shared<detail::FilterNode>(DatasetNode::of(*this), std::move(keep)));
}

Dataset Dataset::batch(int64_t batch_size, bool drop_remainder) const {
  check_at_least(1, batch_size, "batch: batch_size");
  return Dataset(
      std::make_shared<detail::BatchNode>(DatasetNode::of(*this), batch_size, drop_remainder));
}

Dataset Dataset::take_while(std::function<bool(const Components&)> predicate) const {
  check_function(predicate, "take_while");
  return Dataset(
      std::make_shared<detail::TakeWhileNode>(DatasetNode::of(*this), std::move(predicate)));
}

Dataset Dataset::padded_batch(int64_t batch_size, std::vector<std::vector<int64_t>> padded_shapes,
                              Components padding_values, bool drop_remainder) const {
  check_at_least(1, batch_size, "padded_batch: batch_size");
  for (const std::vector<int64_t>& shape : padded_shapes)
    for (const int64_t extent : shape) detail::check_count(extent, "padded_batch: an extent");
  for (const Tensor& value : padding_values)
    if (value && value.num_elements() != 1)
      throw InvalidArgumentError(
          fmt::format("padded_batch: a padding value is {}, expected a scalar", value.to_string()));
  return Dataset(std::make_shared<detail::BatchNode>(
      DatasetNode::of(*this), batch_size, drop_remainder,
      detail::Padding{std::move(padded_shapes), std::move(padding_values)}));
}

Dataset Dataset::rebatch(int64_t batch_size, bool drop_remainder) const {
  return rebatch(std::vector{batch_size}, drop_remainder);
}

Dataset Dataset::rebatch(std::vector<int64_t> batch_sizes, bool drop_remainder) const {
  if (batch_sizes.empty()) throw InvalidArgumentError("rebatch: there are no batch sizes");
  for (const int64_t size : batch_sizes) check_at_least(1, size, "rebatch: batch_size");
  return detail::rebatched(*this, std::move(batch_sizes), drop_remainder);
}

Dataset detail::rebatched(const Dataset& dataset, std::vector<int64_t> sizes, bool drop_remainder) {
  return DatasetNode::dataset(
      std::make_shared<RebatchNode>(DatasetNode::of(dataset), std::move(sizes), drop_remainder));
}

Dataset Dataset::unbatch() const {
  return Dataset(std::make_shared<detail::UnbatchNode>(DatasetNode::of(*this)));
}

Dataset Dataset::take(int64_t count) const {
  detail::check_count(count, "take: count");
  if (count == -1) return *this;
  return Dataset(std::make_shared<detail::TakeNode>(DatasetNode::of(*this), count));
}

Dataset Dataset::skip(int64_t count) const {
  detail::check_count(count, "skip: count");
  return Dataset(std::make_shared<detail::SkipNode>(DatasetNode::of(*this), count));
}

Dataset Dataset::shard(int64_t num_shards, int64_t index) const {
  detail::check_shard(num_shards, index, "shard");
  return Dataset(std::make_shared<detail::ShardNode>(DatasetNode::of(*this), num_shards, index));
}

}  // namespace tutti
