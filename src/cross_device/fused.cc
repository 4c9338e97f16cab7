// SPDX-License-Identifier: Apache-2.0
#include "cross_device/fused.h"

#include <algorithm>
#include <map>
#include <ranges>

#include "base/half.h"
#include "kernels/gpu.h"
#include "kernels/reduce.h"
#include "tensor/tensor_impl.h"

namespace tutti::cross_device {

namespace {

using detail::Device;
using detail::TensorAccess;

// Of an input, which may be dense values, too: clang 14 cannot compile std::views of GCC 12.
const Tensor& tensor_of(const Tensor& tensor) { return tensor; }
const Tensor& tensor_of(const Value& value) { return value.tensor(); }

// Collects what the kernel is to do, and keeps alive what it reads.
class Work {
 public:
  // One empty tensor per destination.
  std::vector<Tensor> make_outputs(const Shape& shape, DType dtype,
                                   const Destinations& destinations) {
    std::vector<Tensor> outputs;
    outputs.reserve(destinations.size());
    for (Device* device : TensorAccess::devices(destinations))
      outputs.push_back(device->gpu() < 0 ? TensorAccess::empty(shape, dtype, *device)
                                          : make_on_gpu(shape, dtype, *device));
    return outputs;
  }

  void reserve(size_t reductions, size_t replicas) {
    reductions_.reserve(reductions);
    gpus_.reserve(reductions);
    sizes_.reserve(reductions);
    from_.reserve(reductions * replicas);
    to_.reserve(reductions * replicas);
  }

  // Adds a reduction of `inputs`, which must live until it has run. Its results go to each output,
  // from byte `at_byte` on. It runs where the first output is: on that GPU, or in host memory.
  // Inputs elsewhere are copied there first, and the results are copied to outputs elsewhere.
  void add(ReduceOp op, const auto& inputs, std::span<const Tensor> outputs, size_t at_byte,
           int64_t divisor) {
    const Tensor& first = tensor_of(*std::ranges::begin(inputs));
    const int64_t count = first.num_elements();
    if (count == 0) return;
    Device& place = TensorAccess::device(outputs[0]);
    const int gpu = place.gpu();
    const DType dtype = first.dtype();
    gpus_.push_back(gpu);
    reductions_.push_back({.inputs = {},
                           .outputs = {},
                           .count = count,
                           .dtype = dtype,
                           .op = op,
                           .divisor = divisor});
    const size_t from = from_.size();
    for (const auto& input : inputs) {
      const Tensor& t = tensor_of(input);
      from_.push_back(TensorAccess::device(t).gpu() == gpu ? t.const_data()
                                                           : keep(clone_to(t, place)));
    }
    size_t written = 0;
    for (const Tensor& t : outputs) {
      if (TensorAccess::device(t).gpu() != gpu) {
        copies_.push_back(
            {outputs[0], t, at_byte, size_t(count) * size_of(result_dtype(op, dtype))});
        continue;
      }
      to_.push_back(static_cast<std::byte*>(TensorAccess::data(t)) + at_byte);
      ++written;
    }
    sizes_.push_back({from_.size() - from, written});
  }

  // Holds on to `tensor` until this has been run.
  const void* keep(Tensor tensor) {
    kept_.push_back(std::move(tensor));
    return kept_.back().const_data();
  }

  void run() {
    const void* const* from = from_.data();
    void* const* to = to_.data();
    for (size_t i = 0; i < reductions_.size(); ++i) {
      reductions_[i].inputs = {from, sizes_[i].first};
      reductions_[i].outputs = {to, sizes_[i].second};
      from += sizes_[i].first;
      to += sizes_[i].second;
    }
    while (!reductions_.empty()) run_on(gpus_[0]);
    for (const Copy& copy : copies_) copy.run();
  }

 private:
  // On a GPU the call takes less time than all the allocations of a long list would, so its small
  // tensors share blocks; a tensor that is kept holds on to kShared bytes at most.
  static constexpr size_t kShared = 256 << 10, kSmall = 32 << 10;
  struct Block {
    std::shared_ptr<void> memory;
    size_t used = kShared;
  };

  Tensor make_on_gpu(const Shape& shape, DType dtype, Device& device) {
    const size_t bytes = size_t(shape.num_elements()) * size_of(dtype);
    if (bytes == 0 || bytes > kSmall || ++small_outputs_ <= kFew)
      return TensorAccess::empty(shape, dtype, device);
    Block& block = blocks_[&device];
    if (kShared - block.used < bytes) block = {device.allocate(kShared), 0};
    std::shared_ptr<void> memory(block.memory,
                                 static_cast<std::byte*>(block.memory.get()) + block.used);
    block.used = std::min(kShared, (block.used + bytes + 255) / 256 * 256);
    void* const data = memory.get();
    return TensorAccess::wrap(std::move(memory), data, shape, dtype, device, false);
  }
  static constexpr int kFew = 16;

  struct Copy {
    Tensor from, to;
    size_t at_byte, bytes;

    void run() const {
      detail::copy_runs(
          TensorAccess::device(to), static_cast<std::byte*>(TensorAccess::data(to)) + at_byte,
          bytes, TensorAccess::device(from),
          static_cast<const std::byte*>(from.const_data()) + at_byte, bytes, bytes, 1);
    }
  };

  // All that is to be done on one GPU, or, with -1, by the host.
  void run_on(int gpu) {
    std::vector<kernels::Reduction> others;
    std::vector<int> other_gpus;
    if (std::ranges::any_of(gpus_, [&](int c) { return c != gpu; })) {
      std::vector<kernels::Reduction> here;
      for (size_t i = 0; i < reductions_.size(); ++i) {
        (gpus_[i] == gpu ? here : others).push_back(reductions_[i]);
        if (gpus_[i] != gpu) other_gpus.push_back(gpus_[i]);
      }
      reductions_ = std::move(here);
    }
    if (gpu < 0)
      kernels::reduce(reductions_);
    else
      kernels::gpu::reduce(gpu, reductions_);
    reductions_ = std::move(others);
    gpus_ = std::move(other_gpus);
  }

