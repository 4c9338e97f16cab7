// SPDX-License-Identifier: Apache-2.0
// Strategy::reduce and gather: one tensor of what the replicas hold.
#include <cmath>
#include <limits>

#include "strategy/strategies.h"

namespace tutti {
namespace {

using testing::cpu;
using testing::cpus;
using testing::Floats;
using testing::number;
using testing::numbers;

class ReduceOn : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Replicas, ReduceOn, ::testing::Values(1, 2, 3, 4, 7));

class StrategyReduce : public ::testing::Test {
 protected:
  MirroredStrategy two_{cpus(2)};
  MirroredStrategy three_{cpus(3)};
};
using StrategyGather = StrategyReduce;

// C106, C107: replicas weigh as much as they hold.
TEST_P(ReduceOn, AlongAnAxisWeighsUnevenReplicas) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  double sum = 0, count = 0;
  for (int r = 0; r < n; ++r) {
    sum += r * (r + 1);
    count += r + 1;
  }
  for (const DType dtype : {DType::float32, DType::int32, DType::bfloat16}) {
    const PerReplica<Tensor> value = strategy.run([&](ReplicaContext& ctx) {
      const int id = ctx.local_replica_id();
      return Tensor::full({id + 1}, id, dtype);
    });
    const Tensor total = strategy.reduce(ReduceOp::SUM, value, 0);
    EXPECT_EQ(total.dtype(), dtype);
    EXPECT_EQ(total.shape(), Shape{});
    EXPECT_EQ(total.to(DType::float64).item<double>(), sum);
    const Tensor mean = strategy.reduce(ReduceOp::MEAN, value, 0);
    EXPECT_EQ(mean.dtype(), result_dtype(ReduceOp::MEAN, dtype));
    EXPECT_NEAR(mean.to(DType::float64).item<double>(), sum / count, 0.01);
  }
}

// C181
TEST_P(ReduceOn, AlongAnAxisOfEvenReplicas) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  const PerReplica<Tensor> value = strategy.run([] { return Tensor::of<float>({1, 2}); });
  EXPECT_EQ(strategy.reduce(ReduceOp::MEAN, value, 0).item<float>(), 1.5f);
  EXPECT_EQ(strategy.reduce(ReduceOp::SUM, value, 0).item<float>(), float(3 * n));
}

TEST_F(StrategyReduce, AlongAnyAxesCountsThemFromEitherEnd) {
  const auto cube = [](float first, const std::string& device) {
    const Tensor t = Tensor::empty({2, 3, 2}, DType::float32, device);
    for (float& x : t.span<float>()) x = first++;
    return t;
  };
  const PerReplica<Tensor> value{cube(0, cpu(0)), cube(12, cpu(1))};
  struct Case {
    std::vector<int64_t> axes;
    Shape shape;
    Floats sum;
  };
  for (const Case& c : {
           Case{{0}, {3, 2}, {36, 40, 44, 48, 52, 56}},
           Case{{-3}, {3, 2}, {36, 40, 44, 48, 52, 56}},
           Case{{1}, {2, 2}, {48, 54, 84, 90}},
           Case{{-1}, {2, 3}, {26, 34, 42, 50, 58, 66}},
           Case{{0, 2}, {3}, {76, 92, 108}},
           Case{{-1, 0}, {3}, {76, 92, 108}},
           Case{{2, 1, 0}, {}, {276}},
       }) {
    const Tensor sum = two_.reduce(ReduceOp::SUM, value, {.axes = c.axes});
    EXPECT_EQ(sum.shape(), c.shape);
    EXPECT_EQ(sum.to_vector<float>(), c.sum);
    const Tensor mean = two_.reduce("mean", value, {.axes = c.axes});
    const float count = 24.f / float(c.shape.num_elements());
    for (size_t i = 0; i < c.sum.size(); ++i)
      EXPECT_FLOAT_EQ(mean.to_vector<float>()[i], c.sum[i] / count);
  }
}

