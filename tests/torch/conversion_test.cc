// SPDX-License-Identifier: Apache-2.0
// Tensors of LibTorch are Tutti's and back, in the same memory.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/torch.h>

#include "group/ranks.h"

namespace tutti {
namespace {

using namespace testing;
using ::testing::HasSubstr;

TEST(FromTorch, SharesMemoryAndKeepsItAlive) {
  torch::Tensor theirs = torch::arange(6, torch::kFloat).reshape({2, 3});
  const Tensor ours = from_torch(theirs);
  EXPECT_EQ(ours.shape(), (Shape{2, 3}));
  theirs[1][2] = 42;
  EXPECT_EQ(ours.span<float>()[5], 42);
  ours.span<float>()[0] = 7;
  EXPECT_EQ(theirs[0][0].item<float>(), 7);
  theirs = torch::Tensor();
  EXPECT_EQ(ours.to_vector<float>(), (std::vector<float>{7, 1, 2, 3, 4, 42}));
}

TEST(FromTorch, TakesParametersPartsAndEmptyTensors) {
  const torch::Tensor parameter = torch::ones({4, 2}, torch::requires_grad());
  EXPECT_EQ(from_torch(parameter).num_elements(), 8);
  EXPECT_EQ(from_torch(torch::arange(6).reshape({3, 2})[1]).to_vector<int64_t>(),
            (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(from_torch(torch::zeros({3, 0})).shape(), (Shape{3, 0}));
  EXPECT_EQ(from_torch(torch::tensor(5.f)).item<float>(), 5);
}

TEST(FromTorch, NamesWhatItRefuses) {
  const auto refused = [](const torch::Tensor& tensor) {
    const Caught error = caught([&] { from_torch(tensor); });
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    return error.text;
  };
  EXPECT_THAT(refused(torch::zeros({2, 3}).t()),
              HasSubstr("Float[3, 2] on cpu has the strides [1, 3]"));
  EXPECT_THAT(refused(torch::zeros({2, 3}).to_sparse()),
              HasSubstr("expected a tensor with dense memory"));
  EXPECT_THAT(refused(torch::zeros({2}, torch::kComplexFloat)), HasSubstr("ComplexFloat"));
  EXPECT_THAT(refused(torch::Tensor()), HasSubstr("an undefined tensor"));
}

TEST(ToTorch, SharesMemoryAndKeepsItAlive) {
  torch::Tensor theirs;
  {
    const Tensor ours = Tensor::of<int32_t>({1, 2, 3, 4}).reshape({2, 2});
    theirs = to_torch(ours);
    ours.span<int32_t>()[3] = 9;
  }
  EXPECT_EQ(theirs[1][1].item<int>(), 9);
  EXPECT_EQ(from_torch(theirs).to_vector<int32_t>(), (std::vector<int32_t>{1, 2, 3, 9}));
}

TEST(ToTorch, KeepsEveryTypeThatLibTorchHas) {
  for (const DType dtype : kDTypes) {
    const Tensor ours = Tensor::full({3}, 1, dtype);
    if (dtype == DType::uint16 || dtype == DType::uint32 || dtype == DType::uint64) {
      EXPECT_EQ(caught([&] { to_torch(ours); }).code, ErrorCode::invalid_argument);
      continue;
    }
    const torch::Tensor theirs = to_torch(ours);
    EXPECT_EQ(theirs.sum().item<double>(), 3) << ours.to_string();
    EXPECT_EQ(from_torch(theirs).dtype(), dtype);
  }
}

TEST(ToTorch, RefusesAnEmptyHandle) {
  EXPECT_EQ(caught([&] { to_torch(Tensor()); }).code, ErrorCode::failed_precondition);
}

}  // namespace
}  // namespace tutti
