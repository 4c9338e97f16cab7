// SPDX-License-Identifier: Apache-2.0
// Tensors as Eigen matrices and back, on the same memory.
#include <tutti/eigen.h>

#include "support/expect.h"

namespace tutti {
namespace {

TEST(AsMatrix, TakesAllAxesButTheLastTogether) {
  struct Case {
    Shape shape;
    int64_t rows, columns;
  };
  for (const Case& c : {Case{{}, 1, 1}, Case{{3}, 1, 3}, Case{{2, 3}, 2, 3}, Case{{2, 3, 4}, 6, 4},
                        Case{{0, 3}, 0, 3}, Case{{0}, 1, 0}}) {
    const Tensor tensor = Tensor::empty(c.shape, DType::float32);
    float next = 0;
    for (float& x : tensor.span<float>()) x = next++;
    const auto matrix = as_matrix<float>(tensor);
    ASSERT_EQ(matrix.rows(), c.rows) << c.shape;
    ASSERT_EQ(matrix.cols(), c.columns) << c.shape;
    EXPECT_EQ(matrix.data(), tensor.const_data());
    for (int64_t i = 0; i < c.rows; ++i)
      for (int64_t j = 0; j < c.columns; ++j) EXPECT_EQ(matrix(i, j), float(i * c.columns + j));
  }
}

TEST(AsMatrix, WritesTheTensor) {
  const Tensor tensor = Tensor::zeros({2, 2}, DType::float64);
  as_matrix<double>(tensor)(1, 0) = 5;
  as_matrix<double>(tensor) *= 2;
  EXPECT_EQ(tensor.to_vector<double>(), (std::vector<double>{0, 0, 10, 0}));
}

TEST(AsMatrix, OfConstOnlyReads) {
  const Tensor tensor = Tensor::of<int32_t>({1, 2, 3});
  const auto matrix = as_matrix<const int32_t>(tensor);
  static_assert(std::is_same_v<decltype(matrix.data()), const int32_t*>);
  EXPECT_EQ(matrix.sum(), 6);
}

TEST(AsMatrix, NeedsTheTensorsType) {
  EXPECT_ERROR(InvalidArgumentError, "float64", as_matrix<float>(Tensor::scalar<double>(1)));
}

TEST(AsTensor, TakesOverTheMatrix) {
  EigenMatrix<float> matrix(2, 3);
  matrix << 1, 2, 3, 4, 5, 6;
  const float* const memory = matrix.data();
  Tensor copy;
  {
    const Tensor tensor = as_tensor(std::move(matrix));
    EXPECT_EQ(tensor.const_data(), memory);
    copy = tensor;
  }
  EXPECT_EQ(copy.shape(), (Shape{2, 3}));
  EXPECT_EQ(copy.to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));  // row by row
}

TEST(AsTensor, TakesAMatrixWithoutElements) {
  EXPECT_EQ(as_tensor(EigenMatrix<double>(0, 3)).shape(), (Shape{0, 3}));
}

}  // namespace
}  // namespace tutti
