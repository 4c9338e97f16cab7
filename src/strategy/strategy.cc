// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/compat.h>
#include <tutti/error.h>
#include <tutti/strategy.h>

#include "base/reduce_op.h"
#include "cross_device/weighted.h"
#include "input/input_source.h"
#include "strategy/context.h"
#include "strategy/replica_group.h"
#include "strategy/workers.h"
#include "tensor/axes.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

// A strategy of one replica, for code that runs outside of any: the same program then needs no
// branch.
class DefaultStrategy : public Strategy {
 public:
  DefaultStrategy()
      : Strategy({canonicalize("/cpu:0")}, std::make_shared<ReductionToOneDevice>()) {}
};

}  // namespace

namespace strategy {

Strategy& default_strategy() {
  static DefaultStrategy* const instance = new DefaultStrategy;
  return *instance;
}

ReplicaContext& default_replica_context() {
  // One per thread: outside of a strategy, threads know nothing of each other.
  static thread_local detail::ReplicaGroup group(
      default_strategy(), default_strategy().extended().worker_devices(), 0, 1);
  return group.context(0);
}

}  // namespace strategy

Strategy::Strategy(std::vector<std::string> devices,
                   std::shared_ptr<CrossDeviceOps> cross_device_ops,
                   const CommunicationOptions& options)
    : extended_(
          new StrategyExtended(*this, std::move(devices), std::move(cross_device_ops), options)) {}

Strategy::~Strategy() = default;

Scope Strategy::scope() { return Scope(*this); }

Tensor Strategy::reduce(ReduceOpArg op, const DistributedTensor& value, int64_t axis) {
  return reduce(op, value, ReduceOptions{.axes = {axis}});
}

Tensor Strategy::reduce(ReduceOpArg op, const DistributedTensor& value,
                        const ReduceOptions& options) {
  extended_->require_cross_replica("reduce");
  const auto* const per_replica = std::get_if<PerReplica<Tensor>>(&value.get());
  if (!options.weights.empty() && (!per_replica || !options.axes.empty()))
    throw InvalidArgumentError("reduce: weights go with a PerReplica value and without axes");
  if (!options.axes.empty()) return reduce_along(op, value, options);
  const Destinations here(current_device());
  if (!options.weights.empty())
    return cross_device::weighted_mean(extended_->cross_device_ops(), op, {{*per_replica, here}},
                                       options.weights,
                                       extended_->options_.merge(options.communication))[0][0]
        .tensor();
  return std::visit(
      [&](const auto& v) { return extended_->reduce_to(op, v, here, options.communication)[0]; },
      value.get());
}

IndexedSlices Strategy::reduce(ReduceOpArg op, const PerReplica<IndexedSlices>& value,
                               const ReduceOptions& options) {
  extended_->require_cross_replica("reduce");
  if (!options.axes.empty())
    throw InvalidArgumentError("reduce: IndexedSlices have no axes; make them dense first");
  const Destinations here(current_device());
  if (options.weights.empty())
    return extended_->reduce_to(op, value, here, options.communication)[0];
  return cross_device::weighted_mean(extended_->cross_device_ops(), op, {{value, here}},
                                     options.weights,
                                     extended_->options_.merge(options.communication))[0][0]
      .slices();
}

Tensor Strategy::reduce_along(ReduceOp op, const DistributedTensor& value,
                              const ReduceOptions& options) {
  if (!base::is_sum(op))
    throw InvalidArgumentError(
        fmt::format("reduce: only SUM and MEAN have axes, not {}", name(op)));
  std::vector<Tensor> parts;
  if (const auto* v = std::get_if<PerReplica<Tensor>>(&value.get())) {
    parts.assign(v->begin(), v->end());
  } else {
    // What is the same on all replicas counts once.
    const auto* m = std::get_if<Mirrored<Tensor>>(&value.get());
    if (m || extended_->num_workers() == 1) extended_->check_plain(op);
    parts.push_back(m ? m->get() : std::get<Tensor>(value.get()));
  }
  if (parts.empty()) throw InvalidArgumentError("reduce: the value has no replicas");

  std::vector<Value> sums, counts;
  for (const Tensor& part : parts) {
    if (part.dtype() != parts[0].dtype())
      throw InvalidArgumentError(fmt::format("reduce: replicas hold dtypes {} and {}",
                                             name(parts[0].dtype()), name(part.dtype())));
    try {
      sums.push_back(detail::sum_along(
          part, options.axes,
          base::divides(op) ? detail::IntegerSum::float64 : detail::IntegerSum::wrapping_int64));
      counts.push_back(
          Tensor::scalar<int64_t>(detail::count_along(part, options.axes), part.device()));
    } catch (const InvalidArgumentError& e) {
      throw InvalidArgumentError(fmt::format("reduce: {}", e.what()));
    }
  }
  const Destinations here(current_device());
  std::vector<Mirrored<Value>> results;
  if (std::holds_alternative<Mirrored<Tensor>>(value.get()))  // is there already, on all workers
    for (const Value& part : {sums[0], counts[0]})
      results.push_back(extended_->broadcast_to(part, here));
  else
    results = extended_->batch_reduce_to(
        ReduceOp::SUM, {{PerReplica<Value>(sums), here}, {PerReplica<Value>(counts), here}},
        options.communication);
  const Tensor sum = results[0][0].tensor();
  if (!base::divides(op)) return sum.to(parts[0].dtype());
  const int64_t count = results[1][0].tensor().item<int64_t>();
  if (count == 0)
    throw InvalidArgumentError(
        "reduce: the MEAN of nothing: no replica holds any element along the axes");
  const Tensor mean = sum.to(DType::float64);
  detail::scale(mean, double(count), true);
  return mean.to(result_dtype(op, parts[0].dtype()));
}

