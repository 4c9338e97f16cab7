// SPDX-License-Identifier: Apache-2.0
// Strategy: the replicas of a training step, and how they act as one.
//
// A strategy runs a function once per replica, all at the same time, each on its device. A thread
// is in one of two contexts:
// - in cross-replica context, inside scope() or outside of any replica function, there is one flow
//   of control for all replicas; values that differ between them are PerReplica;
// - in replica context, inside a function given to run(), there is one flow of control per replica;
//   a ReplicaContext says which, and lets replicas communicate.
//
//   MirroredStrategy strategy;
//   PerReplica<Tensor> loss = strategy.run([&](ReplicaContext& ctx, const Tensor& x) {
//     const Tensor gradient = ...;                                  // of this replica's x
//     update(weights, ctx.all_reduce(ReduceOp::MEAN, gradient));    // meets the others
//     return ...;
//   }, batch);
//   Tensor mean = strategy.reduce(ReduceOp::MEAN, loss);            // one value for all
#pragma once

#include <tutti/cross_device_ops.h>
#include <tutti/detail/replica_function.h>
#include <tutti/input.h>
#include <tutti/replica_context.h>
#include <tutti/strategy_extended.h>
#include <tutti/values.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

class Scope;
struct ConfigProto;  // in compat.h

// Options of Strategy::reduce.
struct ReduceOptions {
  // With MEAN: one weight per local replica; the result is the sum of weight * value over the sum
  // of the weights.
  std::vector<double> weights = {};
  // Combine each replica's value along these axes first; see Strategy::reduce. Not together with
  // weights.
  std::vector<int64_t> axes = {};
  CommunicationOptions communication = {};  // what they set goes before the strategy's
};

// Handed to the function of experimental_distribute_values_from_function.
struct ValueContext {
  // Which replica, over all workers, of how many.
  int replica_id_in_sync_group = 0;
  int num_replicas_in_sync = 1;
};

// Base of all strategies. Not copyable. Must outlive its scopes, variables and inputs. Methods
// other than scope may be called from several threads; runs are serialised. All of them belong to
// cross-replica context: inside a replica function, and inside the scope of another strategy, they
// are a FailedPreconditionError.
class Strategy {
 public:
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  [[nodiscard]] Scope scope();  // see Scope; variables made inside are this strategy's

  // fn(context, args...) once per replica, at the same time, on threads that are kept between runs;
  // the context may be left out. Distributed arguments are split: each replica gets its component.
  // Returns what the replicas returned.
  //
  // If a replica throws, the others are stopped in whatever they wait for, and the exception
  // comes out here, as it was thrown, once all replicas have returned; of several, the one of the
  // lowest replica. The strategy stays usable. FailedPreconditionError inside a replica function,
  // and inside a function given to merge_call.
  template <class F, class... Args>
  auto run(F&& fn, const Args&... args) {
    return extended_->call_for_each_replica(std::forward<F>(fn), args...);
  }

  // run, with an element of a distributed input: fn takes its components as arguments, or as one
  // std::vector<Tensor>.
  template <class F>
  auto run(F&& fn, const DistributedElement& element) {
    return run(detail::unpacking(std::forward<F>(fn)), detail::transpose(element));
  }

  // run, with the next element of `input`. OutOfRangeError at the end.
  template <class F>
  auto experimental_run(F&& fn, InputIterator& input) {
    extended_->require_cross_replica("experimental_run");  // before an element is taken
    return run(std::forward<F>(fn), input.get_next());
  }
  // run, for a function without input.
  template <class F>
  auto experimental_run(F&& fn) {
    return run(std::forward<F>(fn));
  }

  // One tensor, on the current device, of what the replicas of all workers hold. With axes, each
  // replica's value is first combined along them: SUM adds up everything, MEAN divides that by the
  // number of elements, so replicas weigh as much as they hold. Only SUM and MEAN have axes.
  // InvalidArgumentError for a MEAN of nothing, and for weights that are negative, too few or all
  // 0.
  Tensor reduce(ReduceOpArg op, const DistributedTensor& value, const ReduceOptions& options = {});
  Tensor reduce(ReduceOpArg op, const DistributedTensor& value, int64_t axis);
  // Of IndexedSlices, and of numbers; both without axes. Integers have no MEAN: make them doubles.
  IndexedSlices reduce(ReduceOpArg op, const PerReplica<IndexedSlices>& value,
                       const ReduceOptions& options = {});
  template <Element T>
  T reduce(ReduceOpArg op, const PerReplica<T>& value, const ReduceOptions& options = {}) {
    return reduce(op, value.map([](const T& x) { return Tensor::scalar(x); }), options)
        .template item<T>();
  }

