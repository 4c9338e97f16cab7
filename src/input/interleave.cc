// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <utility>

#include "input/dataset_node.h"

namespace tutti {

namespace detail {
namespace {

class InterleaveNode : public StepNode<InterleaveNode, false> {
 public:
  using Function = std::function<Dataset(const Tensors&)>;
  struct Lengths {
    int64_t cycle, block;
    int threads;  // each reads a dataset of the cycle ahead; 0: none does
  };
  InterleaveNode(NodePtr input, Function fn, Lengths lengths)
      : StepNode(std::move(input)), fn_(std::move(fn)), lengths_(lengths) {}
  CursorPtr start(const Run& run) const override;
  int64_t cardinality() const override { return input_->cardinality() == 0 ? 0 : Dataset::unknown; }
  bool elements_alike() const override { return false; }
  bool reads_files() const override { return opens_files() || input_->reads_files(); }
  NodePtr files_sharded(int64_t num_shards, int64_t index) const override {
    return with_input(opens_files() ? input_->names_sharded(num_shards, index)
                                    : input_->files_sharded(num_shards, index));
  }

 private:
  class InterleaveCursor;

  // Only the function knows, so it is asked about the first element.
  bool opens_files() const {
    if (input_->cardinality() == 0) return false;
    const NodePtr names = input_->names_sharded(1, 0);
    const std::optional<Tensors> first = names->start({0, std::make_shared<Stop>()})->next();
    return first && of(fn_(*first))->reads_files();
  }
  std::string step() const override {
    if (lengths_.threads == 0)
      return fmt::format("interleave({}, {})", lengths_.cycle, lengths_.block);
    return fmt::format("interleave({}, {}, {})", lengths_.cycle, lengths_.block, lengths_.threads);
  }

  Function fn_;
  Lengths lengths_;
};

class InterleaveNode::InterleaveCursor : public StepCursor {
 public:
  InterleaveCursor(const InterleaveNode& node, const Run& run)
      : StepCursor(*node.input_, run), node_(node), run_(run) {}

 private:
  // A dataset of the cycle, while it is open, and the element it was made of.
  struct Open {
    Tensors made_of;
    NodePtr node;
    CursorPtr cursor;
    std::exception_ptr error = {};  // instead: what opening it threw, ahead of time
  };

  std::optional<Tensors> advance() override {
    while (!input_ended_ || num_open_ > 0) {
      if (node_.lengths_.threads > 0) open_ahead();
      if (place_ < cycle_.size() && cycle_[place_].cursor) {
        if (std::optional<Tensors> element = cycle_[place_].cursor->next()) {
          if (++taken_ == node_.lengths_.block) step_on();
          return element;
        }
        cycle_[place_] = {};
        --num_open_;
        step_on();
      } else if (place_ < cycle_.size() && cycle_[place_].error) {
        std::rethrow_exception(std::exchange(cycle_[place_].error, nullptr));
      } else if (!input_ended_) {
        open_next(place_);
      } else {
        step_on();
      }
    }
    return {};
  }

  // Opens datasets ahead of time in the order of their turns, so that every place gets the same
  // dataset as without reading ahead.
  void open_ahead() {
    const auto cycle = size_t(node_.lengths_.cycle);
    if (!std::exchange(begun_, true))  // those restored from a state
      for (const Open& open : cycle_)
        if (open.cursor) open.cursor->begin();
    for (size_t i = 0; i < cycle && num_open_ < cycle && !input_ended_ && !failed_; ++i) {
      const size_t place = (place_ + i) % cycle;
      if (place < cycle_.size() && cycle_[place].cursor) continue;
      try {
        open_next(place);
        if (!input_ended_) cycle_[place].cursor->begin();
      } catch (...) {
        if (place == cycle_.size()) cycle_.emplace_back();
        if (cycle_[place].cursor) --num_open_;
        cycle_[place] = {{}, {}, {}, std::current_exception()};
        failed_ = true;
      }
    }
  }

  void open_next(size_t place) {
    if (std::optional<Tensors> element = input_->next())
      open(*std::move(element), place);
    else
      input_ended_ = true;
  }

