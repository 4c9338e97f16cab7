// SPDX-License-Identifier: Apache-2.0
#include "cross_device/nccl.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "base/half.h"
#include "base/reduce_op.h"
#include "base/settings.h"
#include "gpu/gpu_collectives.h"
#include "tensor/tensor_impl.h"

namespace tutti::cross_device {

namespace {

using detail::Device;
using detail::TensorAccess;

// The communicators of each list of GPUs, for all threads that reduce there. One thread launches
// at a time: two that launch on the same GPUs in different orders would wait for each other.
struct Links {
  std::mutex mutex;
  std::map<std::vector<int>, std::unique_ptr<group::NcclLink>> by_gpus;
  uint64_t launches = 0;
};

// Never destroyed: it may be used until the process ends.
Links& links() {
  static auto* const links = new Links;
  return *links;
}

std::vector<int> gpus_of(const PerReplica<Value>& value) {
  std::vector<int> gpus;
  for (const Value& v : value) gpus.push_back(TensorAccess::device(v.tensor()).gpu());
  return gpus;
}

std::byte* element(const Tensor& tensor, int64_t at) {
  return static_cast<std::byte*>(TensorAccess::data(tensor)) + size_t(at) * size_of(tensor.dtype());
}

group::Timeouts timeouts_of(const CommunicationOptions& options) {
  const base::Settings& settings = base::settings();
  return {options.timeout.value_or(settings.timeout), settings.warn_after};
}

}  // namespace

size_t distinct_gpus(ReduceOp op, const PerReplica<Value>& value,
                     const Destinations& destinations) {
  const std::vector<Device*>& to = TensorAccess::devices(destinations);
  if (to.size() != value.size() || value.size() < 2) return 0;
  if (std::ranges::any_of(value, &Value::is_sparse)) return 0;
  if (!group::type_in_nccl(op, value[0].dtype())) return 0;
  std::set<int> gpus;
  for (size_t i = 0; i < value.size(); ++i) {
    const Device& device = TensorAccess::device(value[i].tensor());
    if (device.gpu() < 0 || &device != to[i]) return 0;
    gpus.insert(device.gpu());
  }
  return gpus.size() == value.size() ? value.size() : 0;
}

std::vector<std::vector<NcclCall>> launch_order(std::span<const Pack> packs, size_t devices) {
  std::vector<std::vector<NcclCall>> launches;
  for (const Pack& pack : packs) {
    std::vector<NcclCall> calls;
    for (const Piece& piece : pack)
      for (size_t device = 0; device < devices && piece.begin < piece.end; ++device)
        calls.push_back({device, piece});
    if (!calls.empty()) launches.push_back(std::move(calls));
  }
  return launches;
}

std::vector<Mirrored<Value>> nccl_reduce(const group::GpuSupport& support, ReduceOp op,
                                         std::span<const ValueDestinationPair* const> pairs,
                                         const PackingOptions& packing,
                                         const CommunicationOptions& options) {
  const std::vector<int> gpus = gpus_of(pairs[0]->first);
  const DType dtype = pairs[0]->first[0].dtype(), type = *group::type_in_nccl(op, dtype);
  const bool widened = base::is_half(dtype);
  const size_t devices = gpus.size();
  const ReduceOp combining = base::partial_op(op);
  const auto cast = [&](size_t device, const Tensor& from, const Tensor& to) {
    support.kernels.cast(gpus[device], support.current_stream(gpus[device]), from.const_data(),
                         from.dtype(), TensorAccess::data(to), to.dtype(), from.num_elements());
  };

  // By tensor, then by device; `sums` are the results, or what they are rounded from.
  std::vector<std::vector<Tensor>> inputs, sums, results;
  std::vector<int64_t> elements;
  for (const ValueDestinationPair* const pair : pairs) {
    elements.push_back(pair->first[0].tensor().num_elements());
    std::vector<Tensor>&in = inputs.emplace_back(), &sum = sums.emplace_back(),
    &result = results.emplace_back();
    for (size_t d = 0; d < devices; ++d) {
      const Tensor& tensor = pair->first[d].tensor();
      Device& device = TensorAccess::device(tensor);
      result.push_back(TensorAccess::empty(tensor.shape(), dtype, device));
      sum.push_back(widened ? TensorAccess::empty(tensor.shape(), type, device) : result[d]);
      if (widened) cast(d, tensor, sum[d]);
      in.push_back(widened ? sum[d] : tensor);
    }
  }

  {
    Links& all = links();
    std::lock_guard lock(all.mutex);
    const group::Enqueued operation{{.kind = group::Collective::all_reduce,
                                     .dtype = dtype,
                                     .route = group::Route::gpu,
                                     .op = op,
                                     .tensors = uint32_t(pairs.size()),
                                     .extents = {elements[0]}},
                                    ++all.launches,
                                    timeouts_of(options)};
    try {
      std::unique_ptr<group::NcclLink>& link = all.by_gpus[gpus];
      if (!link)
        link = std::make_unique<group::NcclLink>(
            support, support.nccl()->open_all(gpus, group::still_wanted(operation, nullptr)), gpus,
            nullptr);
      const auto packs = packing_plan(elements, size_of(type), packing);
      for (const std::vector<NcclCall>& calls : launch_order(packs, devices))
        link->launch(operation, [&] {
          for (const auto& [device, piece] : calls)
            link->communicator(device).all_reduce(
                element(inputs[piece.tensor][device], piece.begin),
                element(sums[piece.tensor][device], piece.begin), piece.end - piece.begin, type,
                combining, support.current_stream(gpus[device]));
        });
    } catch (const Error&) {
      all.by_gpus.erase(gpus);  // the next call begins afresh
      throw;
    }
  }

  for (size_t d = 0; d < devices; ++d) {
    std::vector<const void*> from;
    std::vector<void*> to;
    for (const std::vector<Tensor>& sum : sums) {
      from.push_back(sum[d].const_data());
      to.push_back(TensorAccess::data(sum[d]));
    }
    std::vector<kernels::Reduction> means;
    for (size_t i = 0; i < sums.size() && base::divides(op); ++i)
      if (elements[i])
        means.push_back({.inputs = {&from[i], 1},
                         .outputs = {&to[i], 1},
                         .count = elements[i],
                         .dtype = type,
                         .op = op,
                         .divisor = int64_t(devices)});
    if (!means.empty()) support.kernels.reduce(gpus[d], support.current_stream(gpus[d]), means);
    for (size_t i = 0; i < sums.size() && widened; ++i)
      if (elements[i]) cast(d, sums[i][d], results[i][d]);
  }

  std::vector<Mirrored<Value>> values;
  for (const std::vector<Tensor>& result : results)
    values.emplace_back(std::vector<Value>(result.begin(), result.end()));
  return values;
}

}  // namespace tutti::cross_device
