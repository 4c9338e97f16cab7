// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/detail/replica_function.h>
#include <tutti/error.h>
#include <tutti/input.h>

#include <algorithm>

#include "base/context.h"
#include "device/gpu.h"
#include "input/dataset_node.h"
#include "input/input_source.h"
#include "observe/timeline.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace detail {

// The recipe of a distributed input: one dataset per pipeline, and what becomes of an element.
class InputSource {
 public:
  input::Layout layout;
  std::vector<Dataset> datasets;  // one for the worker, or one for each of its replicas
  bool split;                     // an element is a global batch, cut into one part per replica
  bool drop_leftover = false;     // end if a replica has no data left, rather than give it no rows
};

PerReplica<std::vector<Tensor>> transpose(const DistributedElement& element) {
  std::vector<std::vector<Tensor>> replicas(element.empty() ? 0 : element[0].size());
  for (const PerReplica<Tensor>& component : element)
    for (size_t r = 0; r < replicas.size(); ++r) replicas[r].push_back(component[r]);
  return PerReplica<std::vector<Tensor>>(std::move(replicas));
}

void throw_arity(size_t parameters, size_t components) {
  throw InvalidArgumentError(
      fmt::format("run: the function takes {} tensors, and the input's elements have {} components",
                  parameters, components));
}

}  // namespace detail

using detail::Device;
using detail::InputSource;
using detail::TensorAccess;

InputContext::InputContext(int num_input_pipelines, int input_pipeline_id, int num_replicas_in_sync)
    : num_input_pipelines_(num_input_pipelines),
      input_pipeline_id_(input_pipeline_id),
      num_replicas_in_sync_(num_replicas_in_sync) {
  if (num_input_pipelines < 1 || input_pipeline_id < 0 ||
      input_pipeline_id >= num_input_pipelines || num_replicas_in_sync < 1)
    throw InvalidArgumentError(fmt::format("InputContext: there is no {}", to_string()));
}

int64_t InputContext::get_per_replica_batch_size(int64_t global_batch_size) const {
  if (global_batch_size % num_replicas_in_sync_ != 0)
    throw InvalidArgumentError(
        fmt::format("the global batch size {} does not divide by the {} replicas",
                    global_batch_size, num_replicas_in_sync_));
  return global_batch_size / num_replicas_in_sync_;
}

std::string InputContext::to_string() const {
  return fmt::format("input pipeline {} of {}, {} replicas in sync", input_pipeline_id_,
                     num_input_pipelines_, num_replicas_in_sync_);
}

