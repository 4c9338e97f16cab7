// SPDX-License-Identifier: Apache-2.0
// Variable: state that the replicas of a strategy share.
#pragma once

#include <tutti/destinations.h>
#include <tutti/reduce_op.h>
#include <tutti/values.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

class Strategy;
class StrategyExtended;

// When the components of a variable are made equal. Under a strategy AUTO is ON_WRITE, and NONE an
// InvalidArgumentError.
enum class VariableSynchronization { AUTO, NONE, ON_WRITE, ON_READ };
// "AUTO", "NONE", ...
std::string_view name(VariableSynchronization synchronization);

// Options of Variable::create; see Variable for what they change.
struct VariableOptions {
  std::string name = "Variable";  // what files and errors call it
  VariableSynchronization synchronization = VariableSynchronization::AUTO;  // AUTO: ON_WRITE
  VariableAggregation aggregation = VariableAggregation::NONE;  // of what replicas assign
  std::optional<bool> trainable = {};  // unless given: not if synchronised on read
};

// A handle to one component per device of the strategy whose scope it was made in; copies are the
// same variable. Outside of any strategy it has one component.
//
// ON_WRITE, the default: all components are equal. In cross-replica context an assignment goes to
// all of them. In a replica function the replicas meet, their values are aggregated (SUM, MEAN, or
// replica 0's), and all components get the result; without an aggregation only the replica's own
// component is written. ON_READ: replicas read and write their own component, without meeting; in
// cross-replica context reading aggregates them, and an assignment shares the value out so that
// reading gives it back (floats up to rounding).
//
// The strategy must outlive its variables.
//
// Thread safety: replicas may use a variable at the same time, each for itself.
class Variable {
 public:
  // In a replica function it is made once for all replicas, which must all come, and ask for the
  // same. InvalidArgumentError: synchronization NONE; MEAN of integers or bools.
  static Variable create(const Tensor& initial_value, const VariableOptions& options = {});

  // As it was made; none of it changes. References are good as long as any handle is.
  const std::string& name() const;
  DType dtype() const;
  const Shape& shape() const;
  bool trainable() const;
  VariableSynchronization synchronization() const;  // ON_WRITE or ON_READ
  VariableAggregation aggregation() const;
  Strategy& strategy() const;

  std::vector<std::string> devices() const;  // the canonical name of each component's
  size_t size() const;                       // number of components
  const Tensor& component(size_t i) const;   // the memory itself; OutOfRangeError past the last

  // A copy of the value: in a replica function of its own component; else of the one on the current
  // device, or the first. ON_READ variables aggregate in cross-replica context; without an
  // aggregation that is an InvalidArgumentError.
  Tensor read_value() const;

  // `value` has the variable's dtype and shape, or is a Mirrored with a component for each of its
  // own, or a PerReplica: as if each replica of this process assigned its component.
  void assign(const Tensor& value) const;
  void assign_add(const Tensor& value) const;
  void assign_sub(const Tensor& value) const;
  void assign(const Mirrored<Tensor>& value) const;
  void assign_add(const Mirrored<Tensor>& value) const;
  void assign_sub(const Mirrored<Tensor>& value) const;
  void assign(const PerReplica<Tensor>& value) const;
  void assign_add(const PerReplica<Tensor>& value) const;
  void assign_sub(const PerReplica<Tensor>& value) const;
  void assign(const Variable& value) const { assign(value.read_value()); }

  // The rows that `slices` name, one after another. UnimplementedError for ON_READ variables, and
  // for min, max and update with SUM or MEAN. InvalidArgumentError if an index lies outside.
  void scatter_add(const IndexedSlices& slices) const;
  void scatter_sub(const IndexedSlices& slices) const;
  void scatter_mul(const IndexedSlices& slices) const;
  void scatter_div(const IndexedSlices& slices) const;
  void scatter_min(const IndexedSlices& slices) const;
  void scatter_max(const IndexedSlices& slices) const;
  void scatter_update(const IndexedSlices& slices) const;

  // A new variable with the same strategy, devices, options and values.
  Variable clone() const;

  // As a destination a variable says where, and is not written.
  operator Destinations() const;
  friend bool operator==(const Variable& a, const Variable& b) { return a.impl_ == b.impl_; }

 private:
  friend class StrategyExtended;
  struct Impl;
  enum class Update { assign, add, sub, mul, div, min, max };

  explicit Variable(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  static Variable make(const Tensor& initial_value, const VariableOptions& options,
                       StrategyExtended& extended);
  // Throws what is wrong with `value`.
  void check(const char* what, Update update, const Value& value) const;
  void write(const char* what, Update update, const Value& value) const;
  void write(const char* what, Update update, const Mirrored<Tensor>& value) const;
  void write(const char* what, Update update, const PerReplica<Tensor>& value) const;
  void write_in_replica(const char* what, Update update, const Value& value) const;
  // One value from each replica of this process, combined.
  void write_aggregate(Update update, const PerReplica<Value>& values) const;
  void apply(Update update, const Value& value, size_t component) const;

  std::shared_ptr<Impl> impl_;
};

}  // namespace tutti

#pragma GCC visibility pop