  void open(Tensors element, size_t place) {
    NodePtr node = of(node_.fn_(element));
    if (int64_t(place) < node_.lengths_.threads)
      node = of(dataset(node).prefetch(node_.lengths_.block));
    CursorPtr cursor = node->start(run_);
    if (place == cycle_.size()) cycle_.emplace_back();
    cycle_[place] = {std::move(element), std::move(node), std::move(cursor)};
    ++num_open_;
  }

  // Places that were never used lie behind the last, so that the input has ended before they
  // matter.
  void step_on() {
    taken_ = 0;
    ++place_;
    const bool past_the_last =
        input_ended_ ? place_ >= cycle_.size() : int64_t(place_) == node_.lengths_.cycle;
    if (past_the_last) place_ = 0;
  }

  void save_position(StateWriter& state) override {
    StepCursor::save_position(state);
    state.flag(input_ended_);
    state.number(place_);
    state.number(uint64_t(taken_));
    state.number(cycle_.size());
    for (const Open& open : cycle_) {
      state.flag(open.cursor != nullptr);
      if (!open.cursor && node_.lengths_.threads > 0) {
        state.flag(open.error != nullptr);
        if (open.error) state.error(open.error);
      }
      if (!open.cursor) continue;
      state.element(open.made_of);
      state.text(open.node->describe());
      open.cursor->save(state);
    }
  }

  void restore_position(StateReader& state) override {
    StepCursor::restore_position(state);
    input_ended_ = state.flag();
    const uint64_t cycle = uint64_t(node_.lengths_.cycle);
    const uint64_t place = state.number_up_to(cycle - 1, "the place in a cycle");
    taken_ = int64_t(state.number_up_to(uint64_t(node_.lengths_.block - 1),
                                        "the number of elements taken from a block"));
    const uint64_t places = state.count_up_to(cycle, 1, "the number of open datasets");
    if (place > places)
      StateReader::fail(fmt::format("it stands at place {} of {}", place, places));
    for (place_ = 0; place_ < places; ++place_) {
      cycle_.emplace_back();
      if (!state.flag()) {
        if (node_.lengths_.threads > 0 && state.flag()) {
          cycle_[place_].error = state.error();
          failed_ = true;
        }
        continue;
      }
      open(state.element(), place_);
      const std::string_view saved = state.text();
      if (const std::string own = cycle_[place_].node->describe(); saved != own)
        throw DataLossError(fmt::format(
            "make_iterator: the state is of another dataset: it has {} open, and this has {}",
            saved, own));
      cycle_[place_].cursor->restore(state);
    }
    place_ = place;
  }

  const InterleaveNode& node_;
  Run run_;
  std::vector<Open> cycle_;  // as many as were needed so far
  size_t place_ = 0;         // at most cycle_.size()
  int64_t taken_ = 0;        // from the current place in a row
  size_t num_open_ = 0;
  bool input_ended_ = false;
  bool begun_ = false, failed_ = false;  // to open ahead
};

CursorPtr InterleaveNode::start(const Run& run) const {
  return std::make_unique<InterleaveCursor>(*this, run);
}

}  // namespace
}  // namespace detail

Dataset Dataset::interleave(std::function<Dataset(const Components&)> fn, int64_t cycle_length,
                            int64_t block_length, int num_parallel_calls) const {
  detail::check_function(fn, "interleave");
  detail::check_at_least(1, cycle_length, "interleave: cycle_length");
  detail::check_at_least(1, block_length, "interleave: block_length");
  detail::check_at_least(1, num_parallel_calls, "interleave: num_parallel_calls");
  return Dataset(std::make_shared<detail::InterleaveNode>(
      detail::DatasetNode::of(*this), std::move(fn),
      detail::InterleaveNode::Lengths{cycle_length, block_length,
                                      num_parallel_calls > 1 ? num_parallel_calls : 0}));
}

Dataset Dataset::flat_map(std::function<Dataset(const Components&)> fn) const {
  detail::check_function(fn, "flat_map");
  return interleave(std::move(fn), 1);
}

}  // namespace tutti
