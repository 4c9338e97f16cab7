// SPDX-License-Identifier: Apache-2.0
// The front end: everything is checked here, before an algorithm sees it and before a byte moves.
#include <cxxabi.h>
#include <fmt/format.h>
#include <tutti/cross_device_ops.h>
#include <tutti/error.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <typeinfo>

#include "base/context.h"
#include "base/reduce_op.h"
#include "cross_device/fused.h"
#include "observe/timeline.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

using cross_device::is_sparse;
using detail::Device;
using detail::TensorAccess;

[[noreturn]] void invalid(std::string_view what, const std::string& why) {
  throw InvalidArgumentError(fmt::format("{}: {}", what, why));
}

void check_context(std::string_view what) {
  if (base::local_replica_id() >= 0)
    throw FailedPreconditionError(fmt::format(
        "{} belongs to the cross-replica context and was called inside a replica function; use "
        "ReplicaContext::all_reduce there, or merge_call to leave it",
        what));
}

std::string shape_text(const Value& value) {
  if (!value.is_sparse()) return value.tensor().shape().to_string();
  const std::optional<Shape>& shape = value.slices().dense_shape;
  return shape ? shape->to_string() : "unknown (IndexedSlices without a dense_shape)";
}

// Do the shapes of two components go together? Slices differ in their number of rows.
bool shapes_agree(const Value& a, const Value& b) {
  if (!a.is_sparse() && !b.is_sparse()) return a.tensor().shape() == b.tensor().shape();
  if (a.is_sparse() && b.is_sparse()) {
    const Shape &x = a.slices().values.shape(), &y = b.slices().values.shape();
    const bool rows_agree =
        x.rank() == y.rank() && std::equal(x.begin() + 1, x.end(), y.begin() + 1);
    const auto &p = a.slices().dense_shape, &q = b.slices().dense_shape;
    return rows_agree && (!p || !q || *p == *q);
  }
  const Value &sparse = a.is_sparse() ? a : b, &dense = a.is_sparse() ? b : a;
  return sparse.slices().dense_shape && *sparse.slices().dense_shape == dense.tensor().shape();
}

bool holds_anything(const Tensor& tensor) { return bool(tensor); }
bool holds_anything(const Value& value) {
  return bool(value.is_sparse() ? value.slices().values : value.tensor());
}

void check_components(std::string_view what, const PerReplica<Value>& value) {
  if (value.empty()) invalid(what, "the value has no replicas");
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i].is_sparse())
      value[i].slices().validate(fmt::format("{}: replica {}", what, i));
    else if (!holds_anything(value[i]))
      invalid(what, fmt::format("replica {} holds an empty Tensor", i));
    if (value[i].dtype() != value[0].dtype())
      invalid(what, fmt::format("replicas 0 and {} hold dtypes {} and {}", i,
                                name(value[0].dtype()), name(value[i].dtype())));
  }
}

void check_reducible(std::string_view what, ReduceOp op, const PerReplica<Value>& value) {
  check_components(what, value);
  // Components of one kind agree if each agrees with the first of its kind, so it is enough to
  // look at those.
  std::vector<size_t> firsts;
  const auto kind = [&](size_t i) {
    return !value[i].is_sparse() ? 0 : value[i].slices().dense_shape ? 1 : 2;
  };
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i].is_sparse() && !base::is_sum(op))
      invalid(what, fmt::format("IndexedSlices have SUM and MEAN, not {}", name(op)));
    for (const size_t other : firsts)
      if (!shapes_agree(value[other], value[i]))
        invalid(what, fmt::format("replicas {} and {} hold shapes {} and {}", other, i,
                                  shape_text(value[other]), shape_text(value[i])));
    if (std::ranges::none_of(firsts, [&](size_t first) { return kind(first) == kind(i); }))
      firsts.push_back(i);
  }
  try {
    result_dtype(op, value[0].dtype());
  } catch (const InvalidArgumentError& e) {
    invalid(what, e.what());
  }
}

// An algorithm of the user's may return anything.
template <class V>
void check_result(std::string_view what, const Mirrored<V>& result,
                  const Destinations& destinations) {
  const std::vector<Device*>& devices = TensorAccess::devices(destinations);
  if (result.size() != devices.size())
    throw InternalError(fmt::format("{}: the algorithm returned {} components for {} destinations",
                                    what, result.size(), devices.size()));
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!holds_anything(result[i]))
      throw InternalError(
          fmt::format("{}: the algorithm returned an empty Tensor as component {}", what, i));
    if (result[i].device() != devices[i]->name())
      throw InternalError(
          fmt::format("{}: the algorithm returned component {} on {} for destination {}", what, i,
                      result[i].device(), devices[i]->name()));
  }
}

size_t bytes_of(const Value& value) {
  if (!value.is_sparse()) return value.tensor().num_bytes();
  return value.slices().values.num_bytes() + value.slices().indices.num_bytes();
}

std::string joined(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ","));
}

std::string class_name(const CrossDeviceOps& ops) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(typeid(ops).name(), nullptr, nullptr, &status), &std::free);
  return text ? text.get() : typeid(ops).name();
}

