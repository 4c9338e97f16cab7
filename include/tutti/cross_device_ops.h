// SPDX-License-Identifier: Apache-2.0
// Reduction and broadcast across the devices of a process: the base class, and the algorithms that
// come with Tutti.
//
// Most programs use the methods of a strategy instead and only choose an algorithm here.
#pragma once

#include <tutti/destinations.h>
#include <tutti/detail/reducible.h>
#include <tutti/reduce_op.h>
#include <tutti/values.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// What is reduced in a batch, and where its result goes.
using ValueDestinationPair = std::pair<PerReplica<Value>, Destinations>;

// Base class of the algorithms. Callers use reduce, batch_reduce, broadcast and gather, which check
// everything before a byte moves; an algorithm overrides the *_implementation methods, and only the
// first of them must be.
//
// Results are one component per destination device, in the order of the destinations. They never
// share memory with the inputs, which are never written. The same inputs give the same bits with
// every algorithm and every option, except for sums by NCCL and by an accumulation_fn.
//
// Errors: InvalidArgumentError for a value without replicas, for components that differ in shape or
// dtype, for an operation that the dtype lacks, and for options out of range;
// FailedPreconditionError inside a replica function: use ReplicaContext::all_reduce and merge_call
// there.
//
// Thread safety: all methods may be called from several threads at once.
class CrossDeviceOps {
 public:
  virtual ~CrossDeviceOps();

  // Combines the components of `value` and puts the result on every destination. To all-reduce,
  // pass the value as the destinations too. A single Tensor counts as one replica. A Mirrored is
  // its own MEAN, MIN and MAX; its SUM and PROD are an InvalidArgumentError. IndexedSlices have SUM
  // and MEAN: they are concatenated in replica order, or made dense if another component is.
  template <class V>
  Mirrored<typename detail::Reducible<V>::Component> reduce(
      ReduceOp op, const V& value, const Destinations& destinations,
      const CommunicationOptions& options = {}) {
    return detail::as<typename detail::Reducible<V>::Component>(
        reduce_value(op, value, destinations, options));
  }

  // One result per pair, in their order. Pairs may differ in dtype, shape and destinations.
  std::vector<Mirrored<Value>> batch_reduce(ReduceOp op,
                                            const std::vector<ValueDestinationPair>& pairs,
                                            const CommunicationOptions& options = {});

  // A copy of `tensor` on every destination.
  template <class V>
    requires detail::IsValue<V>
  Mirrored<V> broadcast(const V& tensor, const Destinations& destinations) {
    return detail::as<V>(broadcast_value(tensor, destinations));
  }

  // The components one after another along `axis`, in replica order, on every destination. Their
  // other extents must agree. UnimplementedError for IndexedSlices.
  template <class V>
  Mirrored<Tensor> gather(const V& value, const Destinations& destinations, int64_t axis,
                          const CommunicationOptions& options = {}) {
    return gather_value(PerReplica<Value>(value), destinations, axis, options);
  }

  // SUM or MEAN, as a variable names them.
  template <class V>
  auto reduce(VariableAggregation aggregation, const V& value, const Destinations& destinations,
              const CommunicationOptions& options = {}) {
    return reduce(reduce_op(aggregation), value, destinations, options);
  }
  std::vector<Mirrored<Value>> batch_reduce(VariableAggregation aggregation,
                                            const std::vector<ValueDestinationPair>& pairs,
                                            const CommunicationOptions& options = {}) {
    return batch_reduce(reduce_op(aggregation), pairs, options);
  }

 protected:
  // What arrives here has been checked. A result must have one component per destination, on that
  // destination.
  virtual Mirrored<Value> reduce_implementation(ReduceOp op, const PerReplica<Value>& value,
                                                const Destinations& destinations,
                                                const CommunicationOptions& options) = 0;
  // Unless overridden: one reduce_implementation per pair.
  virtual std::vector<Mirrored<Value>> batch_reduce_implementation(
      ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
      const CommunicationOptions& options);
  // Unless overridden: plain copies, to every destination.
  virtual Mirrored<Value> broadcast_implementation(const Value& tensor,
                                                   const Destinations& destinations);
  virtual Mirrored<Tensor> gather_implementation(const PerReplica<Tensor>& value,
                                                 const Destinations& destinations, size_t axis,
                                                 const CommunicationOptions& options);