Tensor Strategy::gather(const DistributedTensor& value, int64_t axis) {
  extended_->require_cross_replica("gather");
  if (const auto* v = std::get_if<PerReplica<Tensor>>(&value.get()))
    return extended_->gather_to(*v, current_device(), axis)[0];
  const auto* m = std::get_if<Mirrored<Tensor>>(&value.get());
  if (!m && extended_->num_workers() > 1)
    return extended_->gather_to({std::get<Tensor>(value.get())}, current_device(), axis)[0];
  const Tensor& one = m ? m->get() : std::get<Tensor>(value.get());
  try {
    (void)one.shape().axis(axis);
  } catch (const InvalidArgumentError& e) {
    throw InvalidArgumentError(fmt::format("gather: {}", e.what()));
  }
  return one.clone_to(current_device());
}

namespace {

// `own_data`: workers may come to the end of their input at different times.
input::Layout layout_of(const StrategyExtended& extended, bool own_data) {
  input::Layout layout{
      .devices = extended.worker_devices(),
      .num_workers = extended.num_workers(),
      .worker_id = extended.replica_ids()[0] / int(extended.worker_devices().size()),
      .new_group = {},
      .communication = {}};
  if (own_data && layout.num_workers > 1) {
    const std::shared_ptr<const detail::Workers> workers = detail::WorkersOf::shared(extended);
    (void)workers->group();  // which throws if this worker has left
    layout.new_group = [workers] { return workers->new_group(); };
    layout.communication = workers->options();
  }
  return layout;
}

// The function of a user may throw on one worker: then all of them do.
std::shared_ptr<const detail::InputSource> from_function(const StrategyExtended& extended,
                                                         const InputFn& input_fn,
                                                         const InputOptions& options) {
  std::shared_ptr<const detail::InputSource> source;
  detail::WorkersOf::of(extended).on_all(
      [&] { source = input::from_function(layout_of(extended, true), input_fn, options); });
  return source;
}

}  // namespace

InputIterator Strategy::make_dataset_iterator(const Dataset& dataset) {
  extended_->require_cross_replica("make_dataset_iterator");
  return InputIterator(input::global_batches(layout_of(*extended_, false), dataset));
}

InputIterator Strategy::make_input_fn_iterator(const InputFn& input_fn, InputReplicationMode mode) {
  extended_->require_cross_replica("make_input_fn_iterator");
  if (mode != InputReplicationMode::PER_WORKER)
    throw InvalidArgumentError(
        "make_input_fn_iterator: only PER_WORKER is supported as the replication mode");
  return InputIterator(from_function(*extended_, input_fn, {}));
}

DistributedDataset Strategy::experimental_distribute_dataset(const Dataset& dataset,
                                                             const InputOptions& options) {
  extended_->require_cross_replica("experimental_distribute_dataset");
  const bool own_data = options.auto_shard_policy == AutoShardPolicy::OFF ||
                        options.auto_shard_policy == AutoShardPolicy::FILE;
  return DistributedDataset(input::shared_out(layout_of(*extended_, own_data), dataset, options));
}

DistributedDataset Strategy::distribute_datasets_from_function(const InputFn& input_fn,
                                                               const InputOptions& options) {
  extended_->require_cross_replica("distribute_datasets_from_function");
  return DistributedDataset(from_function(*extended_, input_fn, options));
}

void Strategy::experimental_initialize() {
  extended_->require_cross_replica("experimental_initialize");
}
void Strategy::experimental_finalize() {
  extended_->require_cross_replica("experimental_finalize");
}

ConfigProto Strategy::update_config_proto(const ConfigProto& config) const {
  ConfigProto updated = config;
  updated.isolate_session_state = true;
  return updated;
}

}  // namespace tutti