namespace input {

namespace {

// To a GPU, beside what it computes: the next batch need not wait for this one to be done with.
Tensor uploaded(const Tensor& tensor, Device& device) {
  if (device.gpu() < 0 || !TensorAccess::device(tensor).in_host_memory())
    return detail::clone_to(tensor, device);
  std::shared_ptr<void> memory =
      device::upload(device.gpu(), tensor.const_data(), tensor.num_bytes());
  void* const data = memory.get();
  return TensorAccess::wrap(std::move(memory), data, tensor.shape(), tensor.dtype(), device, false);
}

// Rows [begin, end) of `tensor` on `device`; without a copy if that can read host memory.
Tensor rows_of(const Tensor& tensor, int64_t begin, int64_t end, Device& device) {
  std::vector<int64_t> extents(tensor.shape().begin(), tensor.shape().end());
  const size_t row_bytes = extents[0] ? tensor.num_bytes() / size_t(extents[0]) : 0;
  extents[0] = end - begin;
  auto* const data =
      static_cast<std::byte*>(TensorAccess::data(tensor)) + size_t(begin) * row_bytes;
  Device& from = TensorAccess::device(tensor);
  const bool in_place = device.in_host_memory() && from.in_host_memory();
  const Tensor view =
      TensorAccess::wrap(std::make_shared<Tensor>(tensor), data, Shape(extents), tensor.dtype(),
                         in_place ? device : from, tensor.is_read_only());
  return in_place ? view : uploaded(view, device);
}

Tensor moved_to(const Tensor& tensor, Device& device) {
  if (tensor.device() == device.name()) return tensor;
  if (!device.in_host_memory()) return uploaded(tensor, device);
  if (!TensorAccess::device(tensor).in_host_memory()) return detail::clone_to(tensor, device);
  return TensorAccess::wrap(std::make_shared<Tensor>(tensor), TensorAccess::data(tensor),
                            tensor.shape(), tensor.dtype(), device, tensor.is_read_only());
}

// The rows of a batch that go to one of n replicas: in order, the first ones getting one more.
std::pair<int64_t, int64_t> share_of(int64_t rows, int64_t replica, int64_t n) {
  const int64_t each = rows / n, more = rows % n;
  const int64_t begin = replica * each + std::min(replica, more);
  return {begin, begin + each + (replica < more ? 1 : 0)};
}

int64_t rows_in(const std::vector<Tensor>& element) {
  if (element.empty()) throw InvalidArgumentError("input: an element has no components");
  for (const Tensor& component : element) {
    if (component.shape().rank() == 0)
      throw InvalidArgumentError(
          "input: the elements are scalars, so there is no batch to share out; batch the dataset");
    if (component.shape()[0] != element[0].shape()[0])
      throw InvalidArgumentError(fmt::format("input: the components of a batch have {} and {} rows",
                                             element[0].shape()[0], component.shape()[0]));
  }
  return element[0].shape()[0];
}

// Cuts the batches of a dataset that this worker alone reads. A batch has the rows of a step of all
// workers, so a step takes the share of this worker's replicas, and the next step the next rows.
Dataset cut_for_workers(const Dataset& dataset, const Layout& layout) {
  // As many rows as this worker takes of a batch, then as many as each worker after it.
  const auto shares = [n = layout.num_replicas(), local = int64_t(layout.devices.size()),
                       worker = layout.worker_id, workers = layout.num_workers](int64_t rows) {
    std::vector<int64_t> sizes;
    for (int w = worker; w < worker + workers; ++w) {
      const int64_t first = (w % workers) * local;
      sizes.push_back(share_of(rows, first + local - 1, n).second - share_of(rows, first, n).first);
    }
    return sizes;
  };
  if (const auto batch_size = dataset.batch_size()) {
    std::vector<int64_t> sizes = shares(*batch_size);
    // If a batch has fewer rows than workers, the workers take turns. Some would otherwise never
    // read their data.
    if (std::ranges::min(sizes) > 0) sizes.resize(1);
    return detail::rebatched(dataset, std::move(sizes));
  }
  // Batches of unknown size are not joined; taking turns, the workers take one a step.
  return dataset.flat_map([shares](const std::vector<Tensor>& batch) {
    return detail::rebatched(Dataset::from_tensors(batch), shares(rows_in(batch)));
  });
}

void check(const InputOptions& options, const char* operation) {
  const auto fail = [&](const char* type, int value) {
    throw InvalidArgumentError(fmt::format("{}: {} is not an {}", operation, value, type));
  };
  if (const auto policy = options.auto_shard_policy;
      policy < AutoShardPolicy::OFF || policy > AutoShardPolicy::DATA)
    fail("AutoShardPolicy", int(policy));
  if (const auto mode = options.experimental_replication_mode;
      mode != InputReplicationMode::PER_WORKER && mode != InputReplicationMode::PER_REPLICA)
    fail("InputReplicationMode", int(mode));
}

std::shared_ptr<InputSource> source_of(const Layout& layout, std::vector<Dataset> datasets,
                                       bool split) {
  auto source = std::make_shared<InputSource>();
  source->layout = layout;
  source->datasets = std::move(datasets);
  source->split = split;
  return source;
}

}  // namespace

std::shared_ptr<const InputSource> global_batches(const Layout& layout, const Dataset& dataset) {
  constexpr const char* instead =
      "use make_input_fn_iterator, which leaves the batches to you, or "
      "experimental_distribute_dataset";
  if (!dataset.ends_with_batch())
    throw InvalidArgumentError(fmt::format(
        "make_dataset_iterator: the dataset's last step must be batch (or prefetch after it); {}",
        instead));
  const int64_t batch = dataset.batch_size().value_or(0);
  if (batch % layout.num_replicas() != 0)
    throw InvalidArgumentError(fmt::format(
        "make_dataset_iterator: the global batch size {} does not divide by the {} replicas; {}",
        batch, layout.num_replicas(), instead));
  return source_of(layout, {dataset}, true);
}

std::shared_ptr<const InputSource> shared_out(const Layout& layout, const Dataset& dataset,
                                              const InputOptions& options) {
  check(options, "experimental_distribute_dataset");
  if (options.experimental_replication_mode != InputReplicationMode::PER_WORKER)
    throw UnimplementedError(
        "experimental_distribute_dataset: PER_REPLICA needs a pipeline per replica; use "
        "distribute_datasets_from_function");
  Layout mine = layout;
  Dataset data = dataset;
  if (options.auto_shard_policy == AutoShardPolicy::OFF) {
    mine.num_workers = 1;  // this worker's data is for its own replicas
    mine.worker_id = 0;
  } else if (options.auto_shard_policy == AutoShardPolicy::FILE) {
    std::optional<Dataset> sharded =
        dataset.with_files_sharded(layout.num_workers, layout.worker_id);
    if (!sharded)
      throw NotFoundError(
          "experimental_distribute_dataset: the policy FILE needs a dataset that reads files, and "
          "this one reads none; "
          "use DATA or OFF");
    data = *sharded;
    mine.num_workers = 1;
    mine.worker_id = 0;
  }
  if (layout.new_group) data = cut_for_workers(data, layout);
  // For one replica there is nothing to split, so its elements may be anything.
  return source_of(mine, {data}, layout.num_replicas() > 1);
}

std::shared_ptr<const InputSource> from_function(const Layout& layout, const InputFn& input_fn,
                                                 const InputOptions& options) {
  if (!input_fn) throw InvalidArgumentError("input: the input function is empty");
  check(options, "distribute_datasets_from_function");
  const bool per_replica =
      options.experimental_replication_mode == InputReplicationMode::PER_REPLICA;
  const int pipelines = per_replica ? int(layout.devices.size()) : 1;
  std::vector<Dataset> datasets;
  for (int i = 0; i < pipelines; ++i)
    datasets.push_back(input_fn(InputContext(
        layout.num_workers * pipelines, layout.worker_id * pipelines + i, layout.num_replicas())));
  const bool full = std::ranges::all_of(datasets, [](const Dataset& dataset) {
    return detail::DatasetNode::of(dataset)->elements_alike();
  });
  const auto source = source_of(layout, std::move(datasets), false);
  source->drop_leftover = full && layout.num_workers == 1;
  return source;
}

namespace {

// What there is for one step.
struct Supply {
  bool any;  // for some replica
  bool all;  // for every one
};

// Shapes and dtypes as numbers, and back as tensors without rows.
std::vector<int64_t> recipe_of(const std::vector<Tensor>& element) {
  std::vector<int64_t> recipe;
  for (const Tensor& t : element) {
    recipe.insert(recipe.end(), {int64_t(t.dtype()), int64_t(t.shape().rank())});
    recipe.insert(recipe.end(), t.shape().begin(), t.shape().end());
  }
  return recipe;
}
std::vector<Tensor> without_rows(std::span<const int64_t> recipe) {
  std::vector<Tensor> element;
  while (!recipe.empty()) {
    const auto dtype = DType(recipe[0]);
    const auto rank = size_t(recipe[1]);
    std::vector<int64_t> extents(recipe.begin() + 2, recipe.begin() + 2 + int64_t(rank));
    if (rank > 0) extents[0] = 0;
    element.push_back(Tensor::zeros(Shape(extents), dtype));
    recipe = recipe.subspan(2 + rank);
  }
  return element;
}

// All workers learn what there is for any of them; one that never had any data learns its shapes.
// If one has failed, all fail.
Supply of_all_workers(const Group& group, const CommunicationOptions& options, const Supply& mine,
                      std::vector<Tensor>& last, const std::exception_ptr& error) {
  constexpr int64_t kAny = 1, kAll = 2, kIgnorant = 4, kFailed = 8;
  const std::vector<int64_t> told{(mine.any ? kAny : 0) | (mine.all ? kAll : 0) |
                                  (last.empty() ? kIgnorant : 0) | (error ? kFailed : 0)};
  std::vector<int64_t> heard(static_cast<size_t>(group.size()));
  group.all_gather(told, heard, options);
  Supply supply{.any = false, .all = true};
  bool ignorant = false;
  int informed = -1, failed = -1;  // the first that has data, and the first that failed
  for (size_t r = 0; r < heard.size(); ++r) {
    supply.any |= (heard[r] & kAny) != 0;
    supply.all &= (heard[r] & kAll) != 0;
    ignorant |= (heard[r] & kIgnorant) != 0;
    if (informed < 0 && (heard[r] & kAny)) informed = int(r);
    if (failed < 0 && (heard[r] & kFailed)) failed = int(r);
  }
  const auto shared = [&](auto numbers, int root) {
    std::vector<int64_t> length{int64_t(numbers.size())};
    group.broadcast(length, root, options);
    numbers.resize(size_t(length[0]));
    group.broadcast(numbers, root, options);
    return numbers;
  };
  if (failed >= 0) {
    std::vector<uint8_t> text;
    if (error) try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        const std::string_view what = e.what();
        text.assign(what.begin(), what.end());
      } catch (...) {
      }
    text = shared(std::move(text), failed);
    if (error) std::rethrow_exception(error);
    throw AbortedError(fmt::format("get_next: the input of worker {} failed: {}", failed,
                                   std::string(text.begin(), text.end())));
  }
  if (!supply.any || !ignorant) return supply;
  const std::vector<int64_t> recipe = shared(recipe_of(last), informed);
  if (last.empty()) last = without_rows(recipe);
  return supply;
}

}  // namespace

}  // namespace input