  std::vector<kernels::Reduction> reductions_;
  std::vector<int> gpus_;  // where each happens
  std::vector<std::pair<size_t, size_t>> sizes_;
  std::vector<const void*> from_;
  std::vector<void*> to_;
  std::vector<Tensor> kept_;
  std::vector<Copy> copies_;
  std::map<Device*, Block> blocks_;
  int small_outputs_ = 0;
};

// `inputs` are Tensors, and live until the work has been run.
Mirrored<Value> add_dense(Work& work, ReduceOp op, const auto& inputs,
                          const Destinations& destinations, int64_t replicas) {
  const Tensor& first = tensor_of(*std::ranges::begin(inputs));
  const DType dtype = result_dtype(op, first.dtype());
  std::vector<Tensor> outputs = work.make_outputs(first.shape(), dtype, destinations);
  work.add(op, inputs, outputs, 0, replicas);
  return Mirrored<Value>(std::vector<Value>(std::make_move_iterator(outputs.begin()),
                                            std::make_move_iterator(outputs.end())));
}

// Values and indices end to end in replica order. The mean divides the values; the indices stay.
Mirrored<Value> add_sparse(Work& work, ReduceOp op, const PerReplica<Value>& value,
                           const Destinations& destinations, int64_t replicas) {
  const IndexedSlices& first = value[0].slices();
  DType index_type = first.indices.dtype();
  const std::optional<Shape>* dense_shape = &first.dense_shape;
  std::vector<int64_t> extents(first.values.shape().begin(), first.values.shape().end());
  extents[0] = 0;
  for (const Value& v : value) {
    extents[0] += v.slices().values.shape()[0];
    if (v.slices().indices.dtype() != index_type) index_type = DType::int64;
    if (!*dense_shape) dense_shape = &v.slices().dense_shape;
  }
  const DType dtype = result_dtype(op, first.dtype());
  const std::vector<Tensor> values = work.make_outputs(Shape(extents), dtype, destinations);
  const std::vector<Tensor> indices =
      work.make_outputs(Shape{extents[0]}, index_type, destinations);
  size_t value_at = 0, index_at = 0;
  for (const Value& v : value) {
    const IndexedSlices& slices = v.slices();
    const Tensor rows =
        slices.indices.dtype() == index_type ? slices.indices : slices.indices.to(index_type);
    work.keep(rows);
    work.add(op, std::span(&slices.values, 1), values, value_at, replicas);
    work.add(ReduceOp::SUM, std::span(&rows, 1), indices, index_at, 1);
    value_at += size_t(slices.values.num_elements()) * size_of(dtype);
    index_at += rows.num_bytes();
  }
  std::vector<Value> results;
  for (size_t i = 0; i < values.size(); ++i)
    results.push_back(IndexedSlices{values[i], indices[i], *dense_shape});
  return Mirrored<Value>(std::move(results));
}

// Dense and sparse components of one value. 16-bit floats are widened here, so that repeated rows
// and the sum over the replicas together are rounded once.
Mirrored<Value> reduce_mixed(ReduceOp op, const PerReplica<Value>& value,
                             const Destinations& destinations) {
  const DType dtype = value[0].dtype();
  const auto widened = [&](const Tensor& t) {
    return base::is_half(dtype) ? t.to(base::accumulator_of(dtype)) : t;
  };
  std::vector<Tensor> inputs;
  for (const Value& v : value) {
    if (!v.is_sparse()) {
      inputs.push_back(widened(v.tensor()));
      continue;
    }
    IndexedSlices slices = v.slices();
    slices.values = widened(slices.values);
    inputs.push_back(slices.to_dense());
  }
  Work work;
  const Mirrored<Value> result = add_dense(work, op, inputs, destinations, int64_t(inputs.size()));
  work.run();
  if (!base::is_half(dtype)) return result;
  return result.map([&](const Value& v) { return Value(v.tensor().to(dtype)); });
}

Mirrored<Value> add(Work& work, ReduceOp op, const PerReplica<Value>& value,
                    const Destinations& destinations, int64_t replicas) {
  const auto sparse = size_t(std::ranges::count_if(value, &Value::is_sparse));
  if (!replicas) replicas = int64_t(value.size());
  if (sparse == value.size()) return add_sparse(work, op, value, destinations, replicas);
  if (sparse > 0) return reduce_mixed(op, value, destinations);
  return add_dense(work, op, value, destinations, replicas);
}

}  // namespace

bool is_sparse(const PerReplica<Value>& value) {
  return std::ranges::all_of(value, &Value::is_sparse);
}

std::vector<Mirrored<Value>> fused_reduce(ReduceOp op,
                                          std::span<const ValueDestinationPair> pairs) {
  Work work;
  if (!pairs.empty()) work.reserve(pairs.size(), pairs[0].first.size());
  std::vector<Mirrored<Value>> results;
  results.reserve(pairs.size());
  for (const auto& [value, destinations] : pairs)
    results.push_back(add(work, op, value, destinations, 0));
  work.run();
  return results;
}

Mirrored<Value> fused_reduce(ReduceOp op, const PerReplica<Value>& value,
                             const Destinations& destinations, int64_t replicas) {
  Work work;
  Mirrored<Value> result = add(work, op, value, destinations, replicas);
  work.run();
  return result;
}

}  // namespace tutti::cross_device
