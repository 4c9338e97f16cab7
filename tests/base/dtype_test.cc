// SPDX-License-Identifier: Apache-2.0
#include <tutti/dtype.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include "base/half_reference.h"
#include "support/expect.h"

namespace mine {
struct Half {
  uint16_t bits;
};
}  // namespace mine

template <>
struct tutti::dtype_of<mine::Half> {
  static constexpr DType value = DType::float16;
};

namespace tutti {
namespace {

using testing::HalfFormat;
using testing::kBfloat16;
using testing::kFloat16;

struct Row {
  DType dtype;
  const char* name;
  size_t size;
  bool floating, integer;
};
constexpr Row kRows[] = {
    {DType::boolean, "bool", 1, false, false},     {DType::int8, "int8", 1, false, true},
    {DType::int16, "int16", 2, false, true},       {DType::int32, "int32", 4, false, true},
    {DType::int64, "int64", 8, false, true},       {DType::uint8, "uint8", 1, false, true},
    {DType::uint16, "uint16", 2, false, true},     {DType::uint32, "uint32", 4, false, true},
    {DType::uint64, "uint64", 8, false, true},     {DType::float16, "float16", 2, true, false},
    {DType::bfloat16, "bfloat16", 2, true, false}, {DType::float32, "float32", 4, true, false},
    {DType::float64, "float64", 8, true, false}};
static_assert(std::size(kRows) == detail::kDTypes.size());

TEST(DTypeNames, NameSizeAndKindAreThoseOfTheTable) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(name(row.dtype), row.name);
    EXPECT_EQ(size_of(row.dtype), row.size);
    EXPECT_EQ(is_floating(row.dtype), row.floating);
    EXPECT_EQ(is_integer(row.dtype), row.integer);
    std::ostringstream printed;
    printed << row.dtype;
    EXPECT_EQ(printed.str(), row.name);
  }
}

static_assert(dtype_of<bool>::value == DType::boolean);
static_assert(dtype_of<int8_t>::value == DType::int8);
static_assert(dtype_of<signed char>::value == DType::int8);
static_assert(dtype_of<unsigned char>::value == DType::uint8);
static_assert(dtype_of<char>::value == (std::is_signed_v<char> ? DType::int8 : DType::uint8));
static_assert(dtype_of<short>::value == DType::int16);
static_assert(dtype_of<uint16_t>::value == DType::uint16);
static_assert(dtype_of<int>::value == DType::int32);
static_assert(dtype_of<unsigned>::value == DType::uint32);
// int64_t is one of the two; the other is as good.
static_assert(dtype_of<long>::value == DType::int64);
static_assert(dtype_of<long long>::value == DType::int64);
static_assert(dtype_of<unsigned long>::value == DType::uint64);
static_assert(dtype_of<unsigned long long>::value == DType::uint64);
static_assert(dtype_of<float16>::value == DType::float16);
static_assert(dtype_of<bfloat16>::value == DType::bfloat16);
static_assert(dtype_of<float>::value == DType::float32);
static_assert(dtype_of<double>::value == DType::float64);
static_assert(dtype_of<mine::Half>::value == DType::float16);

static_assert(Element<const float> && Element<mine::Half> && Element<bool>);
static_assert(!Element<long double> && !Element<void*> && !Element<HalfFormat>);
static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2);

template <class T>
T from_bits(uint16_t bits) {
  T value;
  value.bits = bits;
  return value;
}

template <class T>
class HalfTest : public ::testing::Test {
 protected:
  static constexpr HalfFormat format = std::is_same_v<T, float16> ? kFloat16 : kBfloat16;
};
using Halves = ::testing::Types<float16, bfloat16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryPatternMeansWhatTheFormatSays) {
  const HalfFormat format = this->format;
  for (int i = 0; i <= 0xffff; ++i) {
    const uint16_t bits = uint16_t(i), magnitude = bits & 0x7fff;
    const float value = float(from_bits<TypeParam>(bits));
    ASSERT_EQ(std::signbit(value), bits >> 15 == 1) << bits;
    if (magnitude > format.infinity()) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(float(TypeParam(value)))) << bits;
      continue;
    }
    if (magnitude == format.infinity()) {
      ASSERT_TRUE(std::isinf(value)) << bits;
    } else {
      ASSERT_EQ(value, format.decode(bits)) << bits;
    }
    ASSERT_EQ(TypeParam(value).bits, bits);
  }
}

