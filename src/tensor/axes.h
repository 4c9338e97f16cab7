// SPDX-License-Identifier: Apache-2.0
// Sums along axes of a tensor.
#pragma once

#include <tutti/tensor.h>

#include <vector>

namespace tutti::detail {

// The sum of `tensor` along `axes`, which are gone from the result's shape. Elements are added in
// their order in memory: floats in float64, integers exactly. The result is float64, or for
// integers, if that is wanted, int64 that wraps. InvalidArgumentError for an axis that is out of
// range or given twice, and for bools.
enum class IntegerSum { wrapping_int64, float64 };
Tensor sum_along(const Tensor& tensor, const std::vector<int64_t>& axes, IntegerSum integers);

// How many elements go into each element of that sum.
int64_t count_along(const Tensor& tensor, const std::vector<int64_t>& axes);

}  // namespace tutti::detail