void describe(observe::Span& span, const CrossDeviceOps& ops, ReduceOp op,
              std::span<const ValueDestinationPair> pairs) {
  if (!span) return;
  int64_t bytes = 0;
  std::string dtype, devices;
  for (const auto& [value, destinations] : pairs) {
    for (const Value& v : value) bytes += int64_t(bytes_of(v));
    const std::string_view type = name(value[0].dtype());
    dtype = dtype.empty() || dtype == type ? std::string(type) : "mixed";
    const std::string to = joined(destinations.devices());
    devices = devices.empty() || devices == to ? to : "mixed";
  }
  span.set("op", std::string(name(op)));
  span.set("bytes", bytes);
  span.set("tensors", int64_t(pairs.size()));
  span.set("dtype", dtype);
  span.set("devices", devices);
  span.set("class", class_name(ops));
}

// One component that is the result already.
bool needs_no_work(ReduceOp op, const PerReplica<Value>& value, const Destinations& destinations,
                   const CommunicationOptions& options) {
  return value.size() == 1 && destinations.matches(Destinations(value)) &&
         result_dtype(op, value[0].dtype()) == value[0].dtype() &&
         !(options.sparse_as_dense && is_sparse(value));
}

PerReplica<Value> densified(std::string_view what, const PerReplica<Value>& value) {
  try {
    return value.map([](const Value& v) { return Value(v.slices().to_dense()); });
  } catch (const InvalidArgumentError& e) {
    invalid(what, fmt::format("sparse_as_dense: {}", e.what()));
  }
}

// A dense result as slices that name every row.
Mirrored<Value> all_rows(const Mirrored<Value>& result) {
  return result.map([](const Value& v) {
    const Tensor& tensor = v.tensor();
    std::vector<int64_t> numbers(size_t(tensor.shape()[0]));
    std::iota(numbers.begin(), numbers.end(), 0);
    const Tensor rows = Tensor::of(std::span<const int64_t>(numbers), tensor.device());
    return Value(IndexedSlices{tensor, rows, tensor.shape()});
  });
}

}  // namespace

CrossDeviceOps::~CrossDeviceOps() = default;

Mirrored<Value> CrossDeviceOps::reduce_value(ReduceOp op, const PerReplica<Value>& value,
                                             const Destinations& destinations,
                                             const CommunicationOptions& given) {
  check_context("reduce");
  const CommunicationOptions options = default_options().merge(given);
  options.validate("reduce");
  check_reducible("reduce", op, value);
  observe::Span span("reduce");
  if (span) {
    const ValueDestinationPair pair(value, destinations);
    describe(span, *this, op, {&pair, 1});
  }
  if (!spans_processes() && needs_no_work(op, value, destinations, options))
    return broadcast_value(value[0], destinations);
  const bool as_dense = options.sparse_as_dense && is_sparse(value);
  Mirrored<Value> result = reduce_implementation(op, as_dense ? densified("reduce", value) : value,
                                                 destinations, options);
  if (as_dense) result = all_rows(result);
  check_result("reduce", result, destinations);
  return result;
}

Mirrored<Value> CrossDeviceOps::reduce_value(ReduceOp op, const Mirrored<Value>& value,
                                             const Destinations& destinations,
                                             const CommunicationOptions& options) {
  check_context("reduce");
  options.validate("reduce");
  (void)name(op);  // which throws for what is not a ReduceOp
  if (value.empty()) invalid("reduce", "the value has no replicas");
  if (!base::keeps_equal_values(op))
    invalid(
        "reduce",
        fmt::format("the value is Mirrored: its replicas are one value already, so it has no {} "
                    "over replicas; pass a PerReplica",
                    name(op)));
  return broadcast_value(value[0], destinations);
}

std::vector<Mirrored<Value>> CrossDeviceOps::batch_reduce(
    ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
    const CommunicationOptions& given) {
  check_context("batch_reduce");
  const CommunicationOptions options = default_options().merge(given);
  options.validate("batch_reduce");
  (void)name(op);  // which throws for what is not a ReduceOp
  for (size_t i = 0; i < pairs.size(); ++i) {
    try {
      check_reducible("batch_reduce", op, pairs[i].first);
    } catch (const InvalidArgumentError& e) {
      throw InvalidArgumentError(fmt::format("{} (in pair {} of {})", e.what(), i, pairs.size()));
    }
  }
  if (pairs.empty() && !spans_processes()) return {};  // others may have something else in mind
  observe::Span span("batch_reduce");
  describe(span, *this, op, pairs);
  std::vector<Mirrored<Value>> results;
  const auto trivial = [&](const auto& pair) {
    return needs_no_work(op, pair.first, pair.second, options);
  };
  if (!spans_processes() && std::ranges::all_of(pairs, trivial)) {
    for (const auto& [value, destinations] : pairs)
      results.push_back(broadcast_value(value[0], destinations));
    return results;
  }
  if (options.sparse_as_dense &&
      std::ranges::any_of(pairs, [](const auto& pair) { return is_sparse(pair.first); })) {
    std::vector<ValueDestinationPair> dense = pairs;
    for (auto& [value, destinations] : dense)
      if (is_sparse(value)) value = densified("batch_reduce", value);
    results = batch_reduce_implementation(op, dense, options);
  } else {
    results = batch_reduce_implementation(op, pairs, options);
  }
  if (results.size() != pairs.size())
    throw InternalError(fmt::format("batch_reduce: the algorithm returned {} results for {} pairs",
                                    results.size(), pairs.size()));
  for (size_t i = 0; i < pairs.size() && options.sparse_as_dense; ++i)
    if (is_sparse(pairs[i].first)) results[i] = all_rows(results[i]);
  for (size_t i = 0; i < pairs.size(); ++i)
    check_result("batch_reduce", results[i], pairs[i].second);
  return results;
}

