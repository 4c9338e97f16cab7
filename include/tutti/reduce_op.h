// SPDX-License-Identifier: Apache-2.0
// How values are combined, and how that travels: ReduceOp, VariableAggregation,
// CommunicationOptions.
#pragma once

#include <tutti/dtype.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>

#pragma GCC visibility push(default)

namespace tutti {

// SUM is always the same expression, a balanced binary tree over the replicas in their order, so
// the result depends on the inputs and on nothing else, unless NCCL adds them up (see
// CommunicationImplementation); 16-bit floats are added in 32 bits and rounded once. Integers wrap.
// MEAN divides the sum by the number of replicas; of (u)int8/16 it is float32, of (u)int32/64
// float64. MIN and MAX propagate NaN and order -0 before +0. bool has MIN and MAX only.
enum class ReduceOp { SUM, MEAN, MIN, MAX, PROD };

// The ReduceOp of this name, in any case. InvalidArgumentError if there is none.
ReduceOp reduce_op(std::string_view name);
// "SUM", "MEAN", ... InvalidArgumentError for a value that is not a ReduceOp.
std::string_view name(ReduceOp op);
std::ostream& operator<<(std::ostream& os, ReduceOp op);

// In place of MEAN: the sum of weight * value over the sum of the weights of all ranks, in float64
// and rounded once. A rank of weight 0 contributes nothing, whatever its value. Not negative; not
// all 0.
struct WeightedMean {
  double weight;  // of this rank
};

// An argument that is a ReduceOp or its name. InvalidArgumentError for any other.
class ReduceOpArg {
 public:
  ReduceOpArg(ReduceOp op) : op_(op) { (void)name(op); }
  ReduceOpArg(std::string_view name) : op_(reduce_op(name)) {}
  ReduceOpArg(const char* name) : op_(reduce_op(std::string_view(name))) {}
  operator ReduceOp() const { return op_; }

 private:
  ReduceOp op_;
};

// The element type of a reduction's result. InvalidArgumentError if `op` is not defined for
// `dtype`.
DType result_dtype(ReduceOp op, DType dtype);

// How a variable combines what its replicas assign to it.
enum class VariableAggregation { NONE, SUM, MEAN, ONLY_FIRST_REPLICA };
// "NONE", "SUM", ...
std::string_view name(VariableAggregation aggregation);
std::ostream& operator<<(std::ostream& os, VariableAggregation aggregation);

// SUM and MEAN have a ReduceOp; the others are an InvalidArgumentError.
ReduceOp reduce_op(VariableAggregation aggregation);

// What adds up values on GPUs. AUTO: NCCL, in an order of its own, if every rank has a GPU of its
// own; else Tutti. RING: Tutti, in the order of ReduceOp, through host memory. NCCL: NCCL. Values
// in host memory are always added by Tutti.
enum class CommunicationImplementation { AUTO, RING, NCCL };

// The CommunicationImplementation of this name, in any case.
CommunicationImplementation communication_implementation(std::string_view name);

// Hints for one operation. They change how fast it is, never what its result stands for.
struct CommunicationOptions {
  // Pack tensors until a pack exceeds this many bytes; 0 leaves it to Tutti. Not negative.
  int64_t bytes_per_pack = 0;
  // How long the whole call may wait for others: 0 is no limit, none is the setting TUTTI_TIMEOUT.
  // Not negative.
  std::optional<std::chrono::nanoseconds> timeout = {};
  // Has an effect on GPUs only.
  CommunicationImplementation implementation = CommunicationImplementation::AUTO;
  // Add IndexedSlices up as the tensors they stand for: cheaper if replicas name the same rows.
  // The result has every row once, in ascending order. They need a dense_shape.
  bool sparse_as_dense = false;

  // These options, with every field that `other` sets (to something else than its default) taken
  // from there.
  CommunicationOptions merge(const CommunicationOptions& other) const;
  // InvalidArgumentError if a field is out of range; `what` starts the text.
  void validate(std::string_view what) const;
  friend bool operator==(const CommunicationOptions&, const CommunicationOptions&) = default;
};

}  // namespace tutti

#pragma GCC visibility pop
