// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include <stdexcept>

#include "support/cpus.h"
#include "support/expect.h"

namespace tutti {
namespace {

using F = std::vector<float>;
using Parts = std::vector<Tensor>;

// The first plus ten times each other, so that it cannot be mistaken for the sum.
Tensor tens(const Parts& parts) {
  Tensor out = parts[0].clone();
  for (size_t i = 1; i < parts.size(); ++i)
    for (size_t j = 0; j < out.span<float>().size(); ++j)
      out.span<float>()[j] += 10 * parts[i].span<const float>()[j];
  return out;
}

class AccumulationFn : public testing::LogicalCpus<3> {
 protected:
  const Tensor a = Tensor::of<float>({1, 2}, "/cpu:0");
  const Tensor b = Tensor::of<float>({3, 4}, "/cpu:1");
  const PerReplica<Tensor> v{a, b};
};

TEST_F(AccumulationFn, ReplacesTheSumInSumAndMean) {
  ReductionToOneDevice ops("", tens);
  EXPECT_EQ(ops.reduce(ReduceOp::SUM, v, v)[1].to_vector<float>(), F({31, 42}));
  EXPECT_EQ(ops.reduce(ReduceOp::MEAN, v, v)[1].to_vector<float>(), F({15.5f, 21}));
  EXPECT_EQ(ops.reduce(ReduceOp::MAX, v, v)[1].to_vector<float>(), F({3, 4}));
  const auto batch = ops.batch_reduce(ReduceOp::SUM, {{v, v}, {v, "/cpu:2"}});
  EXPECT_EQ(batch[1][0].tensor().to_vector<float>(), F({31, 42}));
  EXPECT_EQ(batch[1][0].device(), canonicalize("/cpu:2"));
  EXPECT_EQ(a.to_vector<float>(), F({1, 2}));
}

TEST_F(AccumulationFn, GetsTheComponentsInOrderOnOneDevice) {
  std::vector<std::string> devices;
  const auto fn = [&](const Parts& parts) {
    for (const Tensor& t : parts) devices.push_back(t.device());
    EXPECT_EQ(parts[1].to_vector<float>(), F({3, 4}));
    return parts[0];
  };
  const Mirrored<Tensor> result =
      ReductionToOneDevice("/cpu:2", fn).reduce(ReduceOp::SUM, v, {"/cpu:1", "/cpu:0"});
  EXPECT_EQ(devices, std::vector<std::string>(2, canonicalize("/cpu:2")));
  EXPECT_EQ(result[0].device(), canonicalize("/cpu:1"));
  devices.clear();
  ReductionToOneDevice("", fn).reduce(ReduceOp::SUM, v, {"/cpu:1", "/cpu:0"});
  EXPECT_EQ(devices, std::vector<std::string>(2, canonicalize("/cpu:1")));
}

TEST_F(AccumulationFn, LeavesSlicesAlone) {
  ReductionToOneDevice ops("", [](const Parts&) -> Tensor { throw std::logic_error("called"); });
  const IndexedSlices slices{a.reshape({2, 1}), Tensor::of<int64_t>({0, 1}, "/cpu:0"), Shape{2, 1}};
  EXPECT_EQ(ops.reduce(ReduceOp::SUM, PerReplica<IndexedSlices>{slices, slices}, "/cpu:0")[0]
                .values.to_vector<float>(),
            F({1, 2, 1, 2}));
  const PerReplica<Value> mixed{Value(slices), Value(b.reshape({2, 1}))};
  EXPECT_EQ(ops.reduce(ReduceOp::SUM, mixed, "/cpu:0")[0].tensor().to_vector<float>(), F({4, 6}));
}

TEST_F(AccumulationFn, MustReturnTheSameShapeAndDtype) {
  const auto refused = [&](const std::string& part, Tensor wrong) {
    ReductionToOneDevice ops("", [&](const Parts&) { return wrong; });
    const std::string start = "reduce: the accumulation_fn returned " + part;
    EXPECT_ERROR(InvalidArgumentError, start, ops.reduce(ReduceOp::SUM, v, v));
    EXPECT_ERROR(InvalidArgumentError, "for components of float32[2]",
                 ops.reduce(ReduceOp::MEAN, v, v));
  };
  refused("an empty Tensor", Tensor());
  refused("float32[3]", Tensor::of<float>({1, 2, 3}));
  refused("float64[2]", Tensor::of<double>({1, 2}));
}

TEST_F(AccumulationFn, PassesItsOwnErrorOn) {
  ReductionToOneDevice ops("", [](const Parts&) -> Tensor { throw std::logic_error("no sum"); });
  EXPECT_ERROR(std::logic_error, "no sum", ops.reduce(ReduceOp::SUM, v, v));
}

}  // namespace
}  // namespace tutti
