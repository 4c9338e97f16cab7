// SPDX-License-Identifier: Apache-2.0
#include <tutti/device.h>
#include <tutti/values.h>

#include <vector>

#include "support/expect.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;

template <class T>
IndexedSlices slices_of(std::initializer_list<T> values, int64_t width,
                        std::initializer_list<int64_t> indices, std::optional<Shape> shape = {}) {
  return {Tensor::of(values).reshape({-1, width}), Tensor::of(indices), std::move(shape)};
}

TEST(IndexedSlices, BecomeDense) {
  const Tensor dense = slices_of<float>({1, 2, 3, 4}, 2, {3, 0}, Shape{4, 2}).to_dense();
  EXPECT_EQ(dense.shape(), Shape({4, 2}));
  EXPECT_THAT(dense.to_vector<float>(), ElementsAre(3, 4, 0, 0, 0, 0, 1, 2));
}

TEST(IndexedSlices, RowsNamedTwiceAreAdded) {
  const IndexedSlices slices = slices_of<float>({1, 2, 3, 4, 5, 6}, 2, {1, 0, 1}, Shape{2, 2});
  EXPECT_THAT(slices.to_dense().to_vector<float>(), ElementsAre(3, 4, 6, 8));
}

// 1e8 + 1 is 1e8 in float32, so another order gives another sum.
TEST(IndexedSlices, RowsNamedTwiceAreAddedInTheirOrder) {
  const auto sum = [](std::initializer_list<float> values) {
    return slices_of<float>(values, 1, {0, 0, 0}, Shape{1, 1}).to_dense().item<float>();
  };
  EXPECT_EQ(sum({1e8f, -1e8f, 1.0f}), 1.0f);
  EXPECT_EQ(sum({1e8f, 1.0f, -1e8f}), 0.0f);
}

TEST(IndexedSlices, IndicesMayBeOf32Bits) {
  IndexedSlices slices = slices_of<double>({1, 2, 3}, 1, {2, 0, 2}, Shape{3, 1});
  slices.indices = Tensor::of<int32_t>({2, 0, 2});
  EXPECT_THAT(slices.to_dense().to_vector<double>(), ElementsAre(2, 0, 4));
  const IndexedSlices merged = slices.merged();
  EXPECT_EQ(merged.indices.dtype(), DType::int32);
  EXPECT_THAT(merged.indices.to_vector<int32_t>(), ElementsAre(0, 2));
}

template <class T>
void expect_summed_in_32_bits(float big, float small, float sum) {
  // Adding `small` to `big` in 16 bits changes nothing, however often.
  const Tensor values =
      Tensor::of({T(big), T(small), T(small), T(small), T(small)}).reshape({5, 1});
  const IndexedSlices slices{values, Tensor::of<int64_t>({1, 1, 1, 1, 1}), Shape{2, 1}};
  const Tensor dense = slices.to_dense();
  EXPECT_EQ(dense.dtype(), dtype_of<T>::value);
  EXPECT_EQ(float(dense.to_vector<T>()[1]), sum);
  EXPECT_EQ(float(slices.merged().values.to_vector<T>()[0]), sum);
}

TEST(IndexedSlices, SixteenBitFloatsAreSummedIn32BitsAndRoundedOnce) {
  expect_summed_in_32_bits<float16>(2048, 1, 2052);
  expect_summed_in_32_bits<bfloat16>(256, 1, 260);
}

TEST(IndexedSlices, IntegersWrap) {
  EXPECT_EQ(slices_of<int8_t>({100, 100}, 1, {0, 0}, Shape{1, 1}).to_dense().item<int8_t>(), -56);
  EXPECT_EQ(slices_of<uint8_t>({200, 100}, 1, {0, 0}, Shape{1, 1}).to_dense().item<uint8_t>(), 44);
  EXPECT_EQ(slices_of<int64_t>({INT64_MAX, 1}, 1, {0, 0}, Shape{1, 1}).to_dense().item<int64_t>(),
            INT64_MIN);
  EXPECT_EQ(
      slices_of<uint64_t>({UINT64_MAX, 2}, 1, {0, 0}, Shape{1, 1}).to_dense().item<uint64_t>(), 1u);
}

TEST(IndexedSlices, MergedNamesEachRowOnceInAscendingOrder) {
  const IndexedSlices merged =
      slices_of<float>({1, 2, 3, 4, 5, 6, 7, 8}, 2, {9, 1, 9, 4}, Shape{10, 2}).merged();
  EXPECT_THAT(merged.indices.to_vector<int64_t>(), ElementsAre(1, 4, 9));
  EXPECT_THAT(merged.values.to_vector<float>(), ElementsAre(3, 4, 7, 8, 6, 8));
  EXPECT_EQ(merged.values.shape(), Shape({3, 2}));
  EXPECT_EQ(merged.dense_shape, Shape({10, 2}));
  EXPECT_FALSE(slices_of<float>({1}, 1, {0}).merged().dense_shape);
}

