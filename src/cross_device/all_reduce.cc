// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/cross_device_ops.h>
#include <tutti/error.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/log.h"
#include "base/settings.h"
#include "cross_device/fused.h"
#include "cross_device/hierarchy.h"
#include "cross_device/nccl.h"
#include "cross_device/packing.h"
#include "observe/timeline.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

using cross_device::PackingOptions;

// NCCL reduces between GPUs, one replica on each. Logical GPUs of one physical GPU do not count.
void check_nccl(std::span<const ValueDestinationPair> pairs) {
  const auto device_of = [](const Value& v) {
    return &detail::TensorAccess::device(v.is_sparse() ? v.slices().values : v.tensor());
  };
  for (const auto& [value, destinations] : pairs) {
    std::vector<const detail::Device*> seen;
    const auto same = [](const detail::Device* a, const detail::Device* b) {
      return a == b || (a->gpu() >= 0 && a->gpu() == b->gpu());
    };
    for (const Value& v : value) {
      const detail::Device* const device = device_of(v);
      const bool known =
          std::ranges::any_of(seen, [&](auto* other) { return same(device, other); });
      if (device->type() == "GPU" && !known) {
        seen.push_back(device);
        continue;
      }
      if (base::settings().backend == "nccl")
        throw UnavailableError(
            fmt::format("\"nccl\" reduces between distinct GPUs, and the replica on {} has none of "
                        "its own; unset TUTTI_BACKEND=nccl to fall back to a fused reduction",
                        v.device()));
      static const std::string text =
          "\"nccl\" reduces between distinct GPUs, and not every replica has one of its own; "
          "falling back to a fused reduction";
      return base::log_once(base::LogLevel::warning, text);
    }
  }
}

// How many packs the options ask for: one plan per set of destinations and dtype.
size_t count_packs(std::span<const ValueDestinationPair> pairs, const PackingOptions& options) {
  std::map<std::pair<std::vector<std::string>, DType>, std::vector<int64_t>> groups;
  for (const auto& [value, destinations] : pairs)
    if (std::ranges::none_of(value, &Value::is_sparse))
      groups[{destinations.devices(), value[0].dtype()}].push_back(
          value[0].tensor().num_elements());
  size_t packs = 0;
  for (const auto& [key, elements] : groups)
    packs += cross_device::packing_plan(elements, size_of(key.second), options).size();
  return packs;
}

using Positions = std::vector<size_t>;

// The results of `special` for the pairs at `chosen`, and of the fused reduction for all others.
template <class F>
std::vector<Mirrored<Value>> reduce_apart(ReduceOp op, std::span<const ValueDestinationPair> pairs,
                                          const Positions& chosen, const F& special) {
  if (chosen.empty()) return cross_device::fused_reduce(op, pairs);
  std::vector<std::optional<Mirrored<Value>>> results(pairs.size());
  special(results);
  std::vector<ValueDestinationPair> others;
  for (size_t i = 0; i < pairs.size(); ++i)
    if (!results[i]) others.push_back(pairs[i]);
  auto reduced = cross_device::fused_reduce(op, others);
  std::vector<Mirrored<Value>> all;
  for (auto next = reduced.begin(); std::optional<Mirrored<Value>> & result : results)
    all.push_back(result ? std::move(*result) : std::move(*next++));
  return all;
}

bool have_nccl() {
  if (group::nccl_module()) return true;
  if (base::settings().backend == "nccl")
    throw UnavailableError(group::why_no_nccl() +
                           "; unset TUTTI_BACKEND=nccl to fall back to a fused reduction");
  base::log_once(base::LogLevel::warning,
                 group::why_no_nccl() + "; falling back to a fused reduction");
  return false;
}

