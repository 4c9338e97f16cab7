// SPDX-License-Identifier: Apache-2.0
// Tensors as Eigen matrices and back, without a copy. Needs Eigen, so tutti.h leaves it out.
#pragma once

#include <tutti/error.h>
#include <tutti/tensor.h>

#include <Eigen/Core>
#include <memory>
#include <utility>

namespace tutti {

// Row-major, as tensors are.
template <class T>
using EigenMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// A view of a CPU tensor: one of rank 2 as it is, of rank 1 as a row, of rank 0 as 1 x 1, of a
// higher rank with all axes but the last taken together. T must be the tensor's type, or const of
// it. Good as long as the tensor's memory is.
template <class T>
auto as_matrix(const Tensor& tensor) {
  using Matrix = std::conditional_t<std::is_const_v<T>, const EigenMatrix<std::remove_const_t<T>>,
                                    EigenMatrix<T>>;
  const std::span<T> values = tensor.span<T>();
  const Shape& shape = tensor.shape();
  const int64_t columns = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return Eigen::Map<Matrix>(values.data(), rows, columns);
}

// A tensor of rank 2 that takes over the matrix, without copying its elements.
template <class T>
Tensor as_tensor(EigenMatrix<T>&& matrix, std::string_view device = {}) {
  auto owner = std::make_shared<EigenMatrix<T>>(std::move(matrix));
  return Tensor::borrow(owner->data(), {owner->rows(), owner->cols()}, dtype_of<T>::value, device,
                        owner);
}

}  // namespace tutti
