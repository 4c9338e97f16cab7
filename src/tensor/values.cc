// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/regroup.h>
#include <tutti/values.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "base/context.h"
#include "base/half.h"
#include "kernels/cast.h"
#include "kernels/gpu.h"
#include "tensor/tensor_impl.h"

namespace tutti {

namespace detail {

int local_replica_id() { return base::local_replica_id(); }

void throw_component_out_of_range(size_t index, size_t size) {
  throw OutOfRangeError(
      fmt::format("component {} of a distributed value with {} components", index, size));
}

void throw_not_in_replica(size_t size) {
  throw InvalidArgumentError(fmt::format(
      "a PerReplica value with {} components has one value only inside a replica function; "
      "index it, or reduce it first",
      size));
}

void throw_ragged(const char* what, size_t replica, size_t got, size_t expected) {
  throw InvalidArgumentError(fmt::format("regroup: replica {} returned {} {}, replica 0 one of {}",
                                         replica, what, got, expected));
}

size_t component_on_current_device(const std::vector<std::string>& devices) {
  const auto found = std::ranges::find(devices, current_device());
  return found == devices.end() ? 0 : size_t(found - devices.begin());
}

IndexedSlices clone_to(const IndexedSlices& slices, Device& device) {
  return {clone_to(slices.values, device), clone_to(slices.indices, device), slices.dense_shape};
}

Value clone_to(const Value& value, Device& device) {
  if (value.is_sparse()) return clone_to(value.slices(), device);
  return clone_to(value.tensor(), device);
}

}  // namespace detail

namespace {

std::vector<int64_t> index_values(const IndexedSlices& slices) {
  return slices.indices.to(DType::int64).to_vector<int64_t>();
}

// out row rows[i] += values row i, in order, in the accumulation type of the values. `out` starts
// as zeros.
Tensor sum_rows(const IndexedSlices& slices, const std::vector<int64_t>& rows,
                const Shape& out_shape) {
  const bool half = base::is_half(slices.dtype());
  const DType acc = base::accumulator_of(slices.dtype());
  if (acc == DType::boolean) throw InvalidArgumentError("IndexedSlices: bool values have no sum");
  const Tensor values = half ? slices.values.to(acc) : slices.values;
  const Tensor out = Tensor::zeros(out_shape, acc, slices.device());
  const int64_t width = rows.empty() ? 0 : values.num_elements() / int64_t(rows.size());
  if (const int gpu = detail::TensorAccess::device(out).gpu(); gpu >= 0) {
    kernels::gpu::update_rows(gpu, kernels::Update::add, acc, out.data(), values.const_data(),
                              width, rows);
    return half ? out.to(slices.dtype()) : out;
  }
  kernels::with_type(acc, [&]<class T>(T*) {
    if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
      using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;  // integers wrap
      const T* const in = values.span<const T>().data();
      T* const sum = out.span<T>().data();
      for (size_t i = 0; i < rows.size(); ++i)
        for (int64_t j = 0; j < width; ++j) {
          T& target = sum[rows[i] * width + j];
          target = T(Sum(target) + Sum(in[int64_t(i) * width + j]));
        }
    }
  });
  return half ? out.to(slices.dtype()) : out;
}

}  // namespace

void IndexedSlices::validate(std::string_view what) const {
  const auto fail = [&](const std::string& why) {
    throw InvalidArgumentError(fmt::format("{}: {}", what, why));
  };
  if (!values || !indices) fail("the IndexedSlices hold no values or no indices");
  if (indices.dtype() != DType::int32 && indices.dtype() != DType::int64)
    fail(fmt::format("the indices of IndexedSlices are {}, expected int32 or int64",
                     name(indices.dtype())));
  if (indices.shape().rank() != 1 || values.shape().rank() < 1 ||
      values.shape()[0] != indices.shape()[0])
    fail(fmt::format(
        "IndexedSlices with values of shape {} and indices of shape {}: expected as many rows "
        "as indices",
        values.shape().to_string(), indices.shape().to_string()));
  if (values.device() != indices.device())
    fail(fmt::format("IndexedSlices with values on {} and indices on {}", values.device(),
                     indices.device()));
  if (dense_shape) {
    const bool fits =
        dense_shape->rank() == values.shape().rank() &&
        std::equal(dense_shape->begin() + 1, dense_shape->end(), values.shape().begin() + 1);
    if (!fits)
      fail(fmt::format("IndexedSlices with values of shape {} do not fit the dense_shape {}",
                       values.shape().to_string(), dense_shape->to_string()));
  }
}

Tensor IndexedSlices::to_dense() const {
  validate("to_dense");
  if (!dense_shape)
    throw InvalidArgumentError(
        "to_dense: the IndexedSlices have no dense_shape, so their size is unknown");
  const std::vector<int64_t> rows = index_values(*this);
  for (const int64_t row : rows)
    if (row < 0 || row >= (*dense_shape)[0])
      throw InvalidArgumentError(fmt::format("to_dense: index {} lies outside the dense_shape {}",
                                             row, dense_shape->to_string()));
  return sum_rows(*this, rows, *dense_shape);
}

IndexedSlices IndexedSlices::merged() const {
  validate("merged");
  std::vector<int64_t> rows = index_values(*this);
  std::vector<int64_t> unique = rows;
  std::ranges::sort(unique);
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  for (int64_t& row : rows) row = std::ranges::lower_bound(unique, row) - unique.begin();
  std::vector<int64_t> extents(values.shape().begin(), values.shape().end());
  extents[0] = int64_t(unique.size());
  Tensor new_indices = Tensor::of<int64_t>(std::span<const int64_t>(unique), device());
  if (indices.dtype() != DType::int64) new_indices = new_indices.to(indices.dtype());
  return {sum_rows(*this, rows, Shape(std::move(extents))), new_indices, dense_shape};
}

IndexedSlices IndexedSlices::clone_to(std::string_view device) const {
  return detail::clone_to(*this, device::find(device, "clone_to"));
}

const Tensor& Value::tensor() const {
  if (is_sparse())
    throw InvalidArgumentError("the value is IndexedSlices, not a Tensor; see to_dense");
  return std::get<Tensor>(value_);
}
const IndexedSlices& Value::slices() const {
  if (!is_sparse()) throw InvalidArgumentError("the value is a Tensor, not IndexedSlices");
  return std::get<IndexedSlices>(value_);
}
const std::string& Value::device() const {
  return is_sparse() ? slices().device() : tensor().device();
}
DType Value::dtype() const { return is_sparse() ? slices().dtype() : tensor().dtype(); }
Value Value::clone_to(std::string_view device) const {
  return detail::clone_to(*this, device::find(device, "clone_to"));
}

}  // namespace tutti
