// SPDX-License-Identifier: Apache-2.0
// Scatter updates of variables: rows, one after another.
#include <cmath>
#include <functional>
#include <limits>

#include "strategy/strategies.h"

namespace tutti {
namespace {

using testing::cpus;
using testing::Floats;
using testing::rows;
using Aggregation = VariableAggregation;

struct ScatterMethod {
  const char* name;
  void (Variable::*scatter)(const IndexedSlices&) const;
  float expected;  // of 4 and 2
};
const ScatterMethod kMethods[] = {
    {"scatter_add", &Variable::scatter_add, 6},       {"scatter_sub", &Variable::scatter_sub, 2},
    {"scatter_mul", &Variable::scatter_mul, 8},       {"scatter_div", &Variable::scatter_div, 2},
    {"scatter_min", &Variable::scatter_min, 2},       {"scatter_max", &Variable::scatter_max, 4},
    {"scatter_update", &Variable::scatter_update, 2},
};

class Scatter : public ::testing::Test {
 protected:
  static Variable make(Floats values, Aggregation aggregation = Aggregation::NONE,
                       VariableSynchronization synchronization = VariableSynchronization::AUTO) {
    return Variable::create(
        Tensor::of<float>(std::span<const float>(values)),
        {.name = "table", .synchronization = synchronization, .aggregation = aggregation});
  }
  static void expect(const Variable& v, const Floats& values) {
    for (size_t i = 0; i < v.size(); ++i) EXPECT_EQ(v.component(i).to_vector<float>(), values) << i;
  }

