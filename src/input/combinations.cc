// Steps that run several pipelines, or one of them several times.
#include <mutex>

#include "input/dataset_node.h"

namespace tutti {

namespace detail {
namespace {

constexpr int64_t kForever = -1;

class RepeatNode : public StepNode<RepeatNode> {
 public:
  RepeatNode(NodePtr input, int64_t count) : StepNode(std::move(input)), count_(count) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<RepeatCursor>(*input_, count_, run);
  }
  int64_t cardinality() const override {
    const int64_t elements = input_->cardinality();
    if (elements == 0 || count_ == 0) return 0;
    if (count_ == kForever) return Dataset::infinite;
    int64_t all;
    if (elements < 0) return elements;
    return __builtin_mul_overflow(elements, count_, &all) ? std::numeric_limits<int64_t>::max()
                                                          : all;
  }
  NodePtr names_sharded(int64_t num_shards, int64_t index) const override {
    return with_input(input_->names_sharded(num_shards, index));
  }

 private:
  class RepeatCursor : public Cursor {
   public:
    RepeatCursor(const DatasetNode& input, int64_t count, const Run& run)
        : Cursor(run), node_(input), count_(count), run_(run) {}

   private:
    std::optional<Tensors> advance() override {
      while (true) {
        if (!input_) {
          if (count_ != kForever && epoch_ == uint64_t(count_)) return {};
          start_epoch();
        }
        if (std::optional<Tensors> element = input_->next()) {
          epoch_is_empty_ = false;
          return element;
        }
        // Else it might search an empty input for ever, or as good as.
        if (epoch_is_empty_ && (count_ == kForever || node_.cardinality() == 0)) return {};
        input_.reset();
        ++epoch_;
      }
    }
    void start_epoch() {
      // Repetitions of repetitions are all different runs.
      const uint64_t first = run_.number * 0x9E3779B97F4A7C15u;
      input_ = node_.start({first + epoch_, run_.stop});
      epoch_is_empty_ = true;
    }
    void save_position(StateWriter& state) override {
      state.number(epoch_);
      state.flag(input_ != nullptr);
      if (!input_) return;
      state.flag(epoch_is_empty_);
      input_->save(state);
    }
    void restore_position(StateReader& state) override {
      const uint64_t last = count_ == kForever ? ~uint64_t{0} : uint64_t(count_);
      epoch_ = state.number_up_to(last, "the number of a repetition");
      if (!state.flag()) return;
      if (epoch_ == last && count_ != kForever)
        StateReader::fail(fmt::format("it stands in repetition {} of {}", epoch_, count_));
      start_epoch();
      epoch_is_empty_ = state.flag();
      input_->restore(state);
    }

    const DatasetNode& node_;
    int64_t count_;
    Run run_;
    uint64_t epoch_ = 0;
    bool epoch_is_empty_ = true;
    CursorPtr input_;
  };

  std::string step() const override {
    return count_ == kForever ? "repeat()" : fmt::format("repeat({})", count_);
  }
  int64_t count_;
};

// What zip and concatenate have in common.
template <class Self>
class JoinNode : public DatasetNode {
 public:
  explicit JoinNode(std::vector<NodePtr> inputs) : inputs_(std::move(inputs)) {}
  std::optional<int64_t> batch_size() const override {
    const std::optional<int64_t> size = inputs_[0]->batch_size();
    for (const NodePtr& input : inputs_)
      if (input->batch_size() != size) return {};
    return size;
  }
  // Dealing out the files of one and all of another would tear apart what belongs together.
  bool reads_files() const override {
    return std::ranges::all_of(inputs_, [](const NodePtr& input) { return input->reads_files(); });
  }
  NodePtr files_sharded(int64_t num_shards, int64_t index) const override {
    std::vector<NodePtr> sharded;
    for (const NodePtr& input : inputs_) sharded.push_back(input->files_sharded(num_shards, index));
    return std::make_shared<Self>(std::move(sharded));
  }

 protected:
  std::string described(const char* step) const {
    std::string text;
    for (const NodePtr& input : inputs_) text += (text.empty() ? "" : ", ") + input->describe();
    return fmt::format("{}({})", step, text);
  }
  std::vector<NodePtr> inputs_;
};

class ZipNode : public JoinNode<ZipNode> {
 public:
  using JoinNode::JoinNode;
  CursorPtr start(const Run& run) const override {
    return std::make_unique<ZipCursor>(inputs_, run);
  }
  int64_t cardinality() const override {
    int64_t shortest = Dataset::infinite;
    bool known = true;
    for (const NodePtr& input : inputs_) {
      const int64_t elements = input->cardinality();
      if (elements == 0) return 0;
      if (elements == Dataset::unknown) known = false;
      if (elements >= 0)
        shortest = shortest == Dataset::infinite ? elements : std::min(shortest, elements);
    }
    return known ? shortest : Dataset::unknown;
  }
  std::string describe() const override { return described("zip"); }

 private:
  class ZipCursor : public Cursor {
   public:
    ZipCursor(const std::vector<NodePtr>& inputs, const Run& run) : Cursor(run) {
      for (const NodePtr& input : inputs) inputs_.push_back(input->start(run));
    }

