// SPDX-License-Identifier: Apache-2.0
#include "cross_device/weighted.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <cmath>

#include "tensor/tensor_impl.h"

namespace tutti::cross_device {

namespace {

template <class F>
Value with_values(const Value& value, const F& f) {
  if (!value.is_sparse()) return f(value.tensor());
  return IndexedSlices{f(value.slices().values), value.slices().indices,
                       value.slices().dense_shape};
}

}  // namespace

std::vector<Mirrored<Value>> weighted_mean(CrossDeviceOps& ops, ReduceOp op,
                                           const std::vector<ValueDestinationPair>& pairs,
                                           const std::vector<double>& weights,
                                           const CommunicationOptions& options) {
  if (op != ReduceOp::MEAN)
    throw InvalidArgumentError(
        fmt::format("weighted mean: weights go with MEAN, and the operation is {}", name(op)));
  for (const double weight : weights)
    if (!(weight >= 0) || std::isinf(weight))
      throw InvalidArgumentError(fmt::format(
          "weighted mean: a weight is {}, expected a finite number of 0 or more", weight));
  if (pairs.empty()) return {};

  std::vector<ValueDestinationPair> batch;
  for (const auto& [value, destinations] : pairs) {
    if (value.size() != weights.size())
      throw InvalidArgumentError(fmt::format("weighted mean: {} weights were given for {} replicas",
                                             weights.size(), value.size()));
    std::vector<Value> parts;
    for (size_t r = 0; r < value.size(); ++r) {
      const Value& part = value[r];
      if (!(part.is_sparse() ? part.slices().values : part.tensor()))
        throw InvalidArgumentError(fmt::format("weighted mean: replica {} holds nothing", r));
      if (part.dtype() != value[0].dtype() || part.dtype() == DType::boolean)
        throw InvalidArgumentError(fmt::format(
            "weighted mean: replicas 0 and {} hold dtypes {} and {}; they must agree, and "
            "bool has no mean",
            r, name(value[0].dtype()), name(part.dtype())));
      parts.push_back(
          with_values(value[r], [&](const Tensor& t) { return detail::scaled(t, weights[r]); }));
    }
    batch.emplace_back(PerReplica<Value>(std::move(parts)), destinations);
  }
  // The weights are added up along with the values, in the same way.
  std::vector<Value> totals;
  for (size_t r = 0; r < weights.size(); ++r)
    totals.push_back(Tensor::scalar<double>(weights[r], pairs[0].first[r].device()));
  const PerReplica<Value> total(std::move(totals));
  batch.emplace_back(total, total);

  std::vector<Mirrored<Value>> results = ops.batch_reduce(ReduceOp::SUM, batch, options);
  const double sum = results.back()[0].tensor().item<double>();
  results.pop_back();
  if (sum == 0)
    throw InvalidArgumentError(
        "weighted mean: the weights of all replicas are 0, so there is no mean");
  for (size_t i = 0; i < results.size(); ++i) {
    const DType dtype = result_dtype(op, pairs[i].first[0].dtype());
    results[i] = results[i].map([&](const Value& value) {
      return with_values(value, [&](const Tensor& t) {
        detail::scale(t, sum, true);
        return dtype == DType::float64 ? t : t.to(dtype);
      });
    });
  }
  return results;
}

}  // namespace tutti::cross_device