struct InputIterator::Run {
  explicit Run(const input::Layout& layout) {
    for (const std::string& name : layout.devices) devices.push_back(&device::find(name, "input"));
  }

  std::vector<Device*> devices;  // of the local replicas
  std::vector<DatasetIterator> iterators;
  std::vector<Tensor> last;  // an element as it was, for the shapes of empty ones
  bool ended = false;
};

InputIterator::InputIterator(std::shared_ptr<const InputSource> source)
    : source_(std::move(source)) {
  if (const auto& new_group = source_->layout.new_group)
    group_ = std::make_unique<Group>(new_group());
}
InputIterator::~InputIterator() = default;
InputIterator::InputIterator(InputIterator&&) noexcept = default;
InputIterator& InputIterator::operator=(InputIterator&&) noexcept = default;

InputIterator DistributedDataset::make_iterator() const {
  InputIterator iterator(source_);
  iterator.initialize();
  return iterator;
}

void InputIterator::initialize() {
  auto run = std::make_unique<Run>(source_->layout);
  for (const Dataset& dataset : source_->datasets)
    run->iterators.push_back(dataset.make_iterator());
  run_ = std::move(run);
}

DistributedElement InputIterator::get_next() {
  std::optional<DistributedElement> element = get_next_as_optional();
  if (!element)
    throw OutOfRangeError("get_next: the input is at its end; initialize starts it over");
  return *std::move(element);
}

