// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/cross_device_ops.h>
#include <tutti/error.h>

#include <algorithm>

#include "base/reduce_op.h"
#include "cross_device/fused.h"
#include "observe/timeline.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace {

void describe(const char* algorithm) {
  if (auto* span = observe::Span::current()) {
    span->set("algorithm", algorithm);
    span->set("packing", "in place");
  }
}

}  // namespace

ReductionToOneDevice::ReductionToOneDevice(std::string_view reduce_to_device,
                                           AccumulationFn accumulation_fn)
    : accumulation_fn_(std::move(accumulation_fn)) {
  if (!reduce_to_device.empty())
    reduce_to_device_ =
        device::find(reduce_to_device, "ReductionToOneDevice: reduce_to_device").name();
}

Mirrored<Value> ReductionToOneDevice::reduce_implementation(ReduceOp op,
                                                            const PerReplica<Value>& value,
                                                            const Destinations& destinations,
                                                            const CommunicationOptions&) {
  const bool sums_dense = base::is_sum(op) && std::ranges::none_of(value, &Value::is_sparse);
  if (!accumulation_fn_ || !sums_dense) {
    describe("reduction_to_one_device");
    return cross_device::fused_reduce(op, value, destinations);
  }
  describe("accumulation_fn");
  detail::Device& device = reduce_to_device_.empty()
                               ? *detail::TensorAccess::devices(destinations)[0]
                               : device::find(reduce_to_device_, "reduce");
  std::vector<Tensor> parts;
  for (const Value& v : value)
    parts.push_back(v.device() == device.name() ? v.tensor()
                                                : detail::clone_to(v.tensor(), device));
  const Tensor sum = accumulation_fn_(parts);
  if (!sum || !(sum.shape() == parts[0].shape()) || sum.dtype() != parts[0].dtype())
    throw InvalidArgumentError(
        fmt::format("reduce: the accumulation_fn returned {} for components of {}",
                    sum ? sum.to_string() : "an empty Tensor", parts[0].to_string()));
  return cross_device::fused_reduce(op, PerReplica<Value>(sum), destinations,
                                    int64_t(value.size()));
}

std::vector<Mirrored<Value>> ReductionToOneDevice::batch_reduce_implementation(
    ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
    const CommunicationOptions& options) {
  if (accumulation_fn_) return CrossDeviceOps::batch_reduce_implementation(op, pairs, options);
  describe("reduction_to_one_device");
  return cross_device::fused_reduce(op, pairs);
}

}  // namespace tutti
