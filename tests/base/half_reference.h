// SPDX-License-Identifier: Apache-2.0
// 16-bit floats worked out in double arithmetic, to hold the library's bit manipulations against.
#pragma once

#include <cmath>
#include <cstdint>

namespace tutti::testing {

struct HalfFormat {
  int mantissa_bits;
  int bias;

  uint16_t infinity() const { return uint16_t(0x7fff >> mantissa_bits << mantissa_bits); }

  // Infinity decodes as the power of two that would come next, which is what rounding sees.
  double decode(uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const double fraction = std::ldexp(bits & ((1 << mantissa_bits) - 1), -mantissa_bits);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return bits & 0x8000 ? -magnitude : magnitude;
  }

  // To nearest, ties to even. `value` is not NaN. A long double holds every element type exactly.
  uint16_t encode(long double value) const {
    const long double magnitude = std::abs(value);
    uint16_t below = 0, above = infinity();
    if (magnitude >= decode(above)) {
      below = above;
    } else {
      while (above - below > 1) {
        const uint16_t middle = uint16_t((below + above) / 2);
        (decode(middle) <= magnitude ? below : above) = middle;
      }
      const double midpoint = (decode(below) + decode(above)) / 2;
      if (magnitude > midpoint || (magnitude == midpoint && below % 2 == 1)) below = above;
    }
    return uint16_t(below | (std::signbit(value) ? 0x8000 : 0));
  }
};

inline constexpr HalfFormat kFloat16{10, 15};
inline constexpr HalfFormat kBfloat16{7, 127};

}  // namespace tutti::testing
