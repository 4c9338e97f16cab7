// SPDX-License-Identifier: Apache-2.0
// What a reduction must give, computed one element at a time and with none of the library's
// arithmetic.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <tutti/reduce_op.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/reduce_op.h"
#include "kernels/cast.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TUTTI_TEST_SANITIZED 1
#else
#define TUTTI_TEST_SANITIZED 0
#endif

namespace tutti::testing {

// The first N values of an enum.
template <class Enum, size_t N>
constexpr std::array<Enum, N> first_values() {
  std::array<Enum, N> values{};
  for (size_t i = 0; i < N; ++i) values[i] = Enum(i);
  return values;
}
inline constexpr auto kDTypes = first_values<DType, detail::kDTypes.size()>();
inline constexpr DType kFloats[] = {DType::float16, DType::bfloat16, DType::float32,
                                    DType::float64};
inline constexpr auto kOps = first_values<ReduceOp, base::kReduceOps.size()>();

inline bool is_defined(ReduceOp op, DType dtype) {
  return dtype != DType::boolean || op == ReduceOp::MIN || op == ReduceOp::MAX;
}

// A binary floating-point format of 16 bits, by the definition of IEEE 754.
template <int kMantissa, int kMinExponent>
struct Narrow {
  static constexpr uint16_t kInfinity = uint16_t(0x7fff >> kMantissa << kMantissa);

  static double value(uint16_t bits) {
    const double sign = bits & 0x8000 ? -1 : 1;
    const int exponent = (bits & 0x7fff) >> kMantissa;
    const int mantissa = bits & ((1 << kMantissa) - 1);
    if ((bits & kInfinity) == kInfinity)
      return mantissa ? std::numeric_limits<double>::quiet_NaN()
                      : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(mantissa, kMinExponent - kMantissa);
    return sign * std::ldexp(mantissa + (1 << kMantissa), exponent - 1 + kMinExponent - kMantissa);
  }

  // Rounds to nearest, ties to even.
  static uint16_t bits(double x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return kInfinity | 1;
    if (std::isinf(x)) return sign | kInfinity;
    if (x == 0) return sign;
    const int exponent = std::max(std::ilogb(x), kMinExponent);
    // In units of the last place. A carry into the next binade, or beyond the largest number into
    // infinity, comes out right by itself.
    const auto units = int64_t(std::nearbyint(std::ldexp(std::abs(x), kMantissa - exponent)));
    const int64_t all = units + (int64_t(exponent - kMinExponent) << kMantissa);
    return sign | uint16_t(std::min<int64_t>(all, kInfinity));
  }
};
using Float16Format = Narrow<10, -14>;
using BFloat16Format = Narrow<7, -126>;

template <class Format>
float widened(uint16_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> t(65536);
    for (size_t i = 0; i < t.size(); ++i) t[i] = float(Format::value(uint16_t(i)));
    return t;
  }();
  return table[bits];
}

// T(N) = T(p) op T(N - p), p the largest power of two below N.
template <class T, class Op>
T tree(std::span<const T> v, const Op& op) {
  if (v.size() == 1) return v[0];
  const size_t p = std::bit_floor(v.size() - 1);
  return op(tree(v.first(p), op), tree(v.subspan(p), op));
}

template <class T>
T combined(ReduceOp op, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = unsigned __int128;  // wide enough that cutting it off is wrapping
    switch (op) {
      case ReduceOp::SUM:
      case ReduceOp::MEAN: return T(U(a) + U(b));
      case ReduceOp::PROD: return T(U(a) * U(b));
      case ReduceOp::MIN: return std::min(a, b);
      case ReduceOp::MAX: return std::max(a, b);
    }
  } else {
    const bool nan = std::isnan(a) || std::isnan(b), zeros = a == 0 && b == 0;
    switch (op) {
      case ReduceOp::SUM:
      case ReduceOp::MEAN: return a + b;
      case ReduceOp::PROD: return a * b;
      case ReduceOp::MIN:
        if (nan) return std::numeric_limits<T>::quiet_NaN();
        return zeros ? (std::signbit(a) ? a : b) : std::min(a, b);
      case ReduceOp::MAX:
        if (nan) return std::numeric_limits<T>::quiet_NaN();
        return zeros ? (std::signbit(a) ? b : a) : std::max(a, b);
    }
  }
  return a;
}

