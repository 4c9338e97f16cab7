// SPDX-License-Identifier: Apache-2.0
// The element types of tensors, and the two 16-bit floats that C++20 lacks.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string_view>
#include <type_traits>

#pragma GCC visibility push(default)

namespace tutti {

// The type of a tensor's elements; dtype_of has that of a C++ type.
enum class DType : uint8_t {
  boolean,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
};

namespace detail {

// InvalidArgumentError for a value that an enum does not have: "99 is not a DType".
[[noreturn]] void throw_not_a(const char* type, int value);

enum class NumberKind : uint8_t { logical, signed_integer, unsigned_integer, floating };

struct DTypeFacts {
  const char* name;
  uint8_t size;  // bytes per element; 0: not a DType
  NumberKind kind;
  DType accumulator;  // what a reduction combines elements in
  DType mean;         // the type of their MEAN
};

// The facts of `dtype`. What is not here is a switch without a default, so that the compiler names
// what a new DType needs.
constexpr DTypeFacts facts_of(DType dtype) {
  using enum DType;
  using enum NumberKind;
  switch (dtype) {
    case boolean: return {"bool", 1, logical, boolean, boolean};
    case int8: return {"int8", 1, signed_integer, int8, float32};
    case int16: return {"int16", 2, signed_integer, int16, float32};
    case int32: return {"int32", 4, signed_integer, int32, float64};
    case int64: return {"int64", 8, signed_integer, int64, float64};
    case uint8: return {"uint8", 1, unsigned_integer, uint8, float32};
    case uint16: return {"uint16", 2, unsigned_integer, uint16, float32};
    case uint32: return {"uint32", 4, unsigned_integer, uint32, float64};
    case uint64: return {"uint64", 8, unsigned_integer, uint64, float64};
    case float16: return {"float16", 2, floating, float32, float16};
    case bfloat16: return {"bfloat16", 2, floating, float32, bfloat16};
    case float32: return {"float32", 4, floating, float32, float32};
    case float64: return {"float64", 8, floating, float64, float64};
  }
  return {};
}

constexpr size_t num_dtypes() {
  size_t n = 0;
  while (facts_of(DType(n)).size != 0) ++n;
  return n;
}

// The same as a table, for a look-up without branches. Every binary has its own.
[[gnu::visibility("hidden")]] inline constexpr auto kDTypes = [] {
  std::array<DTypeFacts, num_dtypes()> table{};
  for (size_t i = 0; i < table.size(); ++i) table[i] = facts_of(DType(i));
  return table;
}();

// false for a value that is not a DType.
constexpr bool has_kind(DType dtype, NumberKind kind) {
  return size_t(dtype) < kDTypes.size() && kDTypes[size_t(dtype)].kind == kind;
}

}  // namespace detail

// "float32", "bool", ...
std::string_view name(DType dtype);
std::ostream& operator<<(std::ostream& os, DType dtype);

// Bytes per element.
constexpr size_t size_of(DType dtype) {
  if (size_t(dtype) >= detail::kDTypes.size()) detail::throw_not_a("DType", int(dtype));
  return detail::kDTypes[size_t(dtype)].size;
}

// bool is neither.
constexpr bool is_floating(DType dtype) {
  return detail::has_kind(dtype, detail::NumberKind::floating);
}
constexpr bool is_integer(DType dtype) {
  return detail::has_kind(dtype, detail::NumberKind::signed_integer) ||
         detail::has_kind(dtype, detail::NumberKind::unsigned_integer);
}

// IEEE binary16. Conversion from float rounds to nearest, ties to even.
struct float16 {
  uint16_t bits = 0;  // sign, exponent, fraction

  float16() = default;
  explicit float16(float value);
  explicit operator float() const;
  friend bool operator==(float16 a, float16 b) { return float(a) == float(b); }
};

// The upper half of a float32. Conversion from float rounds to nearest, ties to even.
struct bfloat16 {
  uint16_t bits = 0;  // sign, exponent, fraction

  bfloat16() = default;
  explicit bfloat16(float value);
  explicit operator float() const;
  friend bool operator==(bfloat16 a, bfloat16 b) { return float(a) == float(b); }
};

// `dtype_of<T>::value` is the DType of the C++ type T. Specialise it for a type of your own that
// has the same size and layout as one of the DTypes.
template <class T>
struct dtype_of {};

template <std::integral T>
struct dtype_of<T> {
 private:
  static constexpr int log2_size = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;

 public:
  static constexpr DType value =
      std::is_same_v<T, bool>
          ? DType::boolean
          : DType(int(std::is_signed_v<T> ? DType::int8 : DType::uint8) + log2_size);
};
template <>
struct dtype_of<float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct dtype_of<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::float64;
};

// A C++ type that has a DType.
template <class T>
concept Element = requires {
  { dtype_of<std::remove_cv_t<T>>::value } -> std::convertible_to<DType>;
};

}  // namespace tutti

#pragma GCC visibility pop
