// SPDX-License-Identifier: Apache-2.0
// What a variable's update makes of an element and the value for it, on the host and on GPUs.
#pragma once

#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define TUTTI_HOST_DEVICE __host__ __device__
#else
#define TUTTI_HOST_DEVICE
#endif

namespace tutti::kernels {

enum class Update : int { assign, add, sub, mul, div, min, max };

// Integers wrap, and NaN wins. Integers are not divided by 0; bools can only be assigned.
template <class T>
TUTTI_HOST_DEVICE T updated(Update update, T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return b;
  } else {
    using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
    switch (update) {
      case Update::add: return T(Wide(a) + Wide(b));
      case Update::sub: return T(Wide(a) - Wide(b));
      case Update::mul: return T(Wide(a) * Wide(b));
      case Update::div:
        if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
          if (b == T(-1)) return T(Wide(0) - Wide(a));  // the one quotient that may not fit
        return T(a / b);
      case Update::min: return b < a || b != b ? b : a;
      case Update::max: return a < b || b != b ? b : a;
      case Update::assign: break;
    }
    return b;
  }
}

}  // namespace tutti::kernels
