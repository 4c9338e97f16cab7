#include <fmt/format.h>
#include <tutti/error.h>
#include <tutti/strategy.h>

#include "base/time_left.h"
#include "cross_device/weighted.h"
#include "strategy/replica_group.h"

namespace tutti {

namespace {

using Clock = std::chrono::steady_clock;

// The options of a call, less the time that its replicas have spent on waiting for each other.
template <class Slot>
CommunicationOptions left_of(const CommunicationOptions& options, std::span<void* const> slots) {
  auto began = Clock::time_point::max();
  for (const void* slot : slots) began = std::min(began, Slot::of(slot).began);
  return base::left_of(options, began);
}

// What a replica brings to all_reduce, and takes from it.
struct AllReduce {
  ReduceOp op;
  const std::vector<Value>& values;
  const AllReduceOptions& options;
  std::vector<Value> results = {};
  Clock::time_point began = Clock::now();

  static const AllReduce& of(const void* slot) { return *static_cast<const AllReduce*>(slot); }

  static bool same(const void* slot, const void* other) {
    const AllReduce &a = of(slot), &b = of(other);
    if (a.op != b.op || a.values.size() != b.values.size()) return false;
    if (a.options.weight.has_value() != b.options.weight.has_value()) return false;
    for (size_t i = 0; i < a.values.size(); ++i)
      if (a.values[i].dtype() != b.values[i].dtype()) return false;
    return true;
  }

  static std::string describe(const void* slot) {
    std::string text(name(of(slot).op));
    for (const Value& value : of(slot).values)
      text += fmt::format(", {}{}", name(value.dtype()),
                          value.is_sparse() ? " slices" : value.tensor().shape().to_string());
    if (of(slot).options.weight) text += fmt::format(", weight {}", *of(slot).options.weight);
    return text;
  }

  static void act(Strategy& strategy, std::span<void* const> slots) {
    const auto slot = [&](size_t r) -> AllReduce& { return *static_cast<AllReduce*>(slots[r]); };
    std::vector<ValueDestinationPair> pairs;
    for (size_t t = 0; t < slot(0).values.size(); ++t) {
      std::vector<Value> parts;
      for (size_t r = 0; r < slots.size(); ++r) parts.push_back(slot(r).values[t]);
      const PerReplica<Value> value(std::move(parts));
      pairs.emplace_back(value, value);
    }
    std::vector<double> weights;
    for (size_t r = 0; r < slots.size() && slot(0).options.weight; ++r)
      weights.push_back(*slot(r).options.weight);
    const CommunicationOptions communication =
        left_of<AllReduce>(slot(0).options.communication, slots);
    const std::vector<Mirrored<Value>> results =
        weights.empty() ? strategy.extended().batch_reduce_to(slot(0).op, pairs, communication)
                        : cross_device::weighted_mean(strategy.extended().cross_device_ops(),
                                                      slot(0).op, pairs, weights, communication);
    for (const Mirrored<Value>& result : results)
      for (size_t r = 0; r < slots.size(); ++r) slot(r).results.push_back(result[r]);
  }
};

struct AllGather {
  const std::vector<Tensor>& values;
  int64_t axis;
  const CommunicationOptions& options;
  std::vector<Tensor> results = {};
  Clock::time_point began = Clock::now();

  static const AllGather& of(const void* slot) { return *static_cast<const AllGather*>(slot); }

  static bool same(const void* slot, const void* other) {
    return of(slot).axis == of(other).axis && of(slot).values.size() == of(other).values.size();
  }

  static std::string describe(const void* slot) {
    return fmt::format("{} tensors along axis {}", of(slot).values.size(), of(slot).axis);
  }

  static void act(Strategy& strategy, std::span<void* const> slots) {
    const auto slot = [&](size_t r) -> AllGather& { return *static_cast<AllGather*>(slots[r]); };
    for (size_t t = 0; t < slot(0).values.size(); ++t) {
      std::vector<Tensor> parts;
      for (size_t r = 0; r < slots.size(); ++r) parts.push_back(slot(r).values[t]);
      const PerReplica<Tensor> value(std::move(parts));
      const Mirrored<Tensor> result = strategy.extended().gather_to(
          value, value, slot(0).axis, left_of<AllGather>(slot(0).options, slots));
      for (size_t r = 0; r < slots.size(); ++r) slot(r).results.push_back(result[r]);
    }
  }
};

void check_defined(const char* what, const Value& value) {
  if (!(value.is_sparse() ? value.slices().values : value.tensor()))
    throw InvalidArgumentError(fmt::format("{}: the value holds nothing", what));
}

}  // namespace

void ReplicaContext::meet(const detail::Meeting& meeting, void* slot,
                          const CommunicationOptions& options) {
  group_->meet(*this, meeting, slot, options);
}

std::vector<Value> ReplicaContext::all_reduce(ReduceOpArg op, const std::vector<Value>& values,
                                              const AllReduceOptions& options) {
  for (const Value& value : values) check_defined("all_reduce", value);
  AllReduceOptions merged = options;
  merged.communication = strategy_->extended().options_.merge(options.communication);
  AllReduce slot{op, values, merged};
  meet({"all_reduce", typeid(AllReduce), &AllReduce::same, &AllReduce::describe, &AllReduce::act},
       &slot, merged.communication);
  return std::move(slot.results);
}

std::vector<Tensor> ReplicaContext::all_reduce(ReduceOpArg op, const std::vector<Tensor>& values,
                                               const AllReduceOptions& options) {
  std::vector<Tensor> results;
  for (const Value& result :
       all_reduce(op, std::vector<Value>(values.begin(), values.end()), options))
    results.push_back(result.tensor());
  return results;
}

Tensor ReplicaContext::all_reduce(ReduceOpArg op, const Tensor& value,
                                  const AllReduceOptions& options) {
  return all_reduce(op, std::vector<Value>{value}, options)[0].tensor();
}

IndexedSlices ReplicaContext::all_reduce(ReduceOpArg op, const IndexedSlices& value,
                                         const AllReduceOptions& options) {
  return all_reduce(op, std::vector<Value>{value}, options)[0].slices();
}

std::vector<Tensor> ReplicaContext::all_gather(const std::vector<Tensor>& values, int64_t axis,
                                               const CommunicationOptions& options) {
  for (const Tensor& value : values) check_defined("all_gather", value);
  const CommunicationOptions merged = strategy_->extended().options_.merge(options);
  AllGather slot{values, axis, merged};
  meet({"all_gather", typeid(AllGather), &AllGather::same, &AllGather::describe, &AllGather::act},
       &slot, merged);
  return std::move(slot.results);
}

Tensor ReplicaContext::all_gather(const Tensor& value, int64_t axis,
                                  const CommunicationOptions& options) {
  return all_gather(std::vector<Tensor>{value}, axis, options)[0];
}

}  // namespace tutti