  MirroredStrategy strategy_{cpus(2)};
  Scope scope_ = strategy_.scope();
};

TEST_F(Scatter, ChangesTheNamedRowsOfAllComponents) {
  for (const ScatterMethod& m : kMethods)
    for (const Aggregation aggregation : {Aggregation::NONE, Aggregation::SUM, Aggregation::MEAN,
                                          Aggregation::ONLY_FIRST_REPLICA}) {
      SCOPED_TRACE(m.name);
      const bool summed = aggregation == Aggregation::SUM || aggregation == Aggregation::MEAN;
      if (summed && &m >= &kMethods[4]) continue;  // which have no sum
      const Variable v = make({4, 4, 4}, aggregation);
      (v.*m.scatter)(rows({2, 2}, {2, 0}));
      expect(v, {m.expected, 4, m.expected});
    }
}

TEST_F(Scatter, TakesRowsOfSeveralElementsAndInt32Indices) {
  const Variable v = Variable::create(Tensor::zeros({3, 2}, DType::float32));
  v.scatter_add({Tensor::of<float>({1, 2}).reshape({1, 2}), Tensor::of<int32_t>({1})});
  expect(v, {0, 0, 1, 2, 0, 0});
}

TEST_F(Scatter, TakesARowTwiceOneAfterTheOther) {
  const Variable v = make({1, 1});
  v.scatter_add(rows({2, 3}, {1, 1}));
  expect(v, {1, 6});
  v.scatter_mul(rows({2, 2}, {1, 1}));
  expect(v, {1, 24});
  v.scatter_update(rows({5, 7}, {0, 0}));
  expect(v, {7, 24});
  v.scatter_add(rows({}, {}));
  expect(v, {7, 24});
}

// C164, in either context.
TEST_F(Scatter, AppliesASequenceToTheOwnComponent) {
  struct Step {
    void (Variable::*scatter)(const IndexedSlices&) const;
    float expected;
  };
  const Step steps[] = {{&Variable::scatter_sub, 2},   {&Variable::scatter_add, 4},
                        {&Variable::scatter_max, 4},   {&Variable::scatter_min, 2},
                        {&Variable::scatter_mul, 4},   {&Variable::scatter_div, 2},
                        {&Variable::scatter_update, 2}};
  const auto apply = [&](const Variable& v) {
    for (const Step& step : steps) {
      (v.*step.scatter)(rows({2}, {0}));
      EXPECT_EQ(v.read_value().to_vector<float>(), Floats({step.expected}));
    }
  };
  const Variable v = make({4}), w = make({4});
  apply(v);
  expect(v, {2});
  strategy_.run([&] { apply(w); });
  expect(w, {2});
}

TEST_F(Scatter, InAReplicaWithoutAggregationIsLocal) {
  const Variable v = make({0, 0});
  strategy_.run([&](ReplicaContext& ctx) { v.scatter_add(rows({1}, {ctx.local_replica_id()})); });
  EXPECT_EQ(v.component(0).to_vector<float>(), Floats({1, 0}));
  EXPECT_EQ(v.component(1).to_vector<float>(), Floats({0, 1}));
}

TEST_F(Scatter, InReplicasIsAggregated) {
  struct Case {
    Aggregation aggregation;
    Floats expected;
  };
  for (const Case& c : {Case{Aggregation::SUM, {7, 2, 0}}, Case{Aggregation::MEAN, {3.5f, 1, 0}},
                        Case{Aggregation::ONLY_FIRST_REPLICA, {3, 0, 0}}}) {
    const Variable v = make({0, 0, 0}, c.aggregation);
    strategy_.run([&](ReplicaContext& ctx) {
      v.scatter_add(ctx.local_replica_id() == 0 ? rows({3}, {0}) : rows({4, 2}, {0, 1}));
    });
    expect(v, c.expected);
  }
}

// C163
TEST_F(Scatter, HasNoSumOfExtremesInEitherContext) {
  for (const ScatterMethod& m : {kMethods[4], kMethods[5], kMethods[6]}) {
    SCOPED_TRACE(m.name);
    for (const Aggregation aggregation : {Aggregation::SUM, Aggregation::MEAN}) {
      const Variable v = make({4}, aggregation);
      const auto scatter = [&] { (v.*m.scatter)(rows({2}, {0})); };
      const std::string text = std::string(m.name) + ": not defined for the variable \"table\"";
      EXPECT_ERROR(UnimplementedError, text, strategy_.run(scatter));
      EXPECT_ERROR(UnimplementedError, text, scatter());
      expect(v, {4});
    }
    const Variable first = make({4}, Aggregation::ONLY_FIRST_REPLICA);
    strategy_.run([&](ReplicaContext& ctx) {
      (first.*m.scatter)(rows({float(2 + 10 * ctx.local_replica_id())}, {0}));
    });
    expect(first, {m.expected});
  }
}

// C173
TEST_F(Scatter, IsUnknownToVariablesSynchronisedOnRead) {
  for (const ScatterMethod& m : kMethods)
    for (const Aggregation aggregation : {Aggregation::NONE, Aggregation::SUM, Aggregation::MEAN,
                                          Aggregation::ONLY_FIRST_REPLICA}) {
      const Variable v = make({4}, aggregation, VariableSynchronization::ON_READ);
      EXPECT_ERROR(UnimplementedError, m.name, (v.*m.scatter)(rows({2}, {0})));
      EXPECT_ERROR(UnimplementedError, m.name,
                   strategy_.run([&] { (v.*m.scatter)(rows({2}, {0})); }));
    }
}

TEST_F(Scatter, ChecksEverythingBeforeItWrites) {
  const Variable v = make({4, 4});
  EXPECT_ERROR(InvalidArgumentError, "row 2", v.scatter_add(rows({1, 1}, {0, 2})));
  EXPECT_ERROR(InvalidArgumentError, "row -1", v.scatter_add(rows({1, 1}, {0, -1})));
  EXPECT_ERROR(InvalidArgumentError, "[1, 1]",
               v.scatter_add({Tensor::zeros({1, 1}, DType::float32), Tensor::of<int64_t>({0})}));
  EXPECT_ERROR(InvalidArgumentError, "float64",
               v.scatter_add({Tensor::of<double>({1}), Tensor::of<int64_t>({0})}));
  EXPECT_ERROR(InvalidArgumentError, "scatter_add", v.scatter_add(rows({1, 1}, {0})));
  EXPECT_ERROR(InvalidArgumentError, "scatter_add",
               v.scatter_add({Tensor::of<float>({1}), Tensor::of<float>({0})}));
  EXPECT_ERROR(InvalidArgumentError, "[]",
               Variable::create(testing::number(1)).scatter_add(rows({1}, {0})));
  expect(v, {4, 4});
}

TEST_F(Scatter, DividesFloatsByZeroLikeTheirType) {
  const Variable v = make({1, -1, 0});
  v.scatter_div(rows({0, 0, 0}, {0, 1, 2}));
  const Floats values = v.component(0).to_vector<float>();
  EXPECT_EQ(values[0], INFINITY);
  EXPECT_EQ(values[1], -INFINITY);
  EXPECT_TRUE(std::isnan(values[2]));
}

TEST_F(Scatter, DividesIntegersByAnythingButZero) {
  const auto ints = [](int64_t value) {
    return IndexedSlices{Tensor::of<int64_t>({value}), Tensor::of<int64_t>({0})};
  };
  const Variable v = Variable::create(Tensor::of<int64_t>({-7}));
  EXPECT_ERROR(InvalidArgumentError, "0", v.scatter_div(ints(0)));
  v.scatter_div(ints(2));
  EXPECT_EQ(v.component(1).to_vector<int64_t>()[0], -3);
}

// The quotient does not fit; the processor's own division would end the process.
TEST_F(Scatter, WrapsTheOneIntegerQuotientThatDoesNotFit) {
  const auto divide = []<class T>(T) {
    const Variable v = Variable::create(Tensor::of<T>({std::numeric_limits<T>::min()}));
    v.scatter_div({Tensor::of<T>({T(-1)}), Tensor::of<int64_t>({0})});
    EXPECT_EQ(v.component(0).template to_vector<T>()[0], std::numeric_limits<T>::min());
  };
  divide(int8_t());
  divide(int32_t());
  divide(int64_t());
}

TEST_F(Scatter, WorksOnEveryDtype) {
  for (const DType dtype : {DType::int8, DType::uint16, DType::int32, DType::uint64, DType::float16,
                            DType::bfloat16, DType::float64}) {
    const Variable v =
        Variable::create(Tensor::full({2}, 4, dtype), {.aggregation = Aggregation::SUM});
    strategy_.run([&] { v.scatter_add({Tensor::full({1}, 2, dtype), Tensor::of<int64_t>({1})}); });
    EXPECT_EQ(v.component(1).to(DType::float32).to_vector<float>(), Floats({4, 8})) << dtype;
  }
}

}  // namespace
}  // namespace tutti
