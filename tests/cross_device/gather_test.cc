// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include <cmath>
#include <numeric>

#include "support/cpus.h"

namespace tutti {
namespace {

using testing::cpu;
using F = std::vector<float>;

Tensor counting(const Shape& shape, float first, const std::string& device) {
  const Tensor t = Tensor::empty(shape, DType::float32, device);
  std::iota(t.span<float>().begin(), t.span<float>().end(), first);
  return t;
}

// Concatenation by coordinates.
F concatenated(const PerReplica<Tensor>& value, size_t axis) {
  const Shape& first = value[0].shape();
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < first.rank(); ++i) (i < axis ? outer : inner) *= i == axis ? 1 : first[i];
  F result;
  for (int64_t o = 0; o < outer; ++o)
    for (const Tensor& t : value)
      for (int64_t k = 0; k < t.shape()[axis] * inner; ++k)
        result.push_back(t.span<const float>()[size_t(o * t.shape()[axis] * inner + k)]);
  return result;
}

class CrossDeviceGather : public testing::LogicalCpus<4> {
 protected:
  ReductionToOneDevice one;
  HierarchicalCopyAllReduce hierarchical;
  std::vector<CrossDeviceOps*> all{&one, &hierarchical};
};

// C040, C184: [[[1, 2], [1, 2]]] along every axis.
TEST_F(CrossDeviceGather, ConcatenatesAlongEveryAxis) {
  for (CrossDeviceOps* ops : all)
    for (const size_t n : {1, 2, 4}) {
      std::vector<Tensor> parts;
      for (size_t i = 0; i < n; ++i)
        parts.push_back(Tensor::of<float>({1, 2, 1, 2}, cpu(i)).reshape({1, 2, 2}));
      const PerReplica<Tensor> value(parts);
      for (const int64_t axis : {0, 1, 2, -1, -2, -3}) {
        const Mirrored<Tensor> all_of_them = ops->gather(value, value, axis);
        std::vector<int64_t> extents{1, 2, 2};
        extents[size_t(axis + 3) % 3] *= int64_t(n);
        ASSERT_EQ(all_of_them.size(), n);
        for (size_t i = 0; i < n; ++i) {
          EXPECT_EQ(all_of_them[i].device(), cpu(i));
          EXPECT_EQ(all_of_them[i].shape(), Shape(extents));
          EXPECT_EQ(all_of_them[i].to_vector<float>(), concatenated(value, size_t(axis + 3) % 3));
        }
      }
    }
}

// C185
TEST_F(CrossDeviceGather, TakesUnevenExtentsInReplicaOrder) {
  for (const int64_t axis : {0, 1, 2}) {
    std::vector<Tensor> parts;
    for (const int64_t extent : {2, 0, 5, 1}) {
      std::vector<int64_t> extents{3, 4, 2};
      extents[size_t(axis)] = extent;
      parts.push_back(counting(Shape(extents), float(100 * parts.size()), cpu(parts.size())));
    }
    const PerReplica<Tensor> value(parts);
    for (const int64_t spelled : {axis, axis - 3}) {
      const Mirrored<Tensor> result = one.gather(value, {"/cpu:3", "/cpu:1"}, spelled);
      ASSERT_EQ(result.size(), 2u);
      EXPECT_EQ(result[0].device(), cpu(3));
      EXPECT_EQ(result[0].shape()[size_t(axis)], 8);
      for (const Tensor& t : result)
        EXPECT_EQ(t.to_vector<float>(), concatenated(value, size_t(axis)));
    }
  }
}

TEST_F(CrossDeviceGather, GivesAnEmptyTensorForEmptyTensors) {
  const auto gathered = [&](const Shape& shape, int64_t axis) {
    const PerReplica<Tensor> value{Tensor::empty(shape, DType::float64, cpu(0)),
                                   Tensor::empty(shape, DType::float64, cpu(1))};
    return one.gather(value, value, axis)[1];
  };
  EXPECT_EQ(gathered(Shape{0}, 0).shape(), Shape{0});
  EXPECT_EQ(gathered(Shape{0, 3}, 1).shape(), (Shape{0, 6}));
  EXPECT_EQ(gathered(Shape{2, 0}, 0).shape(), (Shape{4, 0}));
  EXPECT_EQ(gathered(Shape{2, 0}, 1).dtype(), DType::float64);
}

TEST_F(CrossDeviceGather, MovesEveryDtypeUnchanged) {
  const PerReplica<Tensor> flags{Tensor::of<bool>({true, false}, cpu(0)),
                                 Tensor::of<bool>({true}, cpu(1))};
  EXPECT_EQ(one.gather(flags, "/cpu:0", 0)[0].to_vector<bool>(),
            (std::vector<bool>{true, false, true}));
  const PerReplica<Tensor> doubles{Tensor::of<double>({NAN}, cpu(0)),
                                   Tensor::of<double>({-0.0}, cpu(1))};
  const Mirrored<Tensor> result = one.gather(doubles, doubles, 0);
  EXPECT_TRUE(std::isnan(result[1].span<double>()[0]));
  EXPECT_TRUE(std::signbit(result[1].span<double>()[1]));
}

TEST_F(CrossDeviceGather, TakesASingleTensorForOneReplica) {
  const Tensor t = counting(Shape{2, 3}, 0, cpu(1));
  const Mirrored<Tensor> result = one.gather(t, "/cpu:2", 1);
  EXPECT_EQ(result.devices(), std::vector<std::string>{cpu(2)});
  EXPECT_EQ(result[0].to_vector<float>(), t.to_vector<float>());
  EXPECT_EQ(result[0].shape(), t.shape());
}

}  // namespace
}  // namespace tutti