   private:
    std::optional<Tensors> advance() override {
      Tensors all;
      for (const CursorPtr& input : inputs_) {
        const std::optional<Tensors> element = input->next();
        if (!element) return {};
        all.insert(all.end(), element->begin(), element->end());
      }
      return all;
    }
    void save_position(StateWriter& state) override {
      for (const CursorPtr& input : inputs_) input->save(state);
    }
    void restore_position(StateReader& state) override {
      for (const CursorPtr& input : inputs_) input->restore(state);
    }
    std::vector<CursorPtr> inputs_;
  };
};

class ConcatenateNode : public JoinNode<ConcatenateNode> {
 public:
  using JoinNode::JoinNode;
  CursorPtr start(const Run& run) const override {
    return std::make_unique<ConcatenateCursor>(inputs_, run);
  }
  int64_t cardinality() const override {
    int64_t all = 0;
    bool known = true;
    for (const NodePtr& input : inputs_) {
      const int64_t elements = input->cardinality();
      if (elements == Dataset::infinite) return Dataset::infinite;
      if (elements == Dataset::unknown)
        known = false;
      else if (__builtin_add_overflow(all, elements, &all))
        all = std::numeric_limits<int64_t>::max();
    }
    return known ? all : Dataset::unknown;
  }
  std::string describe() const override { return described("concatenate"); }

 private:
  class ConcatenateCursor : public Cursor {
   public:
    ConcatenateCursor(const std::vector<NodePtr>& nodes, const Run& run)
        : Cursor(run), nodes_(nodes), run_(run), input_(nodes[0]->start(run)) {}

   private:
    std::optional<Tensors> advance() override {
      while (true) {
        if (std::optional<Tensors> element = input_->next()) return element;
        if (index_ + 1 == nodes_.size()) return {};
        input_ = nodes_[++index_]->start(run_);
      }
    }
    void save_position(StateWriter& state) override {
      state.number(index_);
      input_->save(state);
    }
    void restore_position(StateReader& state) override {
      index_ = state.number_up_to(nodes_.size() - 1, "the number of a concatenated dataset");
      input_ = nodes_[index_]->start(run_);
      input_->restore(state);
    }

    const std::vector<NodePtr>& nodes_;
    Run run_;
    size_t index_ = 0;
    CursorPtr input_;
  };
};

class CacheNode : public StepNode<CacheNode> {
 public:
  using Elements = std::shared_ptr<const std::vector<Tensors>>;
  using StepNode::StepNode;
  // A copy is made to get another input, whose elements are others.
  CacheNode(const CacheNode& other) : StepNode(other) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<CacheCursor>(*this, run);
  }

 private:
  class CacheCursor : public Cursor {
   public:
    // Always the first repetition, so that it does not matter which run fills the cache.
    CacheCursor(const CacheNode& node, const Run& run)
        : Cursor(run), node_(node), elements_(node.elements()) {
      if (!elements_) input_ = node.input_->start({0, run.stop});
    }

   private:
    std::optional<Tensors> advance() override {
      if (elements_) {
        if (index_ == elements_->size()) return {};
        return (*elements_)[index_++];
      }
      std::optional<Tensors> element = input_->next();
      if (element) {
        collected_.push_back(*element);
        ++index_;
      } else {
        node_.fill(std::move(collected_));
      }
      return element;
    }
    // The cache itself is not saved: it may be large, and what filled it can fill it again.
    void save_position(StateWriter& state) override { state.number(index_); }
    void restore_position(StateReader& state) override {
      const uint64_t target = state.number();
      while (index_ < target)
        if (!advance())
          StateReader::fail(
              fmt::format("it stands at element {} of a cache, which has only {}", target, index_));
    }

    const CacheNode& node_;
    Elements elements_;  // null until a run is complete
    CursorPtr input_;
    std::vector<Tensors> collected_;
    uint64_t index_ = 0;
  };

  Elements elements() const {
    std::lock_guard lock(mutex_);
    return elements_;
  }
  void fill(std::vector<Tensors> elements) const {
    std::lock_guard lock(mutex_);
    if (!elements_) elements_ = std::make_shared<const std::vector<Tensors>>(std::move(elements));
  }
  std::string step() const override { return "cache()"; }

  mutable std::mutex mutex_;
  mutable Elements elements_;
};

}  // namespace
}  // namespace detail

using detail::DatasetNode;

Dataset Dataset::repeat() const {
  return Dataset(std::make_shared<detail::RepeatNode>(DatasetNode::of(*this), detail::kForever));
}

Dataset Dataset::repeat(int64_t count) const {
  if (count < 0)
    throw InvalidArgumentError(fmt::format(
        "repeat: count is {}, expected 0 or more; without a count it repeats for ever", count));
  return Dataset(std::make_shared<detail::RepeatNode>(DatasetNode::of(*this), count));
}

Dataset Dataset::zip(std::vector<Dataset> datasets) {
  if (datasets.empty()) throw InvalidArgumentError("zip: there are no datasets");
  std::vector<detail::NodePtr> nodes;
  for (const Dataset& dataset : datasets) nodes.push_back(DatasetNode::of(dataset));
  return Dataset(std::make_shared<detail::ZipNode>(std::move(nodes)));
}

Dataset Dataset::concatenate(const Dataset& other) const {
  return Dataset(std::make_shared<detail::ConcatenateNode>(
      std::vector{DatasetNode::of(*this), DatasetNode::of(other)}));
}

Dataset Dataset::cache() const {
  return Dataset(std::make_shared<detail::CacheNode>(DatasetNode::of(*this)));
}

}  // namespace tutti
