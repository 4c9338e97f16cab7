// SPDX-License-Identifier: Apache-2.0
// The 16-bit floats: which types they are, and conversions between them and float32 on single
// values. The kernels do the same in vector lanes.
#pragma once

#include <tutti/dtype.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace tutti::base {

// What a reduction combines elements of `dtype` in: float32 for the 16-bit floats, else `dtype`.
constexpr DType accumulator_of(DType dtype) {
  (void)size_of(dtype);  // which throws for a value that is not a DType
  return tutti::detail::kDTypes[size_t(dtype)].accumulator;
}
constexpr bool is_half(DType dtype) { return accumulator_of(dtype) != dtype; }

inline uint16_t float16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);         // NaN
  if (magnitude >= (127 + 16) << 23) return uint16_t(sign | 0x7c00);  // too large: infinity
  if (magnitude < (127 - 14) << 23) {
    // Subnormal: adding 0.5 lines the mantissa up with the last bits of a float, which rounds it.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  magnitude += ((15u - 127u) << 23) + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | magnitude >> 13);
}

inline float float_from_float16(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  uint32_t bits = uint32_t(half & 0x7fff) << 13;
  const uint32_t exponent = bits & 0x7c00u << 13;
  bits += (127u - 15u) << 23;
  if (exponent == 0x7c00u << 13) {
    bits += (128u - 16u) << 23;  // infinity or NaN
  } else if (exponent == 0) {
    bits += 1u << 23;  // subnormal: let the subtraction normalise it
    bits = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) - std::bit_cast<float>(113u << 23));
  }
  return std::bit_cast<float>(sign | bits);
}

inline uint16_t bfloat16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);  // NaN, made quiet
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float float_from_bfloat16(uint16_t half) {
  return std::bit_cast<float>(uint32_t(half) << 16);
}

// `value` as a float, inexact results rounded to the neighbour with an odd mantissa: rounding that
// once more, to 16 bits, gives what rounding `value` directly would.
template <class T>
float float_rounded_to_odd(T value) {
  const float nearest = float(value);
  if constexpr (sizeof(T) <= 2) return nearest;
  using Exact = std::conditional_t<std::is_floating_point_v<T>, T, __int128>;
  if (std::isinf(nearest) || std::isnan(nearest)) return nearest;
  const Exact back = Exact(nearest), exact = Exact(value);
  if (back == exact) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const bool away_from_zero = exact < 0 ? back < exact : back > exact;
  if (away_from_zero) --bits;
  return std::bit_cast<float>(bits | 1);
}

}  // namespace tutti::base
