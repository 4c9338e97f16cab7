// SPDX-License-Identifier: Apache-2.0
#include <tutti/shape.h>

#include <limits>
#include <sstream>

#include "support/expect.h"

namespace tutti {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Shape, CountsItsElements) {
  EXPECT_EQ(Shape().num_elements(), 1);
  EXPECT_EQ(Shape{}.rank(), 0u);
  EXPECT_EQ(Shape({7}).num_elements(), 7);
  EXPECT_EQ(Shape({3, 2, 5}).num_elements(), 30);
  EXPECT_EQ(Shape({3, 0, 5}).num_elements(), 0);
  EXPECT_EQ(Shape({kMax}).num_elements(), kMax);
  EXPECT_EQ(Shape(std::vector<int64_t>{4, 4}).num_elements(), 16);
}

TEST(Shape, IsMadeOfAVectorWithoutAsking) {
  const std::vector<int64_t> extents{2, 3};
  const auto rank = [](const Shape& shape) { return shape.rank(); };
  EXPECT_EQ(rank(extents), 2u);
  const Shape shape = extents;
  EXPECT_EQ(shape, (Shape{2, 3}));
}

TEST(Shape, RefusesNegativeExtents) {
  EXPECT_ERROR(InvalidArgumentError, "[3, -1]", Shape({3, -1}));
  EXPECT_ERROR(InvalidArgumentError, "negative", Shape({0, -1}));
}

TEST(Shape, RefusesMoreElementsThanCanBeCounted) {
  EXPECT_ERROR(InvalidArgumentError, "[4611686018427387904, 2]", Shape({kMax / 2 + 1, 2}));
  EXPECT_ERROR(InvalidArgumentError, "2^63", Shape({1 << 20, 1 << 20, 1 << 20, 1 << 20}));
}

// Whether a shape is legal must not depend on where its zero stands: strides are products too.
TEST(Shape, RefusesExtentsThatOverflowBesideAZero) {
  EXPECT_ERROR(InvalidArgumentError, "2^63", Shape({kMax, kMax, 0}));
  EXPECT_ERROR(InvalidArgumentError, "2^63", Shape({0, kMax, kMax}));
}

TEST(Shape, IndexesItsExtents) {
  const Shape shape{3, 2};
  EXPECT_EQ(shape[0], 3);
  EXPECT_EQ(shape[1], 2);
  EXPECT_ERROR(OutOfRangeError, "[3, 2] has no axis 2", shape[2]);
  EXPECT_ERROR(OutOfRangeError, "[] has no axis 0", Shape()[0]);
}

TEST(Shape, ResolvesAxesFromBothEnds) {
  const Shape shape{4, 5, 6};
  for (int64_t axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(shape.axis(axis), size_t(axis));
    EXPECT_EQ(shape.axis(axis - 3), size_t(axis));
  }
  for (const int64_t axis : {int64_t(3), int64_t(-4), kMax, -kMax - 1})
    EXPECT_ERROR(InvalidArgumentError, "axis " + std::to_string(axis), shape.axis(axis));
  EXPECT_ERROR(InvalidArgumentError, "shape []", Shape().axis(0));
  EXPECT_ERROR(InvalidArgumentError, "axis -1", Shape().axis(-1));
}

TEST(Shape, ComparesByItsExtents) {
  EXPECT_EQ(Shape({2, 3}), Shape(std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(Shape({2, 3}) == Shape({3, 2}));
  EXPECT_FALSE(Shape() == Shape({1}));
  EXPECT_FALSE(Shape({0, 1}) == Shape({0, 2}));
}

TEST(Shape, PrintsItsExtents) {
  EXPECT_EQ(Shape().to_string(), "[]");
  EXPECT_EQ(Shape({3}).to_string(), "[3]");
  std::ostringstream printed;
  printed << Shape{3, 2};
  EXPECT_EQ(printed.str(), "[3, 2]");
}

TEST(Shape, IteratesInOrder) {
  const Shape shape{3, 2, 1};
  EXPECT_TRUE(std::ranges::equal(std::vector<int64_t>{3, 2, 1}, shape));
  EXPECT_TRUE(std::ranges::equal(shape, shape.extents()));
}

TEST(Shape, HoldsMoreAxesThanItKeepsInline) {
  const std::vector<int64_t> extents{1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (size_t rank = 0; rank <= extents.size(); ++rank) {
    const Shape shape{std::span<const int64_t>(extents).first(rank)};
    const Shape copy = shape;
    EXPECT_EQ(copy.rank(), rank);
    EXPECT_TRUE(std::ranges::equal(copy, std::span(extents).first(rank)));
    EXPECT_EQ(copy, shape);
  }
}

}  // namespace
}  // namespace tutti
