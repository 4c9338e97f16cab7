// SPDX-License-Identifier: Apache-2.0
#include "tensor/axes.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include "kernels/cast.h"
#include "tensor/tensor_impl.h"

namespace tutti::detail {

namespace {

// For each axis of `shape`, whether it is summed over.
std::vector<bool> marked(const Shape& shape, const std::vector<int64_t>& axes) {
  std::vector<bool> result(shape.rank());
  for (const int64_t axis : axes) {
    const size_t at = shape.axis(axis);
    if (result[at]) throw InvalidArgumentError(fmt::format("axis {} is given twice", axis));
    result[at] = true;
  }
  return result;
}

}  // namespace

int64_t count_along(const Tensor& tensor, const std::vector<int64_t>& axes) {
  const std::vector<bool> summed = marked(tensor.shape(), axes);
  int64_t count = 1;
  for (size_t i = 0; i < summed.size(); ++i)
    if (summed[i]) count *= tensor.shape()[i];
  return count;
}

Tensor sum_along(const Tensor& tensor, const std::vector<int64_t>& axes, IntegerSum integers) {
  if (tensor.dtype() == DType::boolean) throw InvalidArgumentError("bool has no SUM along an axis");
  if (!TensorAccess::device(tensor).in_host_memory())
    return sum_along(tensor.clone_to(host_of(tensor.device())), axes, integers)
        .clone_to(tensor.device());
  const Shape& shape = tensor.shape();
  const std::vector<bool> summed = marked(shape, axes);
  std::vector<int64_t> kept;
  for (size_t i = 0; i < shape.rank(); ++i)
    if (!summed[i]) kept.push_back(shape[i]);

  // How far a step along each axis moves in the result; not at all along one that is summed over.
  std::vector<int64_t> stride(shape.rank(), 0);
  int64_t next = 1;
  for (size_t i = shape.rank(); i-- > 0;)
    if (!summed[i]) {
      stride[i] = next;
      next *= shape[i];
    }

  const bool whole = is_integer(tensor.dtype()) && integers == IntegerSum::wrapping_int64;
  const Tensor result =
      Tensor::empty(Shape(kept), whole ? DType::int64 : DType::float64, tensor.device());
  kernels::with_type(tensor.dtype(), [&]<class T>(T*) {
    using Sum = std::conditional_t<std::is_integral_v<T>, __int128, double>;
    std::vector<Sum> sums(size_t(result.num_elements()), Sum(0));
    std::vector<int64_t> at(shape.rank(), 0);
    int64_t target = 0;
    for (const T x : tensor.span<const T>()) {
      if constexpr (std::is_class_v<T>)
        sums[size_t(target)] += float(x);
      else
        sums[size_t(target)] += Sum(x);
      for (size_t i = shape.rank(); i-- > 0;) {  // to the next element, the last axis fastest
        target += stride[i];
        if (++at[i] < shape[i]) break;
        target -= stride[i] * shape[i];
        at[i] = 0;
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      if (whole)
        result.span<int64_t>()[i] = int64_t(sums[i]);
      else
        result.span<double>()[i] = double(sums[i]);
    }
  });
  return result;
}

}  // namespace tutti::detail