TYPED_TEST(HalfTest, RoundsToNearestEvenAroundEveryMidpoint) {
  const HalfFormat format = this->format;
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (uint16_t below = 0; below < format.infinity(); ++below) {
    const double middle = (format.decode(below) + format.decode(uint16_t(below + 1))) / 2;
    const float midpoint = float(middle);
    ASSERT_EQ(midpoint, middle);
    const uint16_t even = uint16_t(below + below % 2), above = uint16_t(below + 1);
    ASSERT_EQ(TypeParam(midpoint).bits, even) << below;
    ASSERT_EQ(TypeParam(-midpoint).bits, even | 0x8000) << below;
    ASSERT_EQ(TypeParam(std::nextafter(midpoint, 0.0f)).bits, below) << below;
    ASSERT_EQ(TypeParam(std::nextafter(midpoint, inf)).bits, above) << below;
  }
}

TYPED_TEST(HalfTest, RoundsRandomFloatsLikeDoubleArithmetic) {
  std::mt19937 random(1);
  for (int i = 0; i < 300'000; ++i) {
    const float value = std::bit_cast<float>(uint32_t(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(TypeParam(value).bits, this->format.encode(value)) << std::hexfloat << value;
  }
}

TYPED_TEST(HalfTest, KeepsInfinitiesAndTheSignOfZero) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam(inf).bits, this->format.infinity());
  EXPECT_EQ(TypeParam(-inf).bits, this->format.infinity() | 0x8000);
  EXPECT_EQ(TypeParam(0.0f).bits, 0);
  EXPECT_EQ(TypeParam(-0.0f).bits, 0x8000);
}

TYPED_TEST(HalfTest, EveryNanStaysNan) {
  for (const uint32_t bits :
       {0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    EXPECT_TRUE(std::isnan(float(TypeParam(std::bit_cast<float>(bits))))) << std::hex << bits;
}

TYPED_TEST(HalfTest, ComparesByValue) {
  EXPECT_TRUE(TypeParam(0.0f) == TypeParam(-0.0f));
  EXPECT_FALSE(TypeParam(NAN) == TypeParam(NAN));
  EXPECT_TRUE(TypeParam(1.5f) == TypeParam(1.5f));
  EXPECT_FALSE(TypeParam(1.5f) == TypeParam(1.25f));
}

TEST(Float16, OverflowsAtTheMidpointBelow65536) {
  EXPECT_EQ(float(float16(65504.0f)), 65504.0f);
  EXPECT_EQ(float(float16(65519.99f)), 65504.0f);
  EXPECT_TRUE(std::isinf(float(float16(65520.0f))));
  EXPECT_TRUE(std::isinf(float(float16(std::numeric_limits<float>::max()))));
}

TEST(Float16, HasSubnormalsAndRoundsTheSmallestToZero) {
  EXPECT_EQ(float16(std::ldexp(1.0f, -24)).bits, 1);
  EXPECT_EQ(float16(std::ldexp(1.0f, -25)).bits, 0);  // a tie: to even
  EXPECT_EQ(float16(std::ldexp(1.5f, -25)).bits, 1);
  EXPECT_EQ(float16(std::ldexp(3.0f, -25)).bits, 2);  // a tie: to even
  EXPECT_EQ(float16(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(Bfloat16, OverflowsOnlyBeyondTheLargestValueAndAHalfStep) {
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x7f7f7fffu)).bits, 0x7f7f);
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x7f7f8000u)).bits, 0x7f80);
}

}  // namespace
}  // namespace tutti
