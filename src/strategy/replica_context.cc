// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/error.h>
#include <tutti/strategy.h>

#include <algorithm>

#include "base/time_left.h"
#include "cross_device/weighted.h"
#include "strategy/replica_group.h"

namespace tutti {

namespace {

using Clock = std::chrono::steady_clock;

// A replica's part in a call that communicates.
class Communication : public detail::Meeting {
 protected:
  Communication(const char* what, const CommunicationOptions& options)
      : Meeting(what), options_(options) {}

  // The options of the call, less the time that its replicas have waited for each other.
  CommunicationOptions left(std::span<Meeting* const> parts) const {
    auto began = Clock::time_point::max();
    for (const Meeting* part : parts)
      began = std::min(began, static_cast<const Communication*>(part)->began_);
    return base::left_of(options_, began);
  }

 private:
  const CommunicationOptions& options_;
  const Clock::time_point began_ = Clock::now();
};

struct AllReduce : Communication {
  AllReduce(ReduceOp operation, const std::vector<Value>& given, std::optional<double> weighs,
            const CommunicationOptions& options)
      : Communication("all_reduce", options), op(operation), values(given), weight(weighs) {}

  bool agrees_with(const Meeting& part) const override {
    const auto& other = static_cast<const AllReduce&>(part);
    return op == other.op && weight.has_value() == other.weight.has_value() &&
           std::ranges::equal(values, other.values, {}, &Value::dtype, &Value::dtype);
  }

  std::string describe() const override {
    std::string text(name(op));
    for (const Value& value : values)
      text += fmt::format(", {}{}", name(value.dtype()),
                          value.is_sparse() ? " slices" : value.tensor().shape().to_string());
    if (weight) text += fmt::format(", weight {}", *weight);
    return text;
  }

  void act(Strategy& strategy, std::span<Meeting* const> parts) override {
    const auto part = [&](size_t r) -> AllReduce& { return static_cast<AllReduce&>(*parts[r]); };
    std::vector<ValueDestinationPair> pairs;
    for (size_t t = 0; t < values.size(); ++t) {
      std::vector<Value> components;
      for (size_t r = 0; r < parts.size(); ++r) components.push_back(part(r).values[t]);
      const PerReplica<Value> value(std::move(components));
      pairs.emplace_back(value, value);
    }
    std::vector<double> weights;
    for (size_t r = 0; r < parts.size() && weight; ++r) weights.push_back(*part(r).weight);
    CrossDeviceOps& ops = strategy.extended().cross_device_ops();
    const std::vector<Mirrored<Value>> reduced =
        weight ? cross_device::weighted_mean(ops, op, pairs, weights, left(parts))
               : ops.batch_reduce(op, pairs, left(parts));
    for (const Mirrored<Value>& result : reduced)
      for (size_t r = 0; r < parts.size(); ++r) part(r).results.push_back(result[r]);
  }

  const ReduceOp op;
  const std::vector<Value>& values;
  const std::optional<double> weight;
  std::vector<Value> results = {};
};

struct AllGather : Communication {
  AllGather(const std::vector<Tensor>& given, int64_t along, const CommunicationOptions& options)
      : Communication("all_gather", options), values(given), axis(along) {}

  bool agrees_with(const Meeting& part) const override {
    const auto& other = static_cast<const AllGather&>(part);
    return axis == other.axis && values.size() == other.values.size();
  }

  std::string describe() const override {
    return fmt::format("{} tensors along axis {}", values.size(), axis);
  }

  void act(Strategy& strategy, std::span<Meeting* const> parts) override {
    const auto part = [&](size_t r) -> AllGather& { return static_cast<AllGather&>(*parts[r]); };
    for (size_t t = 0; t < values.size(); ++t) {
      std::vector<Tensor> components;
      for (size_t r = 0; r < parts.size(); ++r) components.push_back(part(r).values[t]);
      const PerReplica<Tensor> value(std::move(components));
      const Mirrored<Tensor> result =
          strategy.extended().cross_device_ops().gather(value, value, axis, left(parts));
      for (size_t r = 0; r < parts.size(); ++r) part(r).results.push_back(result[r]);
    }
  }

  const std::vector<Tensor>& values;
  const int64_t axis;
  std::vector<Tensor> results = {};
};

void check_defined(const char* what, const Value& value) {
  if (!(value.is_sparse() ? value.slices().values : value.tensor()))
    throw InvalidArgumentError(fmt::format("{}: the value holds nothing", what));
}

}  // namespace

void ReplicaContext::meet(detail::Meeting& part) {
  group_->meet(*this, part, strategy_->extended().options_);
}

std::vector<Value> ReplicaContext::all_reduce(ReduceOpArg op, const std::vector<Value>& values,
                                              const AllReduceOptions& options) {
  for (const Value& value : values) check_defined("all_reduce", value);
  const CommunicationOptions merged = strategy_->extended().options_.merge(options.communication);
  AllReduce part(op, values, options.weight, merged);
  group_->meet(*this, part, merged);
  return std::move(part.results);
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
  AllGather part(values, axis, merged);
  group_->meet(*this, part, merged);
  return std::move(part.results);
}

Tensor ReplicaContext::all_gather(const Tensor& value, int64_t axis,
                                  const CommunicationOptions& options) {
  return all_gather(std::vector<Tensor>{value}, axis, options)[0];
}

}  // namespace tutti