// The bytes of the result of reducing `count` elements of each input.
inline std::vector<std::byte> reference(DType dtype, ReduceOp op,
                                        std::span<const void* const> inputs, size_t count,
                                        int64_t divisor) {
  std::vector<std::byte> out(count * size_of(result_dtype(op, dtype)));
  const size_t n = inputs.size();
  const auto element = [&]<class T>(size_t k, size_t i, T*) {
    T value;
    std::memcpy(&value, static_cast<const T*>(inputs[k]) + i, sizeof(T));
    return value;
  };
  const auto put = [&](size_t i, auto value) {
    std::memcpy(out.data() + i * sizeof(value), &value, sizeof(value));
  };
  const auto floats = [&]<class Stored, class Acc>(Stored* type, Acc*, auto widen, auto narrow) {
    std::vector<Acc> v(n);
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < n; ++k) v[k] = widen(element(k, i, type));
      Acc result = tree<Acc>(v, [&](Acc a, Acc b) { return combined(op, a, b); });
      if (op == ReduceOp::MEAN) result = result / Acc(divisor);
      put(i, narrow(result));
    }
  };
  const auto same = [](auto x) { return x; };
  float* const f = nullptr;
  double* const d = nullptr;
  uint16_t* const h = nullptr;
  if (dtype == DType::float16) {
    floats(h, f, widened<Float16Format>, [](float x) { return Float16Format::bits(x); });
  } else if (dtype == DType::bfloat16) {
    floats(h, f, widened<BFloat16Format>, [](float x) { return BFloat16Format::bits(x); });
  } else if (dtype == DType::float32) {
    floats(f, f, same, same);
  } else if (dtype == DType::float64) {
    floats(d, d, same, same);
  } else {
    kernels::with_type(dtype, [&]<class T>(T* type) {
      if constexpr (std::is_integral_v<T>) {
        for (size_t i = 0; i < count; ++i) {
          T result = element(0, i, type);
          __int128 sum = result;
          for (size_t k = 1; k < n; ++k) {
            const T next = element(k, i, type);
            sum += next;
            result = combined(op, result, next);
          }
          if (op != ReduceOp::MEAN) {
            put(i, result);
          } else if (sizeof(T) <= 2) {
            put(i, float(sum) / float(divisor));
          } else {
            put(i, double(sum) / double(divisor));
          }
        }
      }
    });
  }
  return out;
}

inline bool is_nan(DType dtype, const void* element) {
  const auto as = [&]<class T>(T) {
    T value;
    std::memcpy(&value, element, sizeof(T));
    return value;
  };
  if (dtype == DType::float16) return (as(uint16_t()) & 0x7fff) > Float16Format::kInfinity;
  if (dtype == DType::bfloat16) return (as(uint16_t()) & 0x7fff) > BFloat16Format::kInfinity;
  if (dtype == DType::float32) return std::isnan(as(float()));
  return dtype == DType::float64 && std::isnan(as(double()));
}

// Bit by bit, with every NaN equal to every other.
inline ::testing::AssertionResult same_bits(DType dtype, const void* got, const void* want,
                                            size_t count) {
  const size_t size = size_of(dtype);
  if (count == 0 || std::memcmp(got, want, count * size) == 0) return ::testing::AssertionSuccess();
  const auto *g = static_cast<const std::byte*>(got), *w = static_cast<const std::byte*>(want);
  for (size_t i = 0; i < count; ++i, g += size, w += size) {
    if (std::memcmp(g, w, size) == 0 || (is_nan(dtype, g) && is_nan(dtype, w))) continue;
    uint64_t a = 0, b = 0;
    std::memcpy(&a, g, size);
    std::memcpy(&b, w, size);
    return ::testing::AssertionFailure() << fmt::format(
               "{} element {} of {} has bits {:#x}, expected {:#x}", name(dtype), i, count, a, b);
  }
  return ::testing::AssertionSuccess();
}

// Elements for tests. With `specials`, every fourth is any bit pattern at all, or an edge of the
// type; the other floats are of ordinary size, and sums of them are inexact.
inline void fill_random(DType dtype, void* data, size_t count, uint64_t seed,
                        bool specials = true) {
  std::mt19937_64 random(seed);
  kernels::with_type(dtype, [&]<class T>(T*) {
    T* const out = static_cast<T*>(data);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bits = random();
      const bool special = specials && i % 4 == 3;
      if constexpr (std::is_same_v<T, bool>) {
        out[i] = bits & 1;
      } else if constexpr (std::is_integral_v<T>) {
        out[i] = T(bits);
        if (special)
          out[i] = bits & 1 ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
      } else if constexpr (std::is_floating_point_v<T>) {
        using L = std::numeric_limits<T>;
        const T edges[] = {T(0),     -T(0),          L::infinity(),   -L::infinity(),
                           L::max(), L::quiet_NaN(), L::denorm_min(), -L::min()};
        const T ordinary = T((double(bits >> 11) / double(1ull << 53) - 0.5) * 8);
        out[i] = !special ? ordinary : edges[bits % 8];
      } else {
        if (special)
          out[i].bits = uint16_t(bits);
        else
          out[i] = T(float(int(bits % 4096) - 2048) / 512);
      }
    }
  });
}

}  // namespace tutti::testing
