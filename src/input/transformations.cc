// Steps that look at one element after the other.
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

class BatchNode : public StepNode<BatchNode> {
 public:
  BatchNode(NodePtr input, int64_t size, bool drop_remainder)
      : StepNode(std::move(input)), size_(size), drop_remainder_(drop_remainder) {}
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
      return stacked(elements);
    }
    const BatchNode& node_;
  };

  std::string step() const override { return fmt::format("batch({}, {})", size_, drop_remainder_); }
  int64_t size_;
  bool drop_remainder_;
};

class UnbatchNode : public StepNode<UnbatchNode, false> {
 public:
  using StepNode::StepNode;
  CursorPtr start(const Run& run) const override {
    return std::make_unique<UnbatchCursor>(*input_, run);
  }
  int64_t cardinality() const override { return input_->cardinality() == 0 ? 0 : Dataset::unknown; }

 private:
  class UnbatchCursor : public StepCursor {
   public:
    using StepCursor::StepCursor;

   private:
    std::optional<Tensors> advance() override {
      while (!rows_ || row_ == rows_->size()) {
        std::optional<Tensors> batch = input_->next();
        if (!batch) return {};
        rows_.emplace(*std::move(batch), "unbatch");
        row_ = 0;
      }
      return (*rows_)[row_++];
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
        rows_.emplace(state.element(), "unbatch");
      } catch (const InvalidArgumentError& e) {
        StateReader::fail(e.what());
      }
      row_ = int64_t(state.number_up_to(uint64_t(rows_->size()), "the row of a batch"));
    }

    std::optional<Rows> rows_;
    int64_t row_ = 0;
  };

  std::string step() const override { return "unbatch()"; }
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

Dataset Dataset::unbatch() const {
  return Dataset(std::make_shared<detail::UnbatchNode>(DatasetNode::of(*this)));
}

Dataset Dataset::take(int64_t count) const {
  check_at_least(0, count, "take: count");
  return Dataset(std::make_shared<detail::TakeNode>(DatasetNode::of(*this), count));
}

Dataset Dataset::skip(int64_t count) const {
  check_at_least(0, count, "skip: count");
  return Dataset(std::make_shared<detail::SkipNode>(DatasetNode::of(*this), count));
}

Dataset Dataset::shard(int64_t num_shards, int64_t index) const {
  detail::check_shard(num_shards, index, "shard");
  return Dataset(std::make_shared<detail::ShardNode>(DatasetNode::of(*this), num_shards, index));
}

}  // namespace tutti