// Dense values on distinct GPUs by NCCL.
std::vector<Mirrored<Value>> reduce_by_nccl(ReduceOp op,
                                            std::span<const ValueDestinationPair> pairs,
                                            const PackingOptions& packing,
                                            const CommunicationOptions& options) {
  std::map<std::pair<std::vector<std::string>, DType>, Positions> groups;
  Positions chosen;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [value, destinations] = pairs[i];
    if (!cross_device::distinct_gpus(op, value, destinations) || !have_nccl()) continue;
    groups[{destinations.devices(), value[0].dtype()}].push_back(i);
    chosen.push_back(i);
  }
  return reduce_apart(op, pairs, chosen, [&](auto& results) {
    for (const auto& [key, positions] : groups) {
      std::vector<const ValueDestinationPair*> alike;
      for (const size_t i : positions) alike.push_back(&pairs[i]);
      auto reduced = cross_device::nccl_reduce(group::gpu_support(), op, alike, packing, options);
      for (size_t i = 0; i < positions.size(); ++i) results[positions[i]] = std::move(reduced[i]);
    }
  });
}

// Dense values on distinct GPUs from GPU to GPU.
std::vector<Mirrored<Value>> reduce_by_copies(ReduceOp op,
                                              std::span<const ValueDestinationPair> pairs) {
  Positions chosen;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const PerReplica<Value>& value = pairs[i].first;
    if (cross_device::on_distinct_gpus(value) &&
        result_dtype(op, value[0].dtype()) == value[0].dtype())
      chosen.push_back(i);
  }
  return reduce_apart(op, pairs, chosen, [&](auto& results) {
    for (const size_t i : chosen)
      results[i] = cross_device::hierarchical_reduce(op, pairs[i].first, pairs[i].second);
  });
}

}  // namespace

AllReduceCrossDeviceOps::AllReduceCrossDeviceOps(std::string_view all_reduce_alg, int num_packs,
                                                 int64_t agg_small_grads_max_bytes,
                                                 int agg_small_grads_max_group)
    : all_reduce_alg_(all_reduce_alg),
      num_packs_(num_packs),
      agg_small_grads_max_bytes_(agg_small_grads_max_bytes),
      agg_small_grads_max_group_(agg_small_grads_max_group) {
  if (all_reduce_alg != "nccl" && all_reduce_alg != "hierarchical_copy")
    throw InvalidArgumentError(fmt::format(
        "\"{}\" is not an all-reduce algorithm; there are \"nccl\" and \"hierarchical_copy\"",
        all_reduce_alg));
  const auto check = [](const char* what, int64_t number) {
    if (number < 0)
      throw InvalidArgumentError(fmt::format("{} is {}, expected 0 or more", what, number));
  };
  check("num_packs", num_packs);
  check("agg_small_grads_max_bytes", agg_small_grads_max_bytes);
  check("agg_small_grads_max_group", agg_small_grads_max_group);
}

Mirrored<Value> AllReduceCrossDeviceOps::reduce_implementation(
    ReduceOp op, const PerReplica<Value>& value, const Destinations& destinations,
    const CommunicationOptions& options) {
  return std::move(batch_reduce_implementation(op, {{value, destinations}}, options)[0]);
}

std::vector<Mirrored<Value>> AllReduceCrossDeviceOps::batch_reduce_implementation(
    ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
    const CommunicationOptions& options) {
  const bool nccl =
      all_reduce_alg_ == "nccl" || options.implementation == CommunicationImplementation::NCCL;
  if (nccl) check_nccl(pairs);
  const PackingOptions packing{.num_packs = num_packs_,
                               .agg_small_grads_max_bytes = agg_small_grads_max_bytes_,
                               .agg_small_grads_max_group = agg_small_grads_max_group_,
                               .bytes_per_pack = options.bytes_per_pack};
  if (auto* span = observe::Span::current()) {
    span->set("algorithm", all_reduce_alg_);
    span->set("packing", "in place");
    span->set("packs_asked_for", int64_t(count_packs(pairs, packing)));
  }
  return nccl ? reduce_by_nccl(op, pairs, packing, options) : reduce_by_copies(op, pairs);
}

HierarchicalCopyAllReduce::HierarchicalCopyAllReduce(int num_packs)
    : AllReduceCrossDeviceOps("hierarchical_copy", num_packs) {}

NcclAllReduce::NcclAllReduce(int num_packs) : AllReduceCrossDeviceOps("nccl", num_packs) {}

}  // namespace tutti
