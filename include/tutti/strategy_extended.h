// SPDX-License-Identifier: Apache-2.0
// StrategyExtended: the methods of a strategy that library code and optimisers need, and most
// programs do not.
#pragma once

#include <tutti/cross_device_ops.h>
#include <tutti/detail/replica_function.h>
#include <tutti/replica_context.h>
#include <tutti/values.h>
#include <tutti/variable.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tutti::detail {
class Workers;
struct WorkersOf;
}  // namespace tutti::detail

#pragma GCC visibility push(default)

namespace tutti {

// A tensor per replica, one that is equal on all, or a plain one.
class DistributedTensor {
 public:
  DistributedTensor(PerReplica<Tensor> value) : value_(std::move(value)) {}
  DistributedTensor(Mirrored<Tensor> value) : value_(std::move(value)) {}
  DistributedTensor(Tensor value) : value_(std::move(value)) {}
  // Which of the three it is.
  const std::variant<PerReplica<Tensor>, Mirrored<Tensor>, Tensor>& get() const { return value_; }

 private:
  std::variant<PerReplica<Tensor>, Mirrored<Tensor>, Tensor> value_;
};

// While it lives, variables made in this thread go to the devices of another one.
class ColocationScope {
 public:
  ~ColocationScope();
  ColocationScope(const ColocationScope&) = delete;

 private:
  friend class StrategyExtended;
  explicit ColocationScope(std::vector<std::string> devices);
  std::vector<std::string> outer_;
};

// Methods belong to cross-replica context unless they say otherwise.
class StrategyExtended {
 public:
  ~StrategyExtended();
  StrategyExtended(const StrategyExtended&) = delete;
  StrategyExtended& operator=(const StrategyExtended&) = delete;

  const std::vector<std::string>& worker_devices() const { return devices_; }     // of this process
  const std::vector<std::string>& parameter_devices() const { return devices_; }  // of variables
  // In the whole job; a process alone is one worker.
  int num_replicas_in_sync() const { return int(devices_.size()) * num_workers_; }
  int num_workers() const { return num_workers_; }
  std::vector<int> replica_ids() const;  // of the replicas of this process, in the whole job
  // Whether this is worker 0, which writes what all share.
  bool is_chief() const { return worker_id_ == 0; }
  bool should_checkpoint() const { return is_chief(); }
  bool should_save_summary() const { return is_chief(); }

  // See CrossDeviceOps::reduce. A plain value on one worker is what every replica holds: its MEAN
  // is itself, and its SUM over more than one replica an InvalidArgumentError, since only the
  // caller knows whether it was meant to be added up N times. On several workers it is what each
  // worker holds, and is reduced over the workers.
  template <class V>
  Mirrored<typename detail::Reducible<V>::Component> reduce_to(
      ReduceOpArg op, const V& value, const Destinations& destinations,
      const CommunicationOptions& options = {}) {
    require_cross_replica("reduce_to");
    if constexpr (detail::IsValue<V>) {
      if (num_workers_ > 1) return ops_->reduce(op, value, destinations, options_.merge(options));
      check_plain(op);
      return ops_->broadcast(value, destinations);
    } else {
      return ops_->reduce(op, value, destinations, options_.merge(options));
    }
  }
  std::vector<Mirrored<Value>> batch_reduce_to(ReduceOpArg op,
                                               const std::vector<ValueDestinationPair>& pairs,
                                               const CommunicationOptions& options = {});
  // See CrossDeviceOps::broadcast and CrossDeviceOps::gather.
  template <class V>
  Mirrored<V> broadcast_to(const V& value, const Destinations& destinations) {
    require_cross_replica("broadcast_to");
    return ops_->broadcast(value, destinations);
  }
  Mirrored<Tensor> gather_to(const PerReplica<Tensor>& value, const Destinations& destinations,
                             int64_t axis, const CommunicationOptions& options = {});

