// SPDX-License-Identifier: Apache-2.0
// ReplicaContext: what a replica function may do with the other replicas.
#pragma once

#include <tutti/detail/meeting.h>
#include <tutti/reduce_op.h>
#include <tutti/values.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tutti::detail {
class ReplicaGroup;
}

#pragma GCC visibility push(default)

namespace tutti {

class Strategy;

// Options of one all_reduce.
struct AllReduceOptions {
  // With MEAN: the result is the sum of weight * value over the sum of the weights. A replica of
  // weight 0 contributes nothing, whatever its value. Every replica gives one, or none does. Not
  // negative; not all 0.
  std::optional<double> weight = {};
  CommunicationOptions communication = {};  // what they set goes before the strategy's
};

// Handed to a replica function; good until it returns, on its own thread only.
//
// all_reduce, all_gather and merge_call meet the other replicas: every replica must make the same
// calls in the same order. They never hang: if a replica throws, returns, asks for something else
// or does not come in time, every other one gets an error that names it (AbortedError,
// FailedPreconditionError, InvalidArgumentError, DeadlineExceededError).
class ReplicaContext {
 public:
  int replica_id_in_sync_group() const { return replica_id_; }  // over all workers
  int local_replica_id() const { return local_id_; }            // in this process
  int num_replicas_in_sync() const { return num_replicas_; }    // over all workers
  const std::string& device() const { return device_; }         // the canonical name
  // The one that runs this replica.
  Strategy& strategy() const { return *strategy_; }

  // This replica's copy of what all replicas' values combine to. A list is reduced as one batch.
  Tensor all_reduce(ReduceOpArg op, const Tensor& value, const AllReduceOptions& options = {});
  IndexedSlices all_reduce(ReduceOpArg op, const IndexedSlices& value,
                           const AllReduceOptions& options = {});
  std::vector<Tensor> all_reduce(ReduceOpArg op, const std::vector<Tensor>& values,
                                 const AllReduceOptions& options = {});
  std::vector<Value> all_reduce(ReduceOpArg op, const std::vector<Value>& values,
                                const AllReduceOptions& options = {});
  // A number. The MEAN of integers is an InvalidArgumentError: make them doubles.
  template <Element T>
  T all_reduce(ReduceOpArg op, T value, const AllReduceOptions& options = {}) {
    return all_reduce(op, Tensor::scalar(value, device_), options).template item<T>();
  }

  // The values of all replicas, one after another along `axis`.
  Tensor all_gather(const Tensor& value, int64_t axis, const CommunicationOptions& options = {});
  std::vector<Tensor> all_gather(const std::vector<Tensor>& values, int64_t axis,
                                 const CommunicationOptions& options = {});

  // Calls fn(strategy, args) once for all replicas, in cross-replica context, when all of them have
  // come; each argument is then a PerReplica with what every replica passed. A PerReplica or
  // Mirrored result is handed out component by component; any other is copied to every replica. The
  // function is replica 0's; all must be of one type.
  template <class F, class... Args>
  auto merge_call(F&& fn, const Args&... args) {
    constexpr bool fits = std::is_invocable_v<F&, Strategy&, const PerReplica<Args>&...>;
    static_assert(
        fits, "merge_call: the function must take a Strategy& and a PerReplica of each argument");
    if constexpr (fits) {
      detail::Merge<F, Args...> merge(fn, args...);
      meet(merge);
      return merge.take();
    }
  }

 private:
  friend class detail::ReplicaGroup;
  friend class Variable;

  ReplicaContext(Strategy& strategy, detail::ReplicaGroup& group, int local_id, int replica_id,
                 int num_replicas, std::string device)
      : strategy_(&strategy),
        group_(&group),
        local_id_(local_id),
        replica_id_(replica_id),
        num_replicas_(num_replicas),
        device_(std::move(device)) {}

  // Waits for the other replicas, and has the call made once for all.
  void meet(detail::Meeting& part);

  Strategy* strategy_;
  detail::ReplicaGroup* group_;
  int local_id_, replica_id_, num_replicas_;
  std::string device_;
};

// The context of the replica function that this thread is in; outside of any strategy, that of the
// default strategy's only replica. FailedPreconditionError in cross-replica context.
ReplicaContext& get_replica_context();

}  // namespace tutti

#pragma GCC visibility pop
