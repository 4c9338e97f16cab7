// SPDX-License-Identifier: Apache-2.0
// Sources in memory: their elements are known by index, except for a generator's.
#include "input/dataset_node.h"
#include "input/elements.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace detail {
namespace {

class IndexedCursor : public Cursor {
 public:
  IndexedCursor(const IndexedNode& node, const Run& run) : Cursor(run), node_(node) {}

 private:
  std::optional<Tensors> advance() override {
    if (index_ == node_.size()) return {};
    return node_.at(index_++);
  }
  void save_position(StateWriter& state) override { state.number(index_); }
  void restore_position(StateReader& state) override {
    index_ = state.number_up_to(node_.size(), "the position in a source");
  }

  const IndexedNode& node_;
  uint64_t index_ = 0;
};

class RangeNode : public IndexedNode {
 public:
  // Computes in unsigned numbers, since a step may leave the range of int64.
  RangeNode(int64_t start, int64_t stop, int64_t step) : start_(start), stop_(stop), step_(step) {
    const uint64_t first = uint64_t(start), end = uint64_t(stop), by = uint64_t(step);
    if (step > 0 && start < stop) size_ = (end - first - 1) / by + 1;
    if (step < 0 && start > stop) size_ = (first - end - 1) / (0 - by) + 1;
  }
  uint64_t size() const override { return size_; }
  Tensors at(uint64_t index) const override {
    const Tensor value = TensorAccess::empty(Shape{}, DType::int64, host_device());
    *value.span<int64_t>().data() = int64_t(uint64_t(start_) + index * uint64_t(step_));
    return {value};
  }
  std::optional<Specs> spec(bool) const override { return Specs{{DType::int64, {}}}; }
  std::string describe() const override {
    return fmt::format("range({}, {}, {})", start_, stop_, step_);
  }

 private:
  int64_t start_, stop_, step_;
  uint64_t size_ = 0;
};

std::string described(const char* source, const Tensors& components) {
  std::string text;
  for (const Tensor& component : components)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name(component.dtype()),
                        component.shape().to_string());
  return fmt::format("{}({})", source, text);
}

// `skip` is the number of axes that are not the elements' own.
Specs specs_of(const Tensors& components, size_t skip) {
  Specs specs;
  for (const Tensor& component : components) {
    const std::span<const int64_t> extents = component.shape().extents().subspan(skip);
    specs.push_back({component.dtype(), {extents.begin(), extents.end()}});
  }
  return specs;
}

class TensorsNode : public IndexedNode {
 public:
  explicit TensorsNode(Tensors components) : components_(std::move(components)) {}
  uint64_t size() const override { return 1; }
  Tensors at(uint64_t) const override { return components_; }
  std::optional<Specs> spec(bool) const override { return specs_of(components_, 0); }
  std::string describe() const override { return described("from_tensors", components_); }

 private:
  Tensors components_;
};

class SlicesNode : public IndexedNode {
 public:
  explicit SlicesNode(Tensors components) : rows_(std::move(components), "from_tensor_slices") {}
  uint64_t size() const override { return uint64_t(rows_.size()); }
  Tensors at(uint64_t index) const override { return rows_[int64_t(index)]; }
  std::optional<Specs> spec(bool) const override { return specs_of(rows_.components(), 1); }
  std::string describe() const override {
    return described("from_tensor_slices", rows_.components());
  }

 private:
  Rows rows_;
};

class GeneratorCursor : public Cursor {
 public:
  GeneratorCursor(const std::function<Dataset::Generator()>& start, const Run& run)
      : Cursor(run), start_(start) {}

 private:
  std::optional<Tensors> advance() override {
    if (!generator_) {
      generator_ = start_();
      if (!generator_)
        throw InvalidArgumentError("from_generator: start returned an empty function");
    }
    std::optional<Tensors> element = generator_();
    if (element) ++given_;
    return element;
  }
  void save_position(StateWriter& state) override { state.number(given_); }
  void restore_position(StateReader& state) override {
    const uint64_t target = state.number();
    while (given_ < target)
      if (!advance())
        StateReader::fail(fmt::format("it stands at element {} of a generator, which has only {}",
                                      target, given_));
  }

  const std::function<Dataset::Generator()>& start_;
  Dataset::Generator generator_;
  uint64_t given_ = 0;
};

class GeneratorNode : public DatasetNode {
 public:
  explicit GeneratorNode(std::function<Dataset::Generator()> start) : start_(std::move(start)) {}
  CursorPtr start(const Run& run) const override {
    return std::make_unique<GeneratorCursor>(start_, run);
  }
  std::string describe() const override { return "from_generator()"; }

 private:
  std::function<Dataset::Generator()> start_;
};

}  // namespace

CursorPtr IndexedNode::start(const Run& run) const {
  return std::make_unique<IndexedCursor>(*this, run);
}

}  // namespace detail

Dataset Dataset::range(int64_t stop) { return range(0, stop); }

Dataset Dataset::range(int64_t start, int64_t stop, int64_t step) {
  if (step == 0)
    throw InvalidArgumentError(fmt::format("range: the step from {} to {} is 0", start, stop));
  return Dataset(std::make_shared<detail::RangeNode>(start, stop, step));
}

Dataset Dataset::from_tensors(Components components) {
  if (components.empty()) throw InvalidArgumentError("from_tensors: there are no components");
  for (size_t i = 0; i < components.size(); ++i)
    if (!components[i])
      throw InvalidArgumentError(fmt::format("from_tensors: component {} holds nothing", i));
  return Dataset(std::make_shared<detail::TensorsNode>(std::move(components)));
}

Dataset Dataset::from_tensor_slices(Components components) {
  return Dataset(std::make_shared<detail::SlicesNode>(std::move(components)));
}

Dataset Dataset::from_tensor_slices(Tensor tensor) {
  return from_tensor_slices(Components{std::move(tensor)});
}

Dataset Dataset::from_generator(std::function<Generator()> start) {
  detail::check_function(start, "from_generator");
  return Dataset(std::make_shared<detail::GeneratorNode>(std::move(start)));
}

}  // namespace tutti