TEST(IndexedSlices, RowsMayBeScalarsOrOfHigherRank) {
  const IndexedSlices scalars{Tensor::of({5, 6}), Tensor::of<int64_t>({2, 0}), Shape{3}};
  EXPECT_THAT(scalars.to_dense().to_vector<int>(), ElementsAre(6, 0, 5));
  const IndexedSlices matrices{Tensor::of({1, 2, 3, 4}).reshape({1, 2, 2}),
                               Tensor::of<int64_t>({1}), Shape{2, 2, 2}};
  EXPECT_THAT(matrices.to_dense().to_vector<int>(), ElementsAre(0, 0, 0, 0, 1, 2, 3, 4));
}

TEST(IndexedSlices, MayBeEmpty) {
  const IndexedSlices none{Tensor::zeros({0, 2}, DType::float32), Tensor::zeros({0}, DType::int64),
                           Shape{3, 2}};
  EXPECT_THAT(none.to_dense().to_vector<float>(), ElementsAre(0, 0, 0, 0, 0, 0));
  const IndexedSlices merged = none.merged();
  EXPECT_EQ(merged.values.shape(), Shape({0, 2}));
  EXPECT_EQ(merged.indices.shape(), Shape{0});
  const IndexedSlices narrow{Tensor::zeros({2, 0}, DType::float32), Tensor::of<int64_t>({0, 1}),
                             Shape{3, 0}};
  EXPECT_EQ(narrow.to_dense().shape(), Shape({3, 0}));
}

TEST(IndexedSlices, ResultsStayOnTheDevice) {
  set_logical_devices("CPU", 2);
  const IndexedSlices slices =
      slices_of<float16>({float16(1), float16(2)}, 1, {0, 0}, Shape{1, 1}).clone_to("/cpu:1");
  const std::string cpu1 = canonicalize("/cpu:1");
  EXPECT_EQ(slices.device(), cpu1);
  EXPECT_EQ(slices.dtype(), DType::float16);
  EXPECT_EQ(slices.to_dense().device(), cpu1);
  EXPECT_EQ(slices.merged().device(), cpu1);
  EXPECT_EQ(slices.merged().indices.device(), cpu1);
  EXPECT_EQ(slices.dense_shape, Shape({1, 1}));
}

TEST(IndexedSlices, DenseNeedsADenseShapeThatHoldsTheIndices) {
  EXPECT_ERROR(InvalidArgumentError, "to_dense: the IndexedSlices have no dense_shape",
               slices_of<float>({1}, 1, {0}).to_dense());
  EXPECT_ERROR(InvalidArgumentError, "index 3 lies outside the dense_shape [3, 1]",
               slices_of<float>({1, 2}, 1, {0, 3}, Shape{3, 1}).to_dense());
  EXPECT_ERROR(InvalidArgumentError, "index -1 lies outside",
               slices_of<float>({1}, 1, {-1}, Shape{3, 1}).to_dense());
  EXPECT_ERROR(InvalidArgumentError, "index 0 lies outside",
               slices_of<float>({1}, 1, {0}, Shape{0, 1}).to_dense());
}

TEST(IndexedSlices, PartsThatDoNotBelongTogetherAreRefused) {
  set_logical_devices("CPU", 2);
  const Tensor values = Tensor::of({1.0f, 2.0f}).reshape({2, 1}),
               indices = Tensor::of<int64_t>({0, 1});
  const std::pair<IndexedSlices, const char*> table[] = {
      {{values, Tensor::of<int64_t>({0, 1, 2})}, "values of shape [2, 1] and indices of shape [3]"},
      {{values, indices.reshape({2, 1})}, "indices of shape [2, 1]"},
      {{Tensor::scalar(1.0f), Tensor::of<int64_t>({0})}, "values of shape []"},
      {{values, Tensor::of<int16_t>({0, 1})}, "int16, expected int32 or int64"},
      {{values, Tensor::of<float>({0, 1})}, "float32, expected int32 or int64"},
      {{values, indices.clone_to("/cpu:1")}, "and indices on"},
      {{values, indices, Shape{5, 2}}, "do not fit the dense_shape [5, 2]"},
      {{values, indices, Shape{5}}, "do not fit the dense_shape [5]"},
      {{Tensor(), indices}, "hold no values"},
      {{values, Tensor()}, "no indices"}};
  for (const auto& each : table) {
    const IndexedSlices& slices = each.first;
    const char* const text = each.second;
    EXPECT_ERROR(InvalidArgumentError, text, slices.validate("reduce"));
    EXPECT_ERROR(InvalidArgumentError, "reduce: ", slices.validate("reduce"));
    EXPECT_ERROR(InvalidArgumentError, text, slices.to_dense());
    EXPECT_ERROR(InvalidArgumentError, text, slices.merged());
  }
  EXPECT_NO_THROW((IndexedSlices{values, indices, Shape{5, 1}}.validate("reduce")));
}

TEST(IndexedSlices, BoolsHaveNoSum) {
  const IndexedSlices slices{Tensor::of({true}), Tensor::of<int64_t>({0}), Shape{1}};
  EXPECT_ERROR(InvalidArgumentError, "bool", slices.to_dense());
  EXPECT_ERROR(InvalidArgumentError, "bool", slices.merged());
}

}  // namespace
}  // namespace tutti