std::optional<DistributedElement> InputIterator::get_next_as_optional() {
  if (base::local_replica_id() >= 0)
    throw FailedPreconditionError(
        "get_next belongs to cross-replica context and was called inside a replica function; pass "
        "the element to run");
  if (!run_)
    throw FailedPreconditionError(
        "get_next: the iterator has not been started; call initialize first");
  if (run_->ended) return {};
  const observe::Span span("get_next");
  const input::Layout& layout = source_->layout;
  const auto local = layout.devices.size();
  const std::vector<Device*>& devices = run_->devices;
  std::vector<std::vector<Tensor>> parts(local);  // by replica
  input::Supply supply{.any = false, .all = true};
  std::exception_ptr error;
  try {
    if (source_->split) {
      const std::optional<std::vector<Tensor>> batch = run_->iterators[0].next();
      supply = {.any = batch.has_value(), .all = batch.has_value()};
      const int64_t rows = batch ? input::rows_in(*batch) : 0;
      for (size_t r = 0; r < local && batch; ++r) {
        const auto [begin, end] = input::share_of(
            rows, layout.worker_id * int64_t(local) + int64_t(r), layout.num_replicas());
        for (const Tensor& component : *batch)
          parts[r].push_back(input::rows_of(component, begin, end, *devices[r]));
      }
      if (batch && group_) run_->last = *batch;
    } else {
      for (size_t r = 0; r < local; ++r) {
        std::optional<std::vector<Tensor>> element =
            run_->iterators[r % run_->iterators.size()].next();
        if (!element) {
          supply.all = false;
          continue;
        }
        supply.any = true;
        run_->last = *element;
        for (const Tensor& component : *element)
          parts[r].push_back(input::moved_to(component, *devices[r]));
      }
    }
  } catch (...) {
    if (!group_) throw;
    error = std::current_exception();
  }
  if (group_)
    supply = input::of_all_workers(*group_, layout.communication, supply, run_->last, error);
  // Replicas without data get no rows. If elements have no rows, or all have as many, what is left
  // over is dropped.
  const bool batched =
      !source_->drop_leftover &&
      std::ranges::all_of(run_->last, [](const Tensor& t) { return t.shape().rank() > 0; });
  if (!supply.any || (!supply.all && !batched)) {
    run_->ended = true;
    return {};
  }
  for (size_t r = 0; r < local; ++r)
    if (parts[r].empty())
      for (const Tensor& component : run_->last)
        parts[r].push_back(input::rows_of(component, 0, 0, *devices[r]));

  DistributedElement element;
  for (size_t c = 0; c < parts[0].size(); ++c) {
    std::vector<Tensor> component;
    for (size_t r = 0; r < local; ++r) {
      if (parts[r].size() != parts[0].size())
        throw InvalidArgumentError(fmt::format("input: elements have {} and {} components",
                                               parts[0].size(), parts[r].size()));
      component.push_back(parts[r][c]);
    }
    element.emplace_back(std::move(component));
  }
  return element;
}

