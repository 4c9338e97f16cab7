// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include "support/cpus.h"
#include "support/expect.h"

namespace tutti {
namespace {

using F = std::vector<float>;
using I = std::vector<int64_t>;

// Rows of width 2 on a device, with 64-bit indices.
IndexedSlices rows(std::initializer_list<float> values, std::initializer_list<int64_t> indices,
                   const char* device, std::optional<Shape> dense_shape = Shape{5, 2}) {
  return {Tensor::of<float>(values, device).reshape({int64_t(indices.size()), 2}),
          Tensor::of<int64_t>(indices, device), dense_shape};
}

class Sparse : public testing::LogicalCpus<3> {
 protected:
  template <class Body>
  void for_each_algorithm(const Body& body) {
    ReductionToOneDevice one;
    AllReduceCrossDeviceOps nccl, hierarchical("hierarchical_copy", 2);
    for (CrossDeviceOps* ops : std::vector<CrossDeviceOps*>{&one, &nccl, &hierarchical}) body(*ops);
  }

  const IndexedSlices s0 = rows({1, 2}, {1}, "/cpu:0");
  const IndexedSlices s1 = rows({3, 4, 5, 6}, {1, 3}, "/cpu:1");
  const PerReplica<IndexedSlices> v{s0, s1};
};

// C010, C053
TEST_F(Sparse, ConcatenatesInReplicaOrderOnEveryDevice) {
  for_each_algorithm([&](CrossDeviceOps& ops) {
    const Mirrored<IndexedSlices> sum = ops.reduce(ReduceOp::SUM, v, v);
    ASSERT_EQ(sum.devices(), v.devices());
    for (const IndexedSlices& s : sum) {
      EXPECT_EQ(s.indices.device(), s.values.device());
      EXPECT_EQ(s.indices.to_vector<int64_t>(), I({1, 1, 3}));
      EXPECT_EQ(s.values.to_vector<float>(), F({1, 2, 3, 4, 5, 6}));
      EXPECT_EQ(s.values.shape(), (Shape{3, 2}));
      EXPECT_EQ(s.dense_shape, (Shape{5, 2}));
      EXPECT_EQ(s.to_dense().to_vector<float>(), F({0, 0, 4, 6, 0, 0, 5, 6, 0, 0}));
    }
    EXPECT_EQ(s0.values.to_vector<float>(), F({1, 2}));
  });
}

// C011
TEST_F(Sparse, DividesTheValuesForTheMean) {
  for_each_algorithm([&](CrossDeviceOps& ops) {
    const Mirrored<IndexedSlices> mean = ops.reduce(ReduceOp::MEAN, v, v);
    EXPECT_EQ(mean[1].values.to_vector<float>(), F({.5f, 1, 1.5f, 2, 2.5f, 3}));
    EXPECT_EQ(mean[1].indices.to_vector<int64_t>(), I({1, 1, 3}));
  });
}

TEST_F(Sparse, DividesIntegersTruly) {
  const IndexedSlices ints{Tensor::of<int32_t>({3}, "/cpu:0"), Tensor::of<int64_t>({2}, "/cpu:0"),
                           Shape{4}};
  const Mirrored<IndexedSlices> mean =
      ReductionToOneDevice().reduce(ReduceOp::MEAN, PerReplica<IndexedSlices>{ints, ints}, ints);
  EXPECT_EQ(mean[0].values.to_vector<double>(), (std::vector<double>{1.5, 1.5}));
}

// C049, C050, C052: [[1,2],[0,0],[3,4]] + [[0,0],[5,6],[7,8]].
TEST_F(Sparse, SumsTheSameAsDenseAndSparse) {
  const Tensor d0 = Tensor::of<float>({1, 2, 0, 0, 3, 4}, "/cpu:0").reshape({3, 2});
  const Tensor d1 = Tensor::of<float>({0, 0, 5, 6, 7, 8}, "/cpu:1").reshape({3, 2});
  const IndexedSlices p0 = rows({1, 2, 3, 4}, {0, 2}, "/cpu:0", Shape{3, 2});
  const IndexedSlices p1 = rows({5, 6, 7, 8}, {1, 2}, "/cpu:1", Shape{3, 2});
  const F sum{1, 2, 5, 6, 10, 12}, half{.5f, 1, 2.5f, 3, 5, 6};
  for_each_algorithm([&](CrossDeviceOps& ops) {
    for (const auto& [op, want] : {std::pair(ReduceOp::SUM, sum), {ReduceOp::MEAN, half}}) {
      EXPECT_EQ(ops.reduce(op, PerReplica<Tensor>{d0, d1}, d0)[0].to_vector<float>(), want);
      const Mirrored<Value> sparse = ops.reduce(op, PerReplica<Value>{Value(p0), Value(p1)}, p1);
      ASSERT_TRUE(sparse[0].is_sparse());
      EXPECT_EQ(sparse[0].slices().to_dense().to_vector<float>(), want);
      for (const PerReplica<Value>& mixed :
           {PerReplica<Value>{Value(p0), Value(d1)}, PerReplica<Value>{Value(d0), Value(p1)}}) {
        const Mirrored<Value> dense = ops.reduce(op, mixed, {"/cpu:2", "/cpu:0"});
        ASSERT_FALSE(dense[0].is_sparse());
        EXPECT_EQ(dense[0].device(), canonicalize("/cpu:2"));
        EXPECT_EQ(dense[1].tensor().to_vector<float>(), want);
      }
    }
  });
}

// C055, C056
TEST_F(Sparse, BroadcastsValuesIndicesAndShape) {
  ReductionToOneDevice ops;
  for (const std::optional<Shape>& shape : {std::optional<Shape>(Shape{5, 2}), {}}) {
    const IndexedSlices from = rows({1, 2, 3, 4}, {4, 0}, "/cpu:0", shape);
    const Mirrored<IndexedSlices> copies = ops.broadcast(from, {"/cpu:2", "/cpu:0"});
    ASSERT_EQ(copies.size(), 2u);
    EXPECT_EQ(copies[0].device(), canonicalize("/cpu:2"));
    for (const IndexedSlices& copy : copies) {
      EXPECT_EQ(copy.values.to_vector<float>(), F({1, 2, 3, 4}));
      EXPECT_EQ(copy.indices.to_vector<int64_t>(), I({4, 0}));
      EXPECT_EQ(copy.dense_shape, shape);
      EXPECT_NE(copy.values.data(), from.values.data());
    }
  }
}

TEST_F(Sparse, WidensIndicesOnlyIfTheyDiffer) {
  const auto with_int32 = [&](const IndexedSlices& s) {
    return IndexedSlices{s.values, s.indices.to(DType::int32), s.dense_shape};
  };
  ReductionToOneDevice ops;
  const auto sum_of = [&](const IndexedSlices& a, const IndexedSlices& b) {
    return ops.reduce(ReduceOp::SUM, PerReplica<IndexedSlices>{a, b}, "/cpu:0")[0].indices;
  };
  EXPECT_EQ(sum_of(with_int32(s0), s1).to_vector<int64_t>(), I({1, 1, 3}));
  EXPECT_EQ(sum_of(s0, with_int32(s1)).to_vector<int64_t>(), I({1, 1, 3}));
  EXPECT_EQ(sum_of(with_int32(s0), with_int32(s1)).to_vector<int32_t>(),
            (std::vector<int32_t>{1, 1, 3}));
}

TEST_F(Sparse, TakesReplicasWithoutRows) {
  const IndexedSlices none = rows({}, {}, "/cpu:2");
  for_each_algorithm([&](CrossDeviceOps& ops) {
    const auto sum = ops.reduce(ReduceOp::SUM, PerReplica<IndexedSlices>{none, s1, none}, "/cpu:0");
    EXPECT_EQ(sum[0].indices.to_vector<int64_t>(), I({1, 3}));
    EXPECT_EQ(sum[0].values.to_vector<float>(), F({3, 4, 5, 6}));
    const auto mean = ops.reduce(ReduceOp::MEAN, PerReplica<IndexedSlices>{none, none}, "/cpu:0");
    EXPECT_EQ(mean[0].values.shape(), (Shape{0, 2}));
    EXPECT_EQ(mean[0].to_dense().to_vector<float>(), F(10, 0));
    const PerReplica<Value> mixed{Value(none), Value(Tensor::full({5, 2}, 1, DType::float32))};
    EXPECT_EQ(ops.reduce(ReduceOp::SUM, mixed, "/cpu:0")[0].tensor().to_vector<float>(), F(10, 1));
  });
}

// Rows repeated within a replica and the sum over replicas are one sum, rounded once: 1 + 3/4 of a
// unit in the last place. Rounded in between, the three quarters would be lost or doubled.
TEST_F(Sparse, RoundsSixteenBitFloatsOnceIfDenseAndSparseMeet) {
  const auto check = [&](auto zero, float ulp) {
    using T = decltype(zero);
    const IndexedSlices thrice{
        Tensor::of<T>({T(1), T(ulp / 4), T(ulp / 4)}, "/cpu:0").reshape({3, 1}),
        Tensor::of<int32_t>({0, 0, 0}, "/cpu:0"), Shape{1, 1}};
    const Tensor quarter = Tensor::of<T>({T(ulp / 4)}, "/cpu:1").reshape({1, 1});
    for_each_algorithm([&](CrossDeviceOps& ops) {
      for (const PerReplica<Value>& value : {PerReplica<Value>{Value(thrice), Value(quarter)},
                                             PerReplica<Value>{Value(quarter), Value(thrice)}}) {
        const Tensor sum = ops.reduce(ReduceOp::SUM, value, "/cpu:0")[0].tensor();
        EXPECT_EQ(float(sum.item<T>()), 1 + ulp);
        const Tensor mean = ops.reduce(ReduceOp::MEAN, value, "/cpu:0")[0].tensor();
        EXPECT_EQ(float(mean.item<T>()), .5f + ulp / 2);
      }
    });
  };
  check(float16(0), 1.f / 1024);
  check(bfloat16(0), 1.f / 128);
}

TEST_F(Sparse, KeepsTheOrderOfAMixedBatch) {
  const PerReplica<Value> sparse{Value(s0), Value(s1)};
  const PerReplica<Value> dense{Value(Tensor::of<float>({1}, "/cpu:0")),
                                Value(Tensor::of<float>({2}, "/cpu:1"))};
  for_each_algorithm([&](CrossDeviceOps& ops) {
    const auto out = ops.batch_reduce(
        ReduceOp::SUM, {{sparse, sparse}, {dense, "/cpu:2"}, {sparse, "/cpu:0"}, {dense, dense}});
    ASSERT_EQ(out.size(), 4u);
    EXPECT_EQ(out[0][1].slices().indices.to_vector<int64_t>(), I({1, 1, 3}));
    EXPECT_EQ(out[1][0].tensor().item<float>(), 3);
    EXPECT_EQ(out[2][0].slices().device(), canonicalize("/cpu:0"));
    EXPECT_EQ(out[3][1].tensor().item<float>(), 3);
  });
}

TEST_F(Sparse, TakesTheShapeFromWhoeverKnowsIt) {
  const IndexedSlices unknown = rows({1, 2}, {1}, "/cpu:0", std::nullopt);
  ReductionToOneDevice ops;
  EXPECT_EQ(
      ops.reduce(ReduceOp::SUM, PerReplica<IndexedSlices>{unknown, s1}, "/cpu:0")[0].dense_shape,
      (Shape{5, 2}));
  EXPECT_EQ(ops.reduce(ReduceOp::SUM, PerReplica<IndexedSlices>{unknown, unknown}, "/cpu:0")[0]
                .dense_shape,
            std::nullopt);
}

TEST_F(Sparse, RefusesShapesThatDisagree) {
  ReductionToOneDevice ops;
  const IndexedSlices unknown = rows({1, 2}, {1}, "/cpu:0", std::nullopt);
  const IndexedSlices six = rows({1, 2}, {1}, "/cpu:0", Shape{6, 2});
  const IndexedSlices wide{Tensor::of<float>({1, 2, 3}, "/cpu:0").reshape({1, 3}),
                           Tensor::of<int64_t>({1}, "/cpu:0")};
  const Tensor dense = Tensor::zeros({6, 2}, DType::float32, "/cpu:0");
  const auto refused = [&](const std::string& part, const PerReplica<Value>& value) {
    EXPECT_ERROR(InvalidArgumentError, "reduce: " + part,
                 ops.reduce(ReduceOp::SUM, value, "/cpu:0"));
  };
  refused("replicas 0 and 1 hold shapes [5, 2] and [6, 2]", {Value(s0), Value(six)});
  refused("replicas 0 and 1 hold shapes", {Value(s0), Value(wide)});
  refused("replicas 0 and 1 hold shapes [5, 2] and [6, 2]", {Value(s0), Value(dense)});
  refused("replicas 0 and 1 hold shapes unknown (IndexedSlices without a dense_shape) and [6, 2]",
          {Value(unknown), Value(dense)});
  refused("replicas 1 and 2 hold shapes", {Value(six), Value(unknown), Value(dense)});
}

// However many replicas that know no shape stand between two that disagree.
TEST_F(Sparse, RefusesShapesThatDisagreeAtADistance) {
  ReductionToOneDevice ops;
  const IndexedSlices unknown = rows({1, 2}, {1}, "/cpu:0", std::nullopt);
  const IndexedSlices six = rows({1, 2}, {1}, "/cpu:0", Shape{6, 2});
  const PerReplica<Value> value{Value(unknown), Value(s0), Value(unknown), Value(six)};
  EXPECT_ERROR(InvalidArgumentError, "reduce: replicas 1 and 3 hold shapes [5, 2] and [6, 2]",
               ops.reduce(ReduceOp::SUM, value, "/cpu:0"));
  const PerReplica<Value> joined{Value(s0), Value(unknown), Value(s0),
                                 Value(Tensor::zeros({5, 2}, DType::float32, "/cpu:0"))};
  EXPECT_ERROR(InvalidArgumentError, "reduce: replicas 1 and 3 hold shapes unknown",
               ops.reduce(ReduceOp::SUM, joined, "/cpu:0"));
}

TEST_F(Sparse, RefusesWhatSlicesDoNotHave) {
  ReductionToOneDevice ops;
  for (const ReduceOp op : {ReduceOp::MIN, ReduceOp::MAX, ReduceOp::PROD})
    EXPECT_ERROR(InvalidArgumentError,
                 "reduce: IndexedSlices have SUM and MEAN, not " + std::string(name(op)),
                 ops.reduce(op, v, v));
  const PerReplica<Value> mixed{Value(Tensor::zeros({5, 2}, DType::float32)), Value(s0)};
  EXPECT_ERROR(InvalidArgumentError, "IndexedSlices have SUM and MEAN, not MIN",
               ops.reduce(ReduceOp::MIN, mixed, "/cpu:0"));
  const IndexedSlices flags{Tensor::of<bool>({true}), Tensor::of<int64_t>({0})};
  EXPECT_ERROR(InvalidArgumentError, "reduce: bool has no SUM",
               ops.reduce(ReduceOp::SUM, flags, "/cpu:0"));
}

TEST_F(Sparse, RefusesIndicesOutsideTheShapeIfADenseValueJoins) {
  ReductionToOneDevice ops;
  const Tensor dense = Tensor::zeros({5, 2}, DType::float32, "/cpu:1");
  for (const int64_t index : {5, -1}) {
    const PerReplica<Value> value{Value(rows({1, 2}, {index}, "/cpu:0")), Value(dense)};
    EXPECT_ERROR(InvalidArgumentError, "index " + std::to_string(index),
                 ops.reduce(ReduceOp::SUM, value, value));
  }
  EXPECT_EQ(dense.to_vector<float>(), F(10, 0));
}

}  // namespace
}  // namespace tutti