  // Whether components of other processes take part. If so, a value with one component still has to
  // be reduced.
  virtual bool spans_processes() const { return false; }
  // Used for each option that a call leaves at its default.
  virtual CommunicationOptions default_options() const { return {}; }

 private:
  Mirrored<Value> reduce_value(ReduceOp op, const PerReplica<Value>& value,
                               const Destinations& destinations,
                               const CommunicationOptions& options);
  Mirrored<Value> reduce_value(ReduceOp op, const Mirrored<Value>& value,
                               const Destinations& destinations,
                               const CommunicationOptions& options);
  Mirrored<Value> broadcast_value(const Value& tensor, const Destinations& destinations);
  Mirrored<Tensor> gather_value(const PerReplica<Value>& value, const Destinations& destinations,
                                int64_t axis, const CommunicationOptions& options);
};

// Combines the values on one device, then copies the result to the destinations.
class ReductionToOneDevice : public CrossDeviceOps {
 public:
  // Takes the components, in replica order and all on one device, and returns their sum as a tensor
  // of the same shape and dtype. Must not write to them.
  using AccumulationFn = std::function<Tensor(const std::vector<Tensor>&)>;

  // An empty `reduce_to_device` is the first destination. An `accumulation_fn` replaces the sum in
  // SUM and MEAN of dense values; without one, it is Tutti's own.
  explicit ReductionToOneDevice(std::string_view reduce_to_device = {},
                                AccumulationFn accumulation_fn = {});

 protected:
  Mirrored<Value> reduce_implementation(ReduceOp op, const PerReplica<Value>& value,
                                        const Destinations& destinations,
                                        const CommunicationOptions& options) override;
  std::vector<Mirrored<Value>> batch_reduce_implementation(
      ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
      const CommunicationOptions& options) override;

 private:
  std::string reduce_to_device_;
  AccumulationFn accumulation_fn_;
};

// Reduction by all-reduce. A batch is repacked before it travels: into `num_packs` packs if that
// is not zero, else tensors smaller than `agg_small_grads_max_bytes` into groups of at most
// `agg_small_grads_max_group`. Devices that share memory need no packing, and none is done.
class AllReduceCrossDeviceOps : public CrossDeviceOps {
 public:
  // `all_reduce_alg` is "nccl" or "hierarchical_copy". "nccl" on anything but distinct GPUs falls
  // back and says so once in the log. InvalidArgumentError for another name and for negative
  // numbers.
  explicit AllReduceCrossDeviceOps(std::string_view all_reduce_alg = "nccl", int num_packs = 1,
                                   int64_t agg_small_grads_max_bytes = 0,
                                   int agg_small_grads_max_group = 10);

 protected:
  Mirrored<Value> reduce_implementation(ReduceOp op, const PerReplica<Value>& value,
                                        const Destinations& destinations,
                                        const CommunicationOptions& options) override;
  std::vector<Mirrored<Value>> batch_reduce_implementation(
      ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
      const CommunicationOptions& options) override;

 private:
  std::string all_reduce_alg_;
  int num_packs_;
  int64_t agg_small_grads_max_bytes_;
  int agg_small_grads_max_group_;
};

// All-reduce for machines whose GPUs form two linked halves: each half sums, the halves meet, and
// the result goes back.
class HierarchicalCopyAllReduce : public AllReduceCrossDeviceOps {
 public:
  explicit HierarchicalCopyAllReduce(int num_packs = 1);
};

// All-reduce by NCCL.
class NcclAllReduce : public AllReduceCrossDeviceOps {
 public:
  explicit NcclAllReduce(int num_packs = 1);
};

// The algorithm that suits these devices best. InvalidArgumentError for an empty list.
std::unique_ptr<CrossDeviceOps> choose_the_best(const std::vector<std::string>& devices);

}  // namespace tutti

#pragma GCC visibility pop
