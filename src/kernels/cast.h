// SPDX-License-Identifier: Apache-2.0
// Conversion between element types in host memory.
#pragma once

#include <tutti/dtype.h>

#include <cstdint>

namespace tutti::kernels {

// Calls f with a null pointer of the C++ type that `dtype` stands for.
template <class F>
decltype(auto) with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::boolean: return f(static_cast<bool*>(nullptr));
    case DType::int8: return f(static_cast<int8_t*>(nullptr));
    case DType::int16: return f(static_cast<int16_t*>(nullptr));
    case DType::int32: return f(static_cast<int32_t*>(nullptr));
    case DType::int64: return f(static_cast<int64_t*>(nullptr));
    case DType::uint8: return f(static_cast<uint8_t*>(nullptr));
    case DType::uint16: return f(static_cast<uint16_t*>(nullptr));
    case DType::uint32: return f(static_cast<uint32_t*>(nullptr));
    case DType::uint64: return f(static_cast<uint64_t*>(nullptr));
    case DType::float16: return f(static_cast<float16*>(nullptr));
    case DType::bfloat16: return f(static_cast<bfloat16*>(nullptr));
    case DType::float32: return f(static_cast<float*>(nullptr));
    case DType::float64: return f(static_cast<double*>(nullptr));
  }
  detail::throw_not_a("DType", int(dtype));
}

// to[i] = from[i] for `count` elements, by the rules of Tensor::to.
void cast(const void* from, DType from_type, void* to, DType to_type, int64_t count);

}  // namespace tutti::kernels
