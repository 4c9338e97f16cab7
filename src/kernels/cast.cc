// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/half.h"
#include "base/thread_pool.h"

namespace tutti::kernels {

namespace {

template <class T>
constexpr bool is_half = base::is_half(dtype_of<T>::value);

template <class To, class From>
To convert(From value) {
  if constexpr (is_half<From> && std::is_same_v<To, From>) {
    return value;  // bit for bit
  } else if constexpr (is_half<From>) {
    return convert<To>(float(value));
  } else if constexpr (is_half<To>) {
    if constexpr (std::is_same_v<From, float>) return To(value);
    return To(base::float_rounded_to_odd(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // Both limits are exact as floats, or round to the power of two above, which does not fit
    // either.
    if (std::isnan(value)) return 0;
    if (value <= From(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (value >= From(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    return To(value);
  } else {
    return To(value);
  }
}

constexpr int64_t kChunk = 64 << 10;

}  // namespace

void cast(const void* from, DType from_type, void* to, DType to_type, int64_t count) {
  const auto range = [&](int64_t begin, int64_t end) {
    with_type(from_type, [&]<class From>(From*) {
      with_type(to_type, [&]<class To>(To*) {
        const From* const in = static_cast<const From*>(from);
        To* const out = static_cast<To*>(to);
        for (int64_t i = begin; i < end; ++i) out[i] = convert<To>(in[i]);
      });
    });
  };
  if (count <= kChunk) return range(0, count);
  base::ThreadPool::shared().for_each((count + kChunk - 1) / kChunk, [&](int64_t i) {
    range(i * kChunk, std::min(count, (i + 1) * kChunk));
  });
}

}  // namespace tutti::kernels