  // The replicas' values one after another along `axis`, on the current device.
  Tensor gather(const DistributedTensor& value, int64_t axis);

  // The components of this process's replicas; a plain value is one.
  template <class T>
  std::vector<T> experimental_local_results(const PerReplica<T>& value) const {
    return std::vector<T>(value.begin(), value.end());
  }
  template <class T>
  std::vector<T> experimental_local_results(const Mirrored<T>& value) const {
    return std::vector<T>(value.begin(), value.end());
  }
  template <class T>
  std::vector<T> experimental_local_results(const T& value) const {
    return {value};
  }

  // fn(ValueContext) once per local replica, here and now.
  template <class F>
  auto experimental_distribute_values_from_function(F&& fn) {
    extended_->require_cross_replica("experimental_distribute_values_from_function");
    std::vector<std::decay_t<std::invoke_result_t<F&, const ValueContext&>>> parts;
    for (const int id : extended_->replica_ids())
      parts.push_back(fn(ValueContext{id, num_replicas_in_sync()}));
    return PerReplica<typename decltype(parts)::value_type>(std::move(parts));
  }

  // Input. See input.h for what they return. A dataset is batched by the global batch size; each
  // replica gets its part of every batch, in replica order. InvalidArgumentError if the batch
  // does not divide by the number of replicas, or the last step is not a batch.
  InputIterator make_dataset_iterator(const Dataset& dataset);
  // One dataset per worker, whose elements go to the replicas one by one. Batched per replica.
  InputIterator make_input_fn_iterator(
      const InputFn& input_fn, InputReplicationMode mode = InputReplicationMode::PER_WORKER);
  // Any batch size: what does not divide is shared out, and a replica without data gets an empty
  // batch. One replica gets the elements as they are, batched or not.
  DistributedDataset experimental_distribute_dataset(const Dataset& dataset,
                                                     const InputOptions& options = {});
  DistributedDataset distribute_datasets_from_function(const InputFn& input_fn,
                                                       const InputOptions& options = {});

  // Joins and leaves the job, for strategies over several workers; elsewhere there is nothing to
  // do.
  virtual void experimental_initialize();
  virtual void experimental_finalize();

  // A copy of `config`, changed for use with this strategy. Include compat.h for ConfigProto.
  virtual ConfigProto update_config_proto(const ConfigProto& config) const;

  // Over all workers.
  int num_replicas_in_sync() const { return extended_->num_replicas_in_sync(); }
  // What library code needs. Lives as long as the strategy.
  StrategyExtended& extended() { return *extended_; }
  const StrategyExtended& extended() const { return *extended_; }

 protected:
  // A replica on each of `devices`, which have been checked: not empty, no device twice. `options`
  // are those of calls that do not set their own.
  Strategy(std::vector<std::string> devices, std::shared_ptr<CrossDeviceOps> cross_device_ops,
           const CommunicationOptions& options = {});

 private:
  Tensor reduce_along(ReduceOp op, const DistributedTensor& value, const ReduceOptions& options);

  std::unique_ptr<StrategyExtended> extended_;
};

// While it lives, its strategy is the current one of this thread, in cross-replica context. Scopes
// of one strategy nest; the scope of another is a FailedPreconditionError. To be closed, or
// destroyed, by the thread that made it.
class Scope {
 public:
  ~Scope();  // restores; logs what close() would throw
  Scope(Scope&& other) noexcept;
  Scope& operator=(Scope&&) = delete;

  // Leaves the scope. FailedPreconditionError if a scope that was opened inside (a DeviceScope, or
  // another Scope) still is open; the scope stays open then.
  void close();

 private:
  friend class Strategy;
  explicit Scope(Strategy& strategy);
  struct State;
  std::unique_ptr<State> state_;
};

// Is this thread inside a strategy: in its scope, or in one of its replica functions?
bool has_strategy();
// The strategy this thread is in; a default strategy of one replica outside of any.
Strategy& get_strategy();
bool in_cross_replica_context();  // false outside of any strategy
// Makes `strategy` the current one of this thread without a scope; null takes that back.
// FailedPreconditionError inside a scope.
void experimental_set_strategy(Strategy* strategy);

}  // namespace tutti

#pragma GCC visibility pop