TEST_F(StrategyReduce, AlongAnAxisChecksIt) {
  const PerReplica<Tensor> value{Tensor::of<float>({1, 2}, cpu(0)), Tensor::of<float>({3}, cpu(1))};
  EXPECT_ERROR(InvalidArgumentError, "reduce: ", two_.reduce(ReduceOp::SUM, value, 1));
  EXPECT_ERROR(InvalidArgumentError, "-2", two_.reduce(ReduceOp::SUM, value, -2));
  EXPECT_ERROR(InvalidArgumentError, "twice", two_.reduce(ReduceOp::SUM, value, {.axes = {0, -1}}));
  EXPECT_ERROR(InvalidArgumentError, "MAX", two_.reduce(ReduceOp::MAX, value, 0));
  EXPECT_ERROR(InvalidArgumentError, "axis", two_.reduce(ReduceOp::SUM, numbers({1, 2}), 0));
  const Tensor flag = Tensor::of<bool>({true});
  EXPECT_ERROR(InvalidArgumentError, "bool",
               two_.reduce(ReduceOp::SUM, PerReplica<Tensor>{flag, flag}, 0));
  EXPECT_ERROR(InvalidArgumentError, "float64",
               two_.reduce(ReduceOp::SUM,
                           PerReplica<Tensor>{Tensor::of<float>({1}), Tensor::of<double>({1})}, 0));
}

TEST_F(StrategyReduce, AlongAnAxisChecksWhatIsLeft) {
  const PerReplica<Tensor> value{Tensor::zeros({2, 3}, DType::float32, cpu(0)),
                                 Tensor::zeros({2, 4}, DType::float32, cpu(1))};
  EXPECT_ERROR(InvalidArgumentError, "[3] and [4]", two_.reduce(ReduceOp::SUM, value, 0));
  EXPECT_EQ(two_.reduce(ReduceOp::SUM, value, 1).shape(), Shape{2});
}

// A replica without a batch contributes nothing, and never a NaN.
TEST_F(StrategyReduce, AlongAnAxisIgnoresEmptyReplicas) {
  const PerReplica<Tensor> value{Tensor::of<float>({2, 4}, cpu(0)),
                                 Tensor::zeros({0}, DType::float32, cpu(1)),
                                 Tensor::zeros({0}, DType::float32, cpu(2))};
  EXPECT_EQ(three_.reduce(ReduceOp::MEAN, value, 0).item<float>(), 3.f);
  EXPECT_EQ(three_.reduce(ReduceOp::SUM, value, 0).item<float>(), 6.f);
}

TEST_F(StrategyReduce, HasNoMeanOfNothing) {
  const Tensor nothing = Tensor::zeros({0, 2}, DType::float32);
  const PerReplica<Tensor> value{nothing, nothing};
  EXPECT_ERROR(InvalidArgumentError, "nothing", two_.reduce(ReduceOp::MEAN, value, 0));
  EXPECT_EQ(two_.reduce(ReduceOp::SUM, value, 0).to_vector<float>(), Floats({0, 0}));
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value, 1).num_elements(), 0);
}

TEST_F(StrategyReduce, DividesIntegersTruly) {
  struct Case {
    DType dtype, mean;
  };
  for (const Case& c :
       {Case{DType::int8, DType::float32}, Case{DType::uint8, DType::float32},
        Case{DType::int16, DType::float32}, Case{DType::uint16, DType::float32},
        Case{DType::int32, DType::float64}, Case{DType::uint32, DType::float64},
        Case{DType::int64, DType::float64}, Case{DType::uint64, DType::float64},
        Case{DType::float16, DType::float16}, Case{DType::bfloat16, DType::bfloat16},
        Case{DType::float32, DType::float32}, Case{DType::float64, DType::float64}}) {
    const PerReplica<Tensor> value{Tensor::full({1}, 100, c.dtype),
                                   Tensor::full({1}, 101, c.dtype)};
    const Tensor scalar_mean = two_.reduce(ReduceOp::MEAN, value);
    const Tensor axis_mean = two_.reduce(ReduceOp::MEAN, value, 0);
    for (const Tensor& mean : {scalar_mean, axis_mean}) {
      EXPECT_EQ(mean.dtype(), c.mean) << c.dtype;
      EXPECT_EQ(mean.to(DType::float64).to_vector<double>()[0], 100.5) << c.dtype;
    }
    EXPECT_EQ(two_.reduce(ReduceOp::SUM, value, 0).dtype(), c.dtype);
  }
}