Mirrored<Value> CrossDeviceOps::broadcast_value(const Value& tensor,
                                                const Destinations& destinations) {
  check_context("broadcast");
  check_components("broadcast", PerReplica<Value>(tensor));
  observe::Span span("broadcast");
  if (span) {
    span.set("bytes", int64_t(bytes_of(tensor)));
    span.set("dtype", std::string(name(tensor.dtype())));
    span.set("devices", joined(destinations.devices()));
  }
  Mirrored<Value> result = broadcast_implementation(tensor, destinations);
  check_result("broadcast", result, destinations);
  return result;
}

Mirrored<Tensor> CrossDeviceOps::gather_value(const PerReplica<Value>& value,
                                              const Destinations& destinations, int64_t axis,
                                              const CommunicationOptions& given) {
  check_context("gather");
  const CommunicationOptions options = default_options().merge(given);
  options.validate("gather");
  for (const Value& v : value)
    if (v.is_sparse())
      throw UnimplementedError("gather: IndexedSlices cannot be gathered; reduce them instead");
  check_components("gather", value);
  const PerReplica<Tensor> tensors = value.map(&Value::tensor);
  const Shape& first = tensors[0].shape();
  if (first.rank() == 0)
    invalid("gather", "scalars have no axis to be gathered along; reshape them to [1]");
  size_t along;
  try {
    along = first.axis(axis);
  } catch (const InvalidArgumentError& e) {
    invalid("gather", e.what());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<int64_t> extents(tensors[i].shape().begin(), tensors[i].shape().end());
    if (extents.size() == first.rank()) extents[along] = first[along];
    if (!std::ranges::equal(extents, first))
      invalid(
          "gather",
          fmt::format("replicas 0 and {} hold shapes {} and {}, which differ in more than axis {}",
                      i, first.to_string(), tensors[i].shape().to_string(), axis));
  }
  observe::Span span("gather");
  if (span) {
    int64_t bytes = 0;
    for (const Tensor& t : tensors) bytes += int64_t(t.num_bytes());
    span.set("bytes", bytes);
    span.set("dtype", std::string(name(tensors[0].dtype())));
    span.set("devices", joined(destinations.devices()));
  }
  Mirrored<Tensor> result = gather_implementation(tensors, destinations, along, options);
  check_result("gather", result, destinations);
  return result;
}

std::vector<Mirrored<Value>> CrossDeviceOps::batch_reduce_implementation(
    ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
    const CommunicationOptions& options) {
  std::vector<Mirrored<Value>> results;
  results.reserve(pairs.size());
  for (const auto& [value, destinations] : pairs)
    results.push_back(reduce_implementation(op, value, destinations, options));
  return results;
}

Mirrored<Value> CrossDeviceOps::broadcast_implementation(const Value& tensor,
                                                         const Destinations& destinations) {
  std::vector<Value> copies;
  copies.reserve(destinations.size());
  for (Device* device : TensorAccess::devices(destinations))
    copies.push_back(detail::clone_to(tensor, *device));
  return Mirrored<Value>(std::move(copies));
}

// Seen along its axis, a tensor is `outer` runs of bytes; the result interleaves the runs of all
// replicas.
Mirrored<Tensor> CrossDeviceOps::gather_implementation(const PerReplica<Tensor>& value,
                                                       const Destinations& destinations,
                                                       size_t axis, const CommunicationOptions&) {
  std::vector<int64_t> extents(value[0].shape().begin(), value[0].shape().end());
  size_t outer = 1;
  for (size_t i = 0; i < axis; ++i) outer *= size_t(extents[i]);
  extents[axis] = 0;
  for (const Tensor& t : value) extents[axis] += t.shape()[axis];

  std::vector<Tensor> results;
  for (Device* device : TensorAccess::devices(destinations))
    results.push_back(TensorAccess::empty(Shape(extents), value[0].dtype(), *device));
  if (results[0].num_bytes() == 0) return Mirrored<Tensor>(std::move(results));

  const size_t stride = results[0].num_bytes() / outer;
  size_t at = 0;
  for (const Tensor& t : value) {
    const size_t run = t.num_bytes() / outer;
    for (const Tensor& result : results)
      detail::copy_runs(TensorAccess::device(result),
                        static_cast<std::byte*>(TensorAccess::data(result)) + at, stride,
                        TensorAccess::device(t), t.const_data(), run, run, outer);
    at += run;
  }
  return Mirrored<Tensor>(std::move(results));
}

}  // namespace tutti
