// SPDX-License-Identifier: Apache-2.0
// Tensor::to, for every pair of element types, against arithmetic in long double, which holds every
// element exactly.
#include "kernels/cast.h"

#include <tutti/device.h>
#include <tutti/tensor.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/half_reference.h"
#include "support/expect.h"

namespace tutti {
namespace {

using testing::HalfFormat;
using testing::kBfloat16;
using testing::kFloat16;

template <class T>
constexpr bool is_half = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;
template <class T>
constexpr bool is_float = is_half<T> || std::is_floating_point_v<T>;

template <class T>
long double exact(T value) {
  if constexpr (is_half<T>)
    return float(value);
  else
    return value;
}

template <class T>
std::vector<T> edge_values() {
  std::vector<T> values;
  if constexpr (std::is_same_v<T, bool>) {
    return {false, true};
  } else if constexpr (std::is_integral_v<T>) {
    using Limits = std::numeric_limits<T>;
    for (const T value : {T(0), T(1), T(2), T(-1), T(127), T(128), T(255), Limits::min(),
                          T(Limits::min() + 1), Limits::max(), T(Limits::max() - 1)})
      values.push_back(value);
    // Just above a tie of float32, bfloat16 or float16, by less than the next format up can see.
    for (int shift = 8; shift < int(8 * sizeof(T)) - 2; ++shift)
      for (const int below : {8, 11, 24})
        if (shift > below) {
          values.push_back(T((T(1) << shift) + (T(1) << (shift - below)) + 1));
          values.push_back(T((T(1) << shift) + (T(1) << (shift - below))));
          values.push_back(T(-values.back()));
        }
  } else {
    for (const double value :
         {0.0, 0.25, 0.5, 0.999, 1.0, 1.5, 2.5, 126.9, 127.0, 127.5, 128.0, 128.9, 129.0, 255.0,
          255.9, 256.0, 32767.0, 32768.0, 65504.0, 65519.99, 65520.0, 65535.5, 65536.0,
          2147483520.0, 2147483647.0, 2147483648.0, 4294967295.0, 4294967296.0, 0x1p53 + 2, 0x1p62,
          0x1p63, 0x1p63 - 1024, 0x1p64, 0x1p64 - 2048, 0x1p65, 1e30, 3.38e38, 3.3961775e38,
          3.4028234e38, 3.5e38, 1e300, 1e-300, 5e-324, 1e-45, 1e-40, 6e-8, 2.9e-8, 3e-8,
          // Twice rounded, these end up on the other side.
          1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11 - 0x1p-40, 1 + 0x3p-11 - 0x1p-40, 1 + 0x1p-8 + 0x1p-40,
          1 + 0x3p-8 - 0x1p-40, 65520 - 0x1p-20, 0x1p-25 + 0x1p-60, 0x1.8p-24 - 0x1p-60,
          0x1p-134 + 0x1p-160, double(std::numeric_limits<double>::infinity()), double(NAN)})
      for (const double sign : {1.0, -1.0}) {
        if constexpr (is_half<T>)
          values.push_back(T(float(sign * value)));
        else
          values.push_back(T(sign * value));
      }
  }
  return values;
}

template <class To, class From>
To expected(From from) {
  const long double value = exact(from);
  if constexpr (std::is_same_v<To, bool>) {
    return !(value == 0);
  } else if constexpr (std::is_integral_v<To> && is_float<From>) {
    if (std::isnan(value)) return 0;
    const long double whole = std::trunc(value);
    if (whole < (long double)(std::numeric_limits<To>::min()))
      return std::numeric_limits<To>::min();
    if (whole > (long double)(std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
    return To(whole);
  } else if constexpr (std::is_integral_v<To>) {
    return To(uint64_t(from));
  } else if constexpr (is_half<To>) {
    const HalfFormat format = std::is_same_v<To, float16> ? kFloat16 : kBfloat16;
    if (std::isnan(value)) return To(NAN);
    To result;
    result.bits = format.encode(value);
    return result;
  } else {
    return To(value);
  }
}

template <class T>
bool same(T a, T b) {
  if (std::isnan(exact(a)) || std::isnan(exact(b)))
    return std::isnan(exact(a)) && std::isnan(exact(b));
  return exact(a) == exact(b) && std::signbit(exact(a)) == std::signbit(exact(b));
}

template <class T>
Tensor tensor_of(const std::vector<T>& values) {
  const Tensor tensor = Tensor::empty({int64_t(values.size())}, dtype_of<T>::value);
  std::copy(values.begin(), values.end(), tensor.span<T>().begin());
  return tensor;
}

TEST(TensorTo, ConvertsEdgeValuesOfEveryTypeToEveryType) {
  for (size_t f = 0; f < detail::kDTypes.size(); ++f)
    kernels::with_type(DType(f), [&]<class From>(From*) {
      const std::vector<From> values = edge_values<From>();
      const Tensor from = tensor_of(values);
      for (size_t t = 0; t < detail::kDTypes.size(); ++t)
        kernels::with_type(DType(t), [&]<class To>(To*) {
          const Tensor result = from.to(DType(t));
          ASSERT_EQ(result.dtype(), DType(t));
          ASSERT_EQ(result.shape(), from.shape());
          const std::span<const To> got = result.span<const To>();
          for (size_t i = 0; i < values.size(); ++i)
            EXPECT_TRUE(same<To>(got[i], expected<To>(From(values[i]))))
                << DType(f) << " " << exact(From(values[i])) << " to " << DType(t) << ": "
                << exact(got[i]);
        });
    });
}

TEST(TensorTo, RoundsOnce) {
  // Through float32 each of these would become a tie, and go the other way.
  EXPECT_EQ(Tensor::scalar(1 + 0x1p-8 + 0x1p-40).to(DType::bfloat16).item<bfloat16>().bits, 0x3f81);
  EXPECT_EQ(Tensor::scalar(1 + 0x1p-11 + 0x1p-40).to(DType::float16).item<float16>().bits, 0x3c01);
  EXPECT_EQ(Tensor::scalar(int64_t((1ll << 40) + (1ll << 32) + 1))
                .to(DType::bfloat16)
                .item<bfloat16>()
                .bits,
            bfloat16(0x1.02p40f).bits);
}

TEST(TensorTo, SaturatesTruncatesAndWraps) {
  EXPECT_THAT(
      Tensor::of({300.7, -300.7, 1.9, -1.9, double(NAN)}).to(DType::int8).to_vector<int8_t>(),
      ::testing::ElementsAre(127, -128, 1, -1, 0));
  EXPECT_THAT(Tensor::of({300, -1, 256}).to(DType::uint8).to_vector<uint8_t>(),
              ::testing::ElementsAre(44, 255, 0));
  EXPECT_THAT(Tensor::of({0.25f, -0.0f, NAN}).to(DType::boolean).to_vector<bool>(),
              ::testing::ElementsAre(true, false, true));
}

TEST(TensorTo, IsACopyEvenToTheSameType) {
  const Tensor a = Tensor::of({1, 2});
  const Tensor b = a.to(DType::int32);
  EXPECT_NE(a.data(), b.data());
  EXPECT_THAT(b.to_vector<int>(), ::testing::ElementsAre(1, 2));
}

TEST(TensorTo, KeepsEveryBitOfItsOwnType) {
  const uint16_t nan = 0x7c01;  // a signalling NaN
  const Tensor a = Tensor::empty({1}, DType::float16);
  std::memcpy(a.data(), &nan, 2);
  EXPECT_EQ(a.to(DType::float16).item<float16>().bits, nan);
}

TEST(TensorTo, ConvertsLargeTensorsInPieces) {
  for (const int64_t n : {65535, 65536, 65537, 200'001}) {
    std::vector<int32_t> values(static_cast<size_t>(n));
    std::iota(values.begin(), values.end(), -5);
    EXPECT_EQ(tensor_of(values).to(DType::float64).to(DType::int32).to_vector<int32_t>(), values);
  }
}

TEST(TensorTo, KeepsShapeAndDevice) {
  set_logical_devices("CPU", 2);
  const Tensor result = Tensor::zeros({2, 0, 3}, DType::int8, "/cpu:1").to(DType::float64);
  EXPECT_EQ(result.shape(), Shape({2, 0, 3}));
  EXPECT_EQ(result.device(), canonicalize("/cpu:1"));
}

}  // namespace
}  // namespace tutti
