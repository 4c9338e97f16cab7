#include "tensor/axes.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include "kernels/cast.h"

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

Tensor sum_along(const Tensor& tensor, const std::vector<int64_t>& axes) {
  if (tensor.dtype() == DType::boolean) throw InvalidArgumentError("bool has no SUM along an axis");
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

  const bool floating = is_floating(tensor.dtype());
  const Tensor wide = tensor.to(floating ? DType::float64 : DType::int64);
  const Tensor result = Tensor::zeros(Shape(kept), wide.dtype(), tensor.device());
  const auto add = [&]<class T>(T) {
    using Sum = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>;
    const std::span<const T> in = wide.span<const T>();
    const std::span<T> out = result.span<T>();
    std::vector<int64_t> at(shape.rank(), 0);
    int64_t target = 0;
    for (const T x : in) {
      out[size_t(target)] = T(Sum(out[size_t(target)]) + Sum(x));
      for (size_t i = shape.rank(); i-- > 0;) {  // to the next element, the last axis fastest
        target += stride[i];
        if (++at[i] < shape[i]) break;
        target -= stride[i] * shape[i];
        at[i] = 0;
      }
    }
  };
  floating ? add(double()) : add(int64_t());
  return result;
}

}  // namespace tutti::detail