  // fn(context, args...) once per replica; see Strategy::run.
  template <class F, class... Args>
  auto call_for_each_replica(F&& fn, const Args&... args) {
    return detail::collect(
        devices_.size(),
        [&]([[maybe_unused]] size_t i) -> decltype(auto) {
          constexpr bool alone =
              std::is_invocable_v<F&, const typename detail::ComponentOf<Args>::type&...>;
          constexpr bool with_context =
              std::is_invocable_v<F&, ReplicaContext&,
                                  const typename detail::ComponentOf<Args>::type&...>;
          static_assert(alone || with_context,
                        "run: the function must take the arguments after it, a distributed one by "
                        "its component, and may take a ReplicaContext& before them");
          if constexpr (with_context)
            return std::invoke(fn, get_replica_context(),
                               detail::ComponentOf<Args>::of(args, i)...);
          else if constexpr (alone)
            return std::invoke(fn, detail::ComponentOf<Args>::of(args, i)...);
        },
        [&](const std::function<void(size_t)>& call) { run_replicas(call); });
  }

  // fn(component, args...) for every component of `variable`, on its device; distributed arguments
  // are split. The components may be changed in place. Inside a replica function: for that
  // replica's component only.
  template <class F, class... Args>
  auto update(const Variable& variable, F&& fn, const Args&... args) {
    check_variable(variable, "update");
    return detail::collect(
        variable.devices().size(),
        [&]([[maybe_unused]] size_t i) -> decltype(auto) {
          return std::invoke(fn, variable.component(i), detail::ComponentOf<Args>::of(args, i)...);
        },
        [&](const std::function<void(size_t)>& call) { visit_devices(variable.devices(), call); });
  }
  // fn(args...) once per device of `devices`, in its scope.
  template <class F, class... Args>
  auto update_non_slot(const std::vector<std::string>& devices, F&& fn, const Args&... args) {
    require_cross_replica("update_non_slot");
    return detail::collect(
        devices.size(),
        [&]([[maybe_unused]] size_t i) -> decltype(auto) {
          return std::invoke(fn, detail::ComponentOf<Args>::of(args, i)...);
        },
        [&](const std::function<void(size_t)>& call) { visit_devices(devices, call); });
  }
  // All of this process.
  const std::vector<std::string>& non_slot_devices() const { return devices_; }

  // The variable that `component` is a part of, if any.
  std::optional<Variable> value_container(const Tensor& component) const;
  bool variable_created_in_scope(const Variable& variable) const;  // is it this strategy's?
  // InvalidArgumentError if `variable` is of another strategy.
  [[nodiscard]] ColocationScope colocate_vars_with(const Variable& variable);
  // Synchronised on read: the aggregate; else the local copy.
  Tensor read_var(const Variable& variable) const { return variable.read_value(); }

  // What the strategy reduces and broadcasts with. Lives as long as the strategy.
  CrossDeviceOps& cross_device_ops() { return *ops_; }

 private:
  friend class Strategy;
  friend class CollectiveAllReduceStrategy;
  friend struct detail::WorkersOf;
  friend class Variable;
  friend class ReplicaContext;
  friend class detail::ReplicaGroup;

  StrategyExtended(Strategy& strategy, std::vector<std::string> devices,
                   std::shared_ptr<CrossDeviceOps> ops, const CommunicationOptions& options);

  // fn(local replica id) on the thread of each replica.
  void run_replicas(const std::function<void(size_t)>& fn);
  void require_cross_replica(const char* what) const;
  void check_plain(ReduceOp op) const;
  // Takes part in a job.
  void join(std::shared_ptr<detail::Workers> workers);
  void leave();
  Value from_chief(const Value& value) const;  // on all workers; a collective
  void check_variable(const Variable& variable, const char* what) const;
  // fn(index) in the scope of each device; inside a replica function only of its own.
  void visit_devices(const std::vector<std::string>& devices,
                     const std::function<void(size_t)>& fn) const;

  Strategy* strategy_;
  std::vector<std::string> devices_;
  std::shared_ptr<CrossDeviceOps> ops_;
  CommunicationOptions options_;
  int num_workers_ = 1, worker_id_ = 0;
  std::shared_ptr<detail::Workers> workers_;
  std::shared_ptr<std::atomic<int>> variables_ = std::make_shared<std::atomic<int>>(0);
  std::unique_ptr<detail::ReplicaGroup> group_;
};

}  // namespace tutti

#pragma GCC visibility pop