TEST_F(StrategyReduce, WrapsIntegerSumsLikeTheirType) {
  const PerReplica<Tensor> value{Tensor::of<int8_t>({100, 100}), Tensor::of<int8_t>({100, 0})};
  EXPECT_EQ(two_.reduce(ReduceOp::SUM, value, 0).item<int8_t>(), int8_t(300));
}

// As without an axis: 64-bit integers are added up in 128.
TEST_F(StrategyReduce, AlongAnAxisDoesNotOverflowInAMean) {
  const int64_t big = int64_t(1) << 62;
  const PerReplica<Tensor> value{Tensor::of<int64_t>({big, big}), Tensor::of<int64_t>({big, big})};
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value, 0).item<double>(), double(big));
}

TEST_F(StrategyReduce, AlongAnAxisKeepsLargeUnsignedNumbersPositiveInAMean) {
  const uint64_t big = uint64_t(1) << 63;
  const PerReplica<Tensor> value{Tensor::of<uint64_t>({big}), Tensor::of<uint64_t>({big})};
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value).item<double>(), double(big));
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value, 0).item<double>(), double(big));
}

TEST_F(StrategyReduce, GoesToTheCurrentDevice) {
  const PerReplica<Tensor> value = numbers({1, 2});
  EXPECT_EQ(two_.reduce(ReduceOp::SUM, value).device(), cpu(0));
  const DeviceScope scope(cpu(5));
  EXPECT_EQ(two_.reduce(ReduceOp::SUM, value).device(), cpu(5));
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value, {.weights = {1, 1}}).device(), cpu(5));
  const PerReplica<Tensor> rows{Tensor::of<float>({1}, cpu(0)), Tensor::of<float>({1}, cpu(1))};
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, rows, 0).device(), cpu(5));
  EXPECT_EQ(two_.gather(rows, 0).device(), cpu(5));
}

TEST_F(StrategyReduce, WeighsReplicas) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Case {
    PerReplica<Tensor> value;
    std::vector<double> weights;
    float expected;
  };
  for (const Case& c :
       {Case{numbers({0, 1, 2}), {1, 2, 3}, 8.f / 6}, Case{numbers({nan, 1, 3}), {0, 1, 1}, 2},
        Case{numbers({INFINITY, 5, -INFINITY}), {0, 2, 0}, 5},
        Case{numbers({6, 0, 0}), {1e-300, 1e-300, 1e-300}, 2}})
    EXPECT_FLOAT_EQ(three_.reduce(ReduceOp::MEAN, c.value, {.weights = c.weights}).item<float>(),
                    c.expected);
}

TEST_F(StrategyReduce, WeighsIntegersIntoFloats) {
  const PerReplica<Tensor> value{Tensor::scalar<int32_t>(1), Tensor::scalar<int32_t>(2)};
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value, {.weights = {3, 1}}).item<double>(), 1.25);
}

