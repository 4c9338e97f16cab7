// Sums along axes of a tensor.
#pragma once

#include <tutti/tensor.h>

#include <vector>

namespace tutti::detail {

// The sum of `tensor` along `axes`, which are gone from the result's shape: float64 for floats,
// int64 (wrapping) for integers. Elements are added in their order in memory. InvalidArgumentError
// for an axis that is out of range or given twice, and for bools.
Tensor sum_along(const Tensor& tensor, const std::vector<int64_t>& axes);

// How many elements go into each element of that sum.
int64_t count_along(const Tensor& tensor, const std::vector<int64_t>& axes);

}  // namespace tutti::detail
