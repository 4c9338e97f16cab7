// SPDX-License-Identifier: Apache-2.0
#include <tutti/dataset.h>
#include <tutti/device.h>

#include "input/dataset_node.h"
#include "input/elements.h"

namespace tutti {

namespace detail {

const NodePtr& DatasetNode::of(const Dataset& dataset) {
  if (!dataset.node_)
    throw FailedPreconditionError("this Dataset holds nothing: it was moved from");
  return dataset.node_;
}

NodePtr DatasetNode::files_sharded(int64_t, int64_t) const {
  throw InternalError(fmt::format("files_sharded: {} reads no files", describe()));
}

NodePtr DatasetNode::names_sharded(int64_t num_shards, int64_t index) const {
  if (const int64_t files = cardinality(); files >= 0 && files < num_shards)
    throw OutOfRangeError(fmt::format("with_files_sharded: {} has {} files for {} shards",
                                      describe(), files, num_shards));
  return of(dataset(shared_from_this()).shard(num_shards, index));
}

std::optional<Specs> DatasetNode::spec_of_first() const {
  const std::optional<Tensors> first = start({0, std::make_shared<Stop>()})->next();
  if (!first) return {};
  Specs specs;
  for (const Tensor& component : *first)
    specs.push_back({component.dtype(), std::vector<int64_t>(component.shape().rank(), -1)});
  return specs;
}

namespace {

// Functions of pipelines are called on the CPU.
struct HostScope {
  HostScope() {
    if (&device::current() != &host_device()) scope.emplace(host_device().name());
  }
  std::optional<DeviceScope> scope;
};

// The whole run: keeps the recipe alive.
class RootCursor : public DatasetCursor {
 public:
  explicit RootCursor(NodePtr node)
      : node_(std::move(node)),
        stop_(std::make_shared<Stop>()),
        cursor_(node_->start({0, stop_})) {}
  ~RootCursor() override { stop_->request(); }

  std::optional<Tensors> next() override {
    const HostScope scope;
    return cursor_->next();
  }
  void save(StateWriter& state) override {
    state.text(node_->describe());
    cursor_->save(state);
  }
  void restore(StateReader& state) override {
    const HostScope scope;
    const std::string_view saved = state.text();
    if (const std::string own = node_->describe(); saved != own)
      throw DataLossError(fmt::format(
          "make_iterator: the state is of another dataset: of {}, and this is {}", saved, own));
    cursor_->restore(state);
    state.expect_end();
  }

 private:
  NodePtr node_;
  std::shared_ptr<Stop> stop_;
  CursorPtr cursor_;
};

DatasetCursor& present(const CursorPtr& cursor) {
  if (!cursor)
    throw FailedPreconditionError("this DatasetIterator holds nothing: it was moved from");
  return *cursor;
}

}  // namespace
}  // namespace detail

using detail::DatasetNode;

DatasetIterator::DatasetIterator(std::unique_ptr<detail::DatasetCursor> cursor)
    : cursor_(std::move(cursor)) {}
DatasetIterator::~DatasetIterator() = default;
DatasetIterator::DatasetIterator(DatasetIterator&&) noexcept = default;
DatasetIterator& DatasetIterator::operator=(DatasetIterator&&) noexcept = default;

std::optional<std::vector<Tensor>> DatasetIterator::next() {
  return detail::present(cursor_).next();
}

std::string DatasetIterator::save() {
  detail::StateWriter state;
  detail::present(cursor_).save(state);
  return std::move(state).finished();
}

DatasetIterator Dataset::make_iterator() const {
  return DatasetIterator(std::make_unique<detail::RootCursor>(DatasetNode::of(*this)));
}

DatasetIterator Dataset::make_iterator(const std::string& state) const {
  detail::StateReader reader(state);
  auto cursor = std::make_unique<detail::RootCursor>(DatasetNode::of(*this));
  cursor->restore(reader);
  return DatasetIterator(std::move(cursor));
}

Dataset::Components Dataset::reduce(
    Components initial_state,
    const std::function<Components(const Components&, const Components&)>& fn) const {
  detail::check_function(fn, "reduce");
  detail::SameTypes types;
  types.check(initial_state, "reduce");
  Components state = std::move(initial_state);
  DatasetIterator iterator = make_iterator();
  while (const std::optional<Components> element = iterator.next()) {
    const detail::HostScope scope;
    state = fn(state, *element);
    types.check(state, "reduce");
  }
  return state;
}

std::vector<TensorSpec> Dataset::element_spec() const {
  const detail::HostScope scope;
  return DatasetNode::of(*this)->spec(true).value_or(detail::Specs());
}

int64_t Dataset::cardinality() const { return DatasetNode::of(*this)->cardinality(); }
std::optional<int64_t> Dataset::batch_size() const { return DatasetNode::of(*this)->batch_size(); }
bool Dataset::ends_with_batch() const { return DatasetNode::of(*this)->ends_with_batch(); }

std::optional<Dataset> Dataset::with_files_sharded(int64_t num_shards, int64_t index) const {
  detail::check_shard(num_shards, index, "with_files_sharded");
  const detail::NodePtr& node = DatasetNode::of(*this);
  if (!node->reads_files()) return {};
  return Dataset(node->files_sharded(num_shards, index));
}

}  // namespace tutti