TEST_F(StrategyReduce, RefusesWeightsThatHaveNoMean) {
  struct Case {
    ReduceOp op;
    std::vector<double> weights;
    const char* text;
  };
  for (const Case& c :
       {Case{ReduceOp::MEAN, {0, 0, 0}, "weight"}, Case{ReduceOp::MEAN, {1, -1, 1}, "-1"},
        Case{ReduceOp::MEAN, {1, 1}, "2 weights"}, Case{ReduceOp::MEAN, {1, 1, 1, 1}, "4 weights"},
        Case{ReduceOp::MEAN, {1, NAN, 1}, "nan"}, Case{ReduceOp::MEAN, {1, INFINITY, 1}, "inf"},
        Case{ReduceOp::SUM, {1, 1, 1}, "MEAN"}})
    EXPECT_ERROR(InvalidArgumentError, c.text,
                 three_.reduce(c.op, numbers({1, 2, 3}), {.weights = c.weights}));
  EXPECT_ERROR(
      InvalidArgumentError, "axes",
      three_.reduce(ReduceOp::MEAN, numbers({1, 2, 3}), {.weights = {1, 1, 1}, .axes = {0}}));
  EXPECT_ERROR(InvalidArgumentError, "PerReplica",
               three_.reduce(ReduceOp::MEAN, number(1), {.weights = {1, 1, 1}}));
}

TEST_F(StrategyReduce, CountsWhatIsTheSameOnAllReplicasOnce) {
  const Tensor plain = Tensor::of<float>({1, 2, 6});
  const Mirrored<Tensor> mirrored{plain.clone_to(cpu(0)), plain.clone_to(cpu(1))};
  for (const DistributedTensor& value : {DistributedTensor(plain), DistributedTensor(mirrored)}) {
    EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value).to_vector<float>(), Floats({1, 2, 6}));
    EXPECT_EQ(two_.reduce(ReduceOp::MEAN, value, 0).item<float>(), 3.f);
    EXPECT_ERROR(InvalidArgumentError, "SUM", two_.reduce(ReduceOp::SUM, value));
    EXPECT_ERROR(InvalidArgumentError, "SUM", two_.reduce(ReduceOp::SUM, value, 0));
  }
}

TEST_F(StrategyReduce, RefusesAValueWithoutReplicas) {
  EXPECT_ERROR(InvalidArgumentError, "no replicas",
               two_.reduce(ReduceOp::SUM, PerReplica<Tensor>{}));
  EXPECT_ERROR(InvalidArgumentError, "no replicas",
               two_.reduce(ReduceOp::SUM, PerReplica<Tensor>{}, 0));
}

// C184
TEST_F(StrategyGather, JoinsAlongAnyAxis) {
  const auto both = [](const Tensor& t) {
    return PerReplica<Tensor>{t.clone_to(cpu(0)), t.clone_to(cpu(1))};
  };
  const PerReplica<Tensor> line = both(Tensor::of<float>({1, 2, 3}));
  const PerReplica<Tensor> row = both(Tensor::of<float>({1, 2, 3}).reshape({1, 3}));
  const PerReplica<Tensor> cube = both(Tensor::of<float>({1, 2, 3, 4}).reshape({1, 2, 2}));
  struct Case {
    PerReplica<Tensor> value;
    int64_t axis;
    Shape shape;
    Floats expected;
  };
  for (const Case& c : {
           Case{line, 0, {6}, {1, 2, 3, 1, 2, 3}},
           Case{row, 0, {2, 3}, {1, 2, 3, 1, 2, 3}},
           Case{row, 1, {1, 6}, {1, 2, 3, 1, 2, 3}},
           Case{cube, 0, {2, 2, 2}, {1, 2, 3, 4, 1, 2, 3, 4}},
           Case{cube, 1, {1, 4, 2}, {1, 2, 3, 4, 1, 2, 3, 4}},
           Case{cube, 2, {1, 2, 4}, {1, 2, 1, 2, 3, 4, 3, 4}},
           Case{cube, -1, {1, 2, 4}, {1, 2, 1, 2, 3, 4, 3, 4}},
       }) {
    const Tensor all = two_.gather(c.value, c.axis);
    EXPECT_EQ(all.shape(), c.shape) << "axis " << c.axis;
    EXPECT_EQ(all.to_vector<float>(), c.expected) << "axis " << c.axis;
  }
}

