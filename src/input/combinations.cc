// SPDX-License-Identifier: Apache-2.0
// Steps that run several pipelines, or one of them several times.
#include <cmath>
#include <mutex>

#include "input/dataset_node.h"
#include "input/elements.h"
#include "input/random.h"

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
        // Else it might search an empty input without end, or nearly so.
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
    auto copy = std::make_shared<Self>(static_cast<const Self&>(*this));
    for (NodePtr& input : copy->inputs_) input = input->files_sharded(num_shards, index);
    return copy;
  }
  bool elements_alike() const override {
    return std::ranges::all_of(inputs_,
                               [](const NodePtr& input) { return input->elements_alike(); });
  }

 protected:
  // Elements of which each comes from one of the inputs.
  std::optional<Specs> common_spec(bool look) const {
    std::optional<Specs> common;
    for (const NodePtr& input : inputs_) {
      const std::optional<Specs> other = input->spec(look);
      if (!other || other->empty()) {
        if (look) continue;  // it has no elements
        return {};
      }
      if (!common) common = other;
      for (size_t i = 0; i < std::min(common->size(), other->size()); ++i) {
        std::vector<int64_t>& shape = (*common)[i].shape;
        if (shape.size() != (*other)[i].shape.size())
          throw InvalidArgumentError(fmt::format(
              "element_spec: component {} has {} axes in one dataset and {} in another, "
              "so it has no shape",
              i, shape.size(), (*other)[i].shape.size()));
        for (size_t axis = 0; axis < shape.size(); ++axis)
          if (shape[axis] != (*other)[i].shape[axis]) shape[axis] = -1;
      }
    }
    return common;
  }
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
  std::optional<Specs> spec(bool look) const override {
    Specs all;
    for (const NodePtr& input : inputs_) {
      const std::optional<Specs> specs = input->spec(look);
      if (!specs) return {};
      all.insert(all.end(), specs->begin(), specs->end());
    }
    return all;
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
  std::optional<Specs> spec(bool look) const override { return common_spec(look); }
  std::string describe() const override { return described("concatenate"); }

 private:
  class ConcatenateCursor : public Cursor {
   public:
    ConcatenateCursor(const std::vector<NodePtr>& nodes, const Run& run)
        : Cursor(run), nodes_(nodes), run_(run), input_(nodes[0]->start(run)) {}

   private:
    std::optional<Tensors> advance() override {
      while (true) {
        if (std::optional<Tensors> element = input_->next()) {
          types_.check(*element, "concatenate");
          return element;
        }
        if (index_ + 1 == nodes_.size()) return {};
        input_ = nodes_[++index_]->start(run_);
      }
    }
    void save_position(StateWriter& state) override {
      state.number(index_);
      types_.save(state);
      input_->save(state);
    }
    void restore_position(StateReader& state) override {
      index_ = state.number_up_to(nodes_.size() - 1, "the number of a concatenated dataset");
      types_.restore(state);
      input_ = nodes_[index_]->start(run_);
      input_->restore(state);
    }

    const std::vector<NodePtr>& nodes_;
    Run run_;
    size_t index_ = 0;
    CursorPtr input_;
    SameTypes types_;
  };
};

class SampleNode : public JoinNode<SampleNode> {
 public:
  struct Options {
    std::vector<double> weights;
    uint64_t seed;
    bool stop_on_empty, rerandomize;
  };
  SampleNode(std::vector<NodePtr> inputs, Options options)
      : JoinNode(std::move(inputs)), options_(std::move(options)) {
    // Weights as whole numbers, with which all machines draw the same.
    const double largest = std::ranges::max(options_.weights);
    for (const double weight : options_.weights)
      weights_.push_back(std::max<uint64_t>(1, uint64_t(weight / largest * 0x1p32)));
  }
  CursorPtr start(const Run& run) const override {
    return std::make_unique<SampleCursor>(*this, run);
  }
  int64_t cardinality() const override {
    int64_t all = 0;
    for (const NodePtr& input : inputs_) {
      const int64_t elements = input->cardinality();
      if (elements == Dataset::infinite && !options_.stop_on_empty) return elements;
      if (elements < 0 || __builtin_add_overflow(all, elements, &all)) all = Dataset::unknown;
      if (all < 0) return Dataset::unknown;
    }
    return options_.stop_on_empty && all > 0 ? Dataset::unknown : all;
  }
  std::optional<Specs> spec(bool look) const override { return common_spec(look); }
  std::string describe() const override {
    return fmt::format("{}.sample([{}], {}, {}, {})", described("datasets"),
                       fmt::join(options_.weights, ", "), options_.seed, options_.stop_on_empty,
                       options_.rerandomize);
  }

