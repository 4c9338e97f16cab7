// SPDX-License-Identifier: Apache-2.0
#include "input/dataset_node.h"
#include "input/random.h"

namespace tutti {

namespace detail {
namespace {

class ShuffleNode : public StepNode<ShuffleNode> {
 public:
  struct Options {
    int64_t buffer_size;
    uint64_t seed;
    bool reshuffle;
  };
  ShuffleNode(NodePtr input, Options options) : StepNode(std::move(input)), options_(options) {}
  CursorPtr start(const Run& run) const override {
    if (const auto* source = dynamic_cast<const IndexedNode*>(input_.get()))
      return std::make_unique<IndexedShuffleCursor>(*source, options_, run);
    return std::make_unique<ShuffleCursor>(*input_, options_, run);
  }
  NodePtr names_sharded(int64_t num_shards, int64_t index) const override {
    return input_->names_sharded(num_shards, index);
  }

 private:
  static Random random_of(const Options& options, const Run& run) {
    return {options.seed, options.reshuffle ? run.number : 0};
  }

  template <class T>
  static T draw(Random& random, std::vector<T>& buffer) {
    std::swap(buffer[random.below(buffer.size())], buffer.back());
    T drawn = std::move(buffer.back());
    buffer.pop_back();
    return drawn;
  }

  class ShuffleCursor : public StepCursor {
   public:
    ShuffleCursor(const DatasetNode& input, const Options& options, const Run& run)
        : StepCursor(input, run),
          buffer_size_(uint64_t(options.buffer_size)),
          random_(random_of(options, run)) {}

   private:
    std::optional<Tensors> advance() override {
      while (buffer_.size() < buffer_size_) {
        std::optional<Tensors> element = input_->next();
        if (!element) break;
        buffer_.push_back(*std::move(element));
      }
      if (buffer_.empty()) return {};
      return draw(random_, buffer_);
    }
    void save_position(StateWriter& state) override {
      StepCursor::save_position(state);
      state.number(random_.state());
      state.number(buffer_.size());
      for (const Tensors& element : buffer_) state.element(element);
    }
    void restore_position(StateReader& state) override {
      StepCursor::restore_position(state);
      random_ = Random(state.number());
      buffer_.resize(state.count_up_to(buffer_size_, 8, "the number of shuffled elements"));
      for (Tensors& element : buffer_) element = state.element();
    }

    uint64_t buffer_size_;
    Random random_;
    std::vector<Tensors> buffer_;
  };

  // Of a source whose elements are known by index: the same order, from a buffer of indices.
  class IndexedShuffleCursor : public Cursor {
   public:
    IndexedShuffleCursor(const IndexedNode& source, const Options& options, const Run& run)
        : Cursor(run),
          source_(source),
          buffer_size_(uint64_t(options.buffer_size)),
          random_(random_of(options, run)) {}

   private:
    std::optional<Tensors> advance() override {
      while (buffer_.size() < buffer_size_ && next_ < source_.size()) buffer_.push_back(next_++);
      if (buffer_.empty()) return {};
      return source_.at(draw(random_, buffer_));
    }
    void save_position(StateWriter& state) override {
      state.number(next_);
      state.number(random_.state());
      state.number(buffer_.size());
      for (const uint64_t index : buffer_) state.number(index);
    }
    void restore_position(StateReader& state) override {
      next_ = state.number_up_to(source_.size(), "the position in a source");
      random_ = Random(state.number());
      buffer_.resize(state.count_up_to(buffer_size_, 8, "the number of shuffled elements"));
      for (uint64_t& index : buffer_) {
        index = state.number_up_to(next_, "the index of a shuffled element");
        if (index == next_) StateReader::fail("it holds an element that it has not read");
      }
    }

    const IndexedNode& source_;
    uint64_t buffer_size_;
    uint64_t next_ = 0;
    Random random_;
    std::vector<uint64_t> buffer_;
  };

  std::string step() const override {
    return fmt::format("shuffle({}, {}, {})", options_.buffer_size, options_.seed,
                       options_.reshuffle);
  }
  Options options_;
};

}  // namespace
}  // namespace detail

Dataset Dataset::shuffle(int64_t buffer_size, uint64_t seed, bool reshuffle_each_iteration) const {
  detail::check_at_least(1, buffer_size, "shuffle: buffer_size");
  return Dataset(std::make_shared<detail::ShuffleNode>(
      detail::DatasetNode::of(*this),
      detail::ShuffleNode::Options{buffer_size, seed, reshuffle_each_iteration}));
}

}  // namespace tutti