// C185
TEST_P(ReduceOn, GatherJoinsUnevenReplicas) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  for (const int64_t axis : {0, 1}) {
    const PerReplica<Tensor> value = strategy.run([&](ReplicaContext& ctx) {
      const int id = ctx.local_replica_id();
      return Tensor::full(axis == 0 ? Shape{id + 1, 1} : Shape{1, id + 1}, id, DType::float32);
    });
    const int64_t total = n * (n + 1) / 2;
    const Tensor all = strategy.gather(value, axis);
    EXPECT_EQ(all.shape(), (axis == 0 ? Shape{total, 1} : Shape{1, total}));
    EXPECT_EQ(all.to_vector<float>().back(), float(n - 1));
  }
}

// C187
TEST_F(StrategyGather, NeedsShapesThatAgree) {
  const auto gather = [&](Shape first, Shape second, int64_t axis) {
    two_.gather(PerReplica<Tensor>{Tensor::zeros(first, DType::float32),
                                   Tensor::zeros(second, DType::float32)},
                axis);
  };
  EXPECT_ERROR(InvalidArgumentError, "[1, 1]", gather({1}, {1, 1}, 0));
  EXPECT_ERROR(InvalidArgumentError, "[1, 3]", gather({1, 2}, {1, 3}, 0));
  EXPECT_ERROR(InvalidArgumentError, "scalar", gather({}, {}, 0));
  EXPECT_ERROR(InvalidArgumentError, "axis", gather({1}, {1}, 1));
}

// C188
TEST_F(StrategyGather, LeavesSlicesAlone) {
  const IndexedSlices slices = testing::rows({1}, {0});
  EXPECT_ERROR(UnimplementedError, "IndexedSlices",
               two_.extended().cross_device_ops().gather(PerReplica<IndexedSlices>{slices, slices},
                                                         cpu(0), 0));
}

TEST_F(StrategyGather, ReturnsACopyOfWhatIsTheSameOnAllReplicas) {
  const Tensor plain = Tensor::of<float>({1, 2});
  const Tensor copy = two_.gather(plain, 0);
  EXPECT_EQ(copy.to_vector<float>(), Floats({1, 2}));
  EXPECT_NE(copy.const_data(), plain.const_data());
  EXPECT_EQ(two_.gather(Mirrored<Tensor>{plain, plain}, 0).to_vector<float>(), Floats({1, 2}));
}

TEST_F(StrategyReduce, TakesANumberOfEachReplica) {
  const PerReplica<float> losses =
      three_.run([](ReplicaContext& ctx) { return float(ctx.replica_id_in_sync_group()); });
  const float n = float(losses.size());
  const float mean = three_.reduce(ReduceOp::MEAN, losses);
  EXPECT_EQ(mean, (n - 1) / 2);
  EXPECT_EQ(three_.reduce("sum", losses.map([](float x) { return int32_t(x) + 1; })),
            int32_t(n * (n + 1) / 2));
  std::vector<double> weights(losses.size(), 0);
  weights[1] = 2;
  EXPECT_EQ(three_.reduce(ReduceOp::MEAN, losses, {.weights = weights}), 1.f);
}

TEST_F(StrategyReduce, JoinsSlices) {
  const PerReplica<IndexedSlices> slices = three_.run([](ReplicaContext& ctx) {
    const int64_t id = ctx.replica_id_in_sync_group();
    return IndexedSlices{Tensor::of<float>({float(id)}, ctx.device()),
                         Tensor::of<int64_t>({id}, ctx.device())};
  });
  const IndexedSlices sum = three_.reduce(ReduceOp::SUM, slices);
  std::vector<int64_t> rows;
  for (size_t i = 0; i < slices.size(); ++i) rows.push_back(int64_t(i));
  EXPECT_EQ(sum.indices.to_vector<int64_t>(), rows);
  EXPECT_EQ(sum.values.to_vector<float>()[1], 1.f);
  const float n = float(slices.size());
  EXPECT_EQ(three_.reduce(ReduceOp::MEAN, slices).values.to_vector<float>()[1], 1 / n);
  EXPECT_ERROR(InvalidArgumentError, "IndexedSlices have no axes",
               three_.reduce(ReduceOp::SUM, slices, {.axes = {0}}));
}

}  // namespace
}  // namespace tutti
