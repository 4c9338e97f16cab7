// SPDX-License-Identifier: Apache-2.0
#include "cross_device/hierarchy.h"

#include <algorithm>
#include <set>

#include "base/half.h"
#include "base/reduce_op.h"
#include "base/tree_split.h"
#include "cross_device/fused.h"
#include "kernels/gpu.h"
#include "tensor/tensor_impl.h"

namespace tutti::cross_device {

namespace {

using detail::Device;
using detail::TensorAccess;

// Appends the rounds for devices [first, first + n); returns how many there are.
size_t add_rounds(int first, int n, std::vector<std::vector<Transfer>>& rounds) {
  if (n == 1) return 0;
  const int left = base::left_part(n);
  const size_t round =
      std::max(add_rounds(first, left, rounds), add_rounds(first + left, n - left, rounds));
  if (rounds.size() <= round) rounds.resize(round + 1);
  rounds[round].push_back({first + left, first});
  return round + 1;
}

// a op b, on the GPU of both.
Tensor combined(ReduceOp op, const Tensor& a, const Tensor& b, int64_t divisor = 1) {
  const Tensor result = TensorAccess::empty(a.shape(), a.dtype(), TensorAccess::device(a));
  const void* const inputs[] = {a.const_data(), b ? b.const_data() : nullptr};
  void* const output = result.data();
  const kernels::Reduction reduction{.inputs = std::span(inputs).first(b ? 2 : 1),
                                     .outputs = {&output, 1},
                                     .count = a.num_elements(),
                                     .dtype = a.dtype(),
                                     .op = op,
                                     .divisor = divisor};
  kernels::gpu::reduce(TensorAccess::device(a).gpu(), {&reduction, 1});
  return result;
}

}  // namespace

std::vector<std::vector<Transfer>> reduction_rounds(int n) {
  std::vector<std::vector<Transfer>> rounds;
  add_rounds(0, n, rounds);
  return rounds;
}

bool on_distinct_gpus(const PerReplica<Value>& value) {
  std::set<int> gpus;
  for (const Value& v : value) {
    if (v.is_sparse()) return false;
    const int gpu = TensorAccess::device(v.tensor()).gpu();
    if (gpu < 0 || !gpus.insert(gpu).second) return false;
  }
  return value.size() > 1;
}

Mirrored<Value> hierarchical_reduce(ReduceOp op, const PerReplica<Value>& value,
                                    const Destinations& destinations) {
  const DType dtype = value[0].dtype();
  const bool half = base::is_half(dtype);
  std::vector<Tensor> parts;
  for (const Value& v : value) parts.push_back(half ? v.tensor().to(DType::float32) : v.tensor());
  const std::vector<std::vector<Transfer>> rounds = reduction_rounds(int(parts.size()));
  const ReduceOp step = base::partial_op(op);
  for (const std::vector<Transfer>& round : rounds)
    for (const auto& [from, to] : round) {
      Tensor& target = parts[size_t(to)];
      target = combined(step, target,
                        detail::within_reach(parts[size_t(from)], TensorAccess::device(target)));
    }
  Tensor result = parts[0];
  if (base::divides(op)) result = combined(op, result, {}, int64_t(parts.size()));
  if (half) result = result.to(dtype);

  // Back the way it came, if the results go to the devices that the values are on.
  const std::vector<Device*>& devices = TensorAccess::devices(destinations);
  const bool back = std::ranges::equal(
      devices, value, {}, {}, [](const Value& v) { return &TensorAccess::device(v.tensor()); });
  std::vector<Value> results(devices.size(), Value(result));
  if (back) {
    for (auto round = rounds.rbegin(); round != rounds.rend(); ++round)
      for (const auto& [from, to] : *round)
        results[size_t(from)] = detail::clone_to(results[size_t(to)], *devices[size_t(from)]);
  } else {
    for (size_t i = 0; i < devices.size(); ++i) results[i] = detail::clone_to(result, *devices[i]);
  }
  return Mirrored<Value>(std::move(results));
}

}  // namespace tutti::cross_device