 private:
  class SampleCursor : public Cursor {
   public:
    SampleCursor(const SampleNode& node, const Run& run)
        : Cursor(run),
          node_(node),
          random_(node.options_.seed, node.options_.rerandomize ? run.number : 0) {
      for (const NodePtr& input : node.inputs_) inputs_.push_back(input->start(run));
    }

   private:
    std::optional<Tensors> advance() override {
      while (true) {
        uint64_t all = 0;
        for (size_t i = 0; i < inputs_.size(); ++i) all += inputs_[i] ? node_.weights_[i] : 0;
        if (all == 0) return {};
        uint64_t drawn = random_.below(all);
        size_t i = 0;
        for (; !inputs_[i] || drawn >= node_.weights_[i]; ++i)
          drawn -= inputs_[i] ? node_.weights_[i] : 0;
        if (std::optional<Tensors> element = inputs_[i]->next()) {
          types_.check(*element, "sample_from_datasets");
          return element;
        }
        if (node_.options_.stop_on_empty) return {};
        inputs_[i].reset();
      }
    }
    void save_position(StateWriter& state) override {
      state.number(random_.state());
      types_.save(state);
      for (const CursorPtr& input : inputs_) {
        state.flag(input != nullptr);
        if (input) input->save(state);
      }
    }
    void restore_position(StateReader& state) override {
      random_ = Random(state.number());
      types_.restore(state);
      for (CursorPtr& input : inputs_)
        if (state.flag())
          input->restore(state);
        else
          input.reset();
    }

    const SampleNode& node_;
    Random random_;
    std::vector<CursorPtr> inputs_;  // null at their end
    SameTypes types_;
  };

  Options options_;
  std::vector<uint64_t> weights_;
};

class CacheNode : public StepNode<CacheNode> {
 public:
  using Elements = std::shared_ptr<const std::vector<Tensors>>;
  using StepNode::StepNode;
  // A copy gets another input, so it does not share what is cached.
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

namespace {

// What is known of the dtypes before anything has run.
void check_types(const std::vector<detail::NodePtr>& nodes, const char* operation) {
  detail::SameTypes types;
  for (const detail::NodePtr& node : nodes)
    if (const std::optional<detail::Specs> specs = node->spec(false))
      types.check(*specs, operation);
}

}  // namespace

Dataset Dataset::repeat(int64_t count) const {
  detail::check_count(count, "repeat: count");
  return Dataset(std::make_shared<detail::RepeatNode>(DatasetNode::of(*this), count));
}

Dataset Dataset::zip(std::vector<Dataset> datasets) {
  if (datasets.empty()) throw InvalidArgumentError("zip: there are no datasets");
  std::vector<detail::NodePtr> nodes;
  for (const Dataset& dataset : datasets) nodes.push_back(DatasetNode::of(dataset));
  return Dataset(std::make_shared<detail::ZipNode>(std::move(nodes)));
}

Dataset Dataset::concatenate(const Dataset& other) const {
  std::vector<detail::NodePtr> nodes{DatasetNode::of(*this), DatasetNode::of(other)};
  check_types(nodes, "concatenate");
  return Dataset(std::make_shared<detail::ConcatenateNode>(std::move(nodes)));
}

Dataset Dataset::sample_from_datasets(std::vector<Dataset> datasets, std::vector<double> weights,
                                      uint64_t seed, bool stop_on_empty_dataset,
                                      bool rerandomize_each_iteration) {
  if (weights.empty()) weights.assign(datasets.size(), 1);
  if (datasets.empty() || weights.size() != datasets.size())
    throw InvalidArgumentError(
        fmt::format("sample_from_datasets: {} datasets and {} weights, expected one or more, and a "
                    "weight for each or none",
                    datasets.size(), weights.size()));
  std::vector<detail::NodePtr> nodes;
  for (size_t i = 0; i < datasets.size(); ++i) {
    if (!(weights[i] >= 0) || std::isinf(weights[i]))
      throw InvalidArgumentError(fmt::format(
          "sample_from_datasets: weight {} is {}, expected a finite number of 0 or more", i,
          weights[i]));
    if (weights[i] > 0) nodes.push_back(DatasetNode::of(datasets[i]));
  }
  std::erase(weights, 0);
  if (nodes.empty()) throw InvalidArgumentError("sample_from_datasets: all weights are 0");
  check_types(nodes, "sample_from_datasets");
  return Dataset(std::make_shared<detail::SampleNode>(
      std::move(nodes), detail::SampleNode::Options{std::move(weights), seed, stop_on_empty_dataset,
                                                    rerandomize_each_iteration}));
}

Dataset Dataset::enumerate(int64_t start) const {
  return zip({range(start, std::numeric_limits<int64_t>::max()), *this});
}

Dataset Dataset::cache() const {
  return Dataset(std::make_shared<detail::CacheNode>(DatasetNode::of(*this)));
}

}  // namespace tutti
