// The element types of tensors, and the two 16-bit floats that C++20 lacks.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <string_view>
#include <type_traits>

#pragma GCC visibility push(default)

namespace tutti {

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
}  // namespace detail

// "float32", "bool", ...
std::string_view name(DType dtype);
std::ostream& operator<<(std::ostream& os, DType dtype);

// Bytes per element.
constexpr size_t size_of(DType dtype) {
  constexpr uint8_t sizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8};
  if (size_t(dtype) >= std::size(sizes)) detail::throw_not_a("DType", int(dtype));
  return sizes[size_t(dtype)];
}

bool is_floating(DType dtype);
bool is_integer(DType dtype);  // bool is not

// IEEE binary16. Conversion from float rounds to nearest, ties to even.
struct float16 {
  uint16_t bits = 0;

  float16() = default;
  explicit float16(float value);
  explicit operator float() const;
  friend bool operator==(float16 a, float16 b) { return float(a) == float(b); }
};

// The upper half of a float32. Conversion from float rounds to nearest, ties to even.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value);
  explicit operator float() const;
  friend bool operator==(bfloat16 a, bfloat16 b) { return float(a) == float(b); }
};

// dtype_of<T>::value is the DType of the C++ type T. Specialise it for a type of your own that has
// the same size and layout as one of the DTypes.
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