bool InputIterator::has_own_data() const { return group_ != nullptr; }

std::string InputIterator::save() {
  if (!run_)
    throw FailedPreconditionError("save: the iterator has not been started; call initialize first");
  std::string state;
  for (DatasetIterator& iterator : run_->iterators) {
    const std::string part = iterator.save();
    state += fmt::format("{}:", part.size()) + part;
  }
  return state;
}

void InputIterator::restore(const std::string& state) {
  auto run = std::make_unique<Run>(source_->layout);
  std::string_view rest = state;
  const auto damaged = [] {
    return DataLossError("restore: the state is damaged, or of another input");
  };
  for (const Dataset& dataset : source_->datasets) {
    const size_t colon = rest.find(':');
    size_t size = 0;
    if (colon == std::string_view::npos || colon == 0 || colon > 18) throw damaged();
    for (const char c : rest.substr(0, colon)) {
      if (c < '0' || c > '9') throw damaged();
      size = size * 10 + size_t(c - '0');
    }
    rest.remove_prefix(colon + 1);
    if (size > rest.size()) throw damaged();
    run->iterators.push_back(dataset.make_iterator(std::string(rest.substr(0, size))));
    rest.remove_prefix(size);
  }
  if (!rest.empty()) throw damaged();
  run_ = std::move(run);
}

}  // namespace tutti
