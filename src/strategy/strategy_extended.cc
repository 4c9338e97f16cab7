// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/collective_all_reduce.h>
#include <tutti/error.h>
#include <tutti/strategy.h>

#include <algorithm>

#include "base/reduce_op.h"
#include "strategy/context.h"
#include "strategy/replica_group.h"
#include "strategy/workers.h"

namespace tutti {

StrategyExtended::StrategyExtended(Strategy& strategy, std::vector<std::string> devices,
                                   std::shared_ptr<CrossDeviceOps> ops,
                                   const CommunicationOptions& options)
    : strategy_(&strategy),
      devices_(std::move(devices)),
      ops_(std::move(ops)),
      options_(options),
      workers_(std::make_shared<detail::Workers>()),
      group_(
          std::make_unique<detail::ReplicaGroup>(strategy, devices_, 0, num_replicas_in_sync())) {}

StrategyExtended::~StrategyExtended() = default;

std::vector<int> StrategyExtended::replica_ids() const {
  std::vector<int> ids;
  for (int i = 0; i < int(devices_.size()); ++i)
    ids.push_back(worker_id_ * int(devices_.size()) + i);
  return ids;
}

void StrategyExtended::join(std::shared_ptr<detail::Workers> workers) {
  workers->agree("CollectiveAllReduceStrategy", fmt::format("{} devices", devices_.size()));
  ops_ = std::make_shared<CollectiveAllReduce>(devices_, workers->group());
  num_workers_ = workers->size();
  worker_id_ = workers->rank();
  workers_ = std::move(workers);
  group_ = std::make_unique<detail::ReplicaGroup>(*strategy_, devices_, replica_ids()[0],
                                                  num_replicas_in_sync());
}

namespace {

// The cross-device operations of a strategy that has left its job.
class NoOps : public CrossDeviceOps {
 public:
  explicit NoOps(std::shared_ptr<detail::Workers> workers) : workers_(std::move(workers)) {}

 protected:
  [[noreturn]] void fail() const {
    (void)workers_->group();  // which throws
    throw InternalError("the job was not left");
  }
  Mirrored<Value> reduce_implementation(ReduceOp, const PerReplica<Value>&, const Destinations&,
                                        const CommunicationOptions&) override {
    fail();
  }
  Mirrored<Tensor> gather_implementation(const PerReplica<Tensor>&, const Destinations&, size_t,
                                         const CommunicationOptions&) override {
    fail();
  }
  bool spans_processes() const override { return true; }

 private:
  std::shared_ptr<detail::Workers> workers_;
};

}  // namespace

void StrategyExtended::leave() {
  workers_->leave();
  ops_ = std::make_shared<NoOps>(workers_);
}

Value StrategyExtended::from_chief(const Value& value) const { return workers_->from_chief(value); }

void StrategyExtended::require_cross_replica(const char* what) const {
  strategy::require_cross_replica(*strategy_, what);
}

void StrategyExtended::check_plain(ReduceOp op) const {
  if (!base::keeps_equal_values(op) && num_replicas_in_sync() != 1)
    throw InvalidArgumentError(
        fmt::format("reduce: a plain value is the same on all {} replicas, and its {} over them is "
                    "not defined; "
                    "pass a PerReplica, or use MEAN",
                    num_replicas_in_sync(), name(op)));
}

std::vector<Mirrored<Value>> StrategyExtended::batch_reduce_to(
    ReduceOpArg op, const std::vector<ValueDestinationPair>& pairs,
    const CommunicationOptions& options) {
  require_cross_replica("batch_reduce_to");
  return ops_->batch_reduce(op, pairs, options_.merge(options));
}

Mirrored<Tensor> StrategyExtended::gather_to(const PerReplica<Tensor>& value,
                                             const Destinations& destinations, int64_t axis,
                                             const CommunicationOptions& options) {
  require_cross_replica("gather");
  return ops_->gather(value, destinations, axis, options_.merge(options));
}

void StrategyExtended::run_replicas(const std::function<void(size_t)>& fn) {
  if (strategy::context().replica || strategy::context().merging)
    throw FailedPreconditionError(
        "run: called inside a replica function, or inside a function given to merge_call; runs do "
        "not nest");
  require_cross_replica("run");
  group_->run(fn);
}

void StrategyExtended::visit_devices(const std::vector<std::string>& devices,
                                     const std::function<void(size_t)>& fn) const {
  const int replica = base::local_replica_id();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (replica >= 0 && size_t(replica) != i) continue;
    const DeviceScope scope(devices[i]);
    fn(i);
  }
}

void StrategyExtended::check_variable(const Variable& variable, const char* what) const {
  if (!variable_created_in_scope(variable))
    throw InvalidArgumentError(
        fmt::format("{}: the variable \"{}\" belongs to another strategy", what, variable.name()));
  const strategy::Context& context = strategy::context();
  if (context.strategy && context.strategy != strategy_)
    throw FailedPreconditionError(fmt::format(
        "{}: this thread is inside another strategy; strategies cannot be mixed", what));
}

bool StrategyExtended::variable_created_in_scope(const Variable& variable) const {
  return &variable.strategy() == strategy_;
}

ColocationScope StrategyExtended::colocate_vars_with(const Variable& variable) {
  require_cross_replica("colocate_vars_with");
  check_variable(variable, "colocate_vars_with");
  return ColocationScope(variable.devices());
}

ColocationScope::ColocationScope(std::vector<std::string> devices)
    : outer_(std::exchange(strategy::context().colocated_on, std::move(devices))) {}

ColocationScope::~ColocationScope() { strategy::context().colocated_on = std::move(outer_); }

}  // namespace tutti
