// SPDX-License-Identifier: Apache-2.0
// Variables: one component per device, kept in step by their synchronization and aggregation.
#include <numeric>

#include "strategy/strategies.h"
#include "support/reference.h"

namespace tutti {
namespace {

using testing::cpu;
using testing::cpus;
using ::testing::ElementsAre;
using testing::Floats;
using testing::id_of;
using testing::number;
using testing::numbers;
using Aggregation = VariableAggregation;
using Synchronization = VariableSynchronization;

constexpr Aggregation kAggregations[] = {Aggregation::NONE, Aggregation::SUM, Aggregation::MEAN,
                                         Aggregation::ONLY_FIRST_REPLICA};

Floats components(const Variable& v) {
  Floats values;
  for (size_t i = 0; i < v.size(); ++i)
    values.push_back(v.component(i).to(DType::float32).to_vector<float>().at(0));
  return values;
}

class Variables : public ::testing::Test {
 protected:
  Variable on_read(double initial, Aggregation aggregation) {
    return Variable::create(
        number(initial), {.synchronization = Synchronization::ON_READ, .aggregation = aggregation});
  }

  MirroredStrategy strategy_{cpus(2)};
  Scope scope_ = strategy_.scope();
};

TEST_F(Variables, HaveAComponentOnEveryDevice) {
  const Tensor initial = Tensor::of<float>({1, 2});
  const Variable v = Variable::create(initial, {.name = "v"});
  EXPECT_EQ(v.name(), "v");
  EXPECT_EQ(v.dtype(), DType::float32);
  EXPECT_EQ(v.shape(), Shape{2});
  EXPECT_EQ(&v.strategy(), &strategy_);
  EXPECT_THAT(v.devices(), ElementsAre(cpu(0), cpu(1)));
  EXPECT_EQ(v.component(1).device(), cpu(1));
  EXPECT_EQ(v.component(1).to_vector<float>(), Floats({1, 2}));
  EXPECT_NE(v.component(0).const_data(), v.component(1).const_data());
  EXPECT_NE(v.component(0).const_data(), initial.const_data());
  EXPECT_ERROR(OutOfRangeError, "2", v.component(2));
  const Variable same = v;
  EXPECT_EQ(same, v);
  EXPECT_FALSE(same == Variable::create(initial, {.name = "v"}));
}

TEST_F(Variables, HaveDefaultsThatFollowFromTheirSynchronization) {
  const Variable plain = Variable::create(number(1));
  EXPECT_EQ(plain.name(), "Variable");
  EXPECT_EQ(plain.synchronization(), Synchronization::ON_WRITE);
  EXPECT_EQ(plain.aggregation(), Aggregation::NONE);
  EXPECT_TRUE(plain.trainable());
  EXPECT_FALSE(on_read(1, Aggregation::SUM).trainable());
  EXPECT_FALSE(Variable::create(number(1), {.trainable = false}).trainable());
  EXPECT_TRUE(
      Variable::create(number(1), {.synchronization = Synchronization::ON_READ, .trainable = true})
          .trainable());
}

// C148, C149
TEST_F(Variables, AreRefusedWithoutASynchronizationOrAMean) {
  EXPECT_ERROR(InvalidArgumentError, "NONE",
               Variable::create(number(1), {.synchronization = Synchronization::NONE}));
  for (const DType dtype : testing::kDTypes) {
    const auto create = [&] {
      return Variable::create(Tensor::zeros({1}, dtype), {.aggregation = Aggregation::MEAN});
    };
    if (is_floating(dtype)) {
      create();
    } else {
      EXPECT_ERROR(InvalidArgumentError, std::string(name(dtype)), create());
    }
  }
  EXPECT_ERROR(InvalidArgumentError, "nothing", Variable::create(Tensor()));
  EXPECT_ERROR(InvalidArgumentError, "NONE", strategy_.run([] {
    Variable::create(number(1), {.synchronization = Synchronization::NONE});
  }));
}

TEST_F(Variables, HaveOneComponentOutsideOfAnyStrategy) {
  scope_.close();
  const Variable v = Variable::create(number(1));
  EXPECT_EQ(v.size(), 1u);
  v.assign_add(number(2));
  EXPECT_EQ(v.read_value().item<float>(), 3.f);
  EXPECT_EQ(&v.strategy(), &get_strategy());
}

enum class Update { assign, assign_add, assign_sub };
const char* const kNames[] = {"assign", "assign_add", "assign_sub"};

void write(const Variable& v, Update update, const Tensor& value) {
  if (update == Update::assign) v.assign(value);
  if (update == Update::assign_add) v.assign_add(value);
  if (update == Update::assign_sub) v.assign_sub(value);
}

float updated(Update update, float old, float value) {
  return update == Update::assign       ? value
         : update == Update::assign_add ? old + value
                                        : old - value;
}

// C137, C140, C142, C154, C160, C166, C167, from 10; cross-replica with 4, in replica r with r + 1.
TEST_F(Variables, AreWrittenAsSynchronizationAggregationAndContextSay) {
  for (const Synchronization synchronization :
       {Synchronization::ON_WRITE, Synchronization::ON_READ})
    for (const Aggregation aggregation : kAggregations)
      for (const Update update : {Update::assign, Update::assign_add, Update::assign_sub})
        for (const bool in_replica : {false, true}) {
          SCOPED_TRACE(::testing::Message()
                       << name(synchronization) << " " << aggregation << " "
                       << kNames[size_t(update)] << " in replica: " << in_replica);
          const Variable v = Variable::create(
              number(10), {.synchronization = synchronization, .aggregation = aggregation});
          const bool local =
              synchronization == Synchronization::ON_READ || aggregation == Aggregation::NONE;
          if (in_replica) {
            strategy_.run(
                [&](ReplicaContext& ctx) { write(v, update, number(ctx.local_replica_id() + 1)); });
            const Floats values = local                              ? Floats{1, 2}
                                  : aggregation == Aggregation::SUM  ? Floats{3, 3}
                                  : aggregation == Aggregation::MEAN ? Floats{1.5f, 1.5f}
                                                                     : Floats{1, 1};
            EXPECT_THAT(components(v), ElementsAre(updated(update, 10, values[0]),
                                                   updated(update, 10, values[1])));
          } else if (synchronization == Synchronization::ON_READ &&
                     aggregation == Aggregation::SUM) {
            if (update == Update::assign) {
              v.assign(number(4));
              EXPECT_THAT(components(v), ElementsAre(2, 2));
            } else {
              EXPECT_ERROR(InvalidArgumentError, kNames[size_t(update)],
                           write(v, update, number(4)));
              EXPECT_THAT(components(v), ElementsAre(10, 10));
            }
          } else {
            write(v, update, number(4));
            EXPECT_THAT(components(v), ElementsAre(updated(update, 10, 4), updated(update, 10, 4)));
          }
        }
}

// C142
TEST_F(Variables, AverageWhatReplicasSubtract) {
  const Variable v = Variable::create(number(5), {.aggregation = Aggregation::MEAN});
  strategy_.run([&](ReplicaContext& ctx) { v.assign_sub(id_of(ctx)); });
  EXPECT_THAT(components(v), ElementsAre(4.5f, 4.5f));
  strategy_.run([&] { v.assign_sub(number(1)); });
  EXPECT_THAT(components(v), ElementsAre(3.5f, 3.5f));
}

// C112
TEST_F(Variables, CountStepsOnceForAllReplicas) {
  const Variable step = Variable::create(Tensor::scalar<int64_t>(0),
                                         {.aggregation = Aggregation::ONLY_FIRST_REPLICA});
  const PerReplica<int64_t> seen = strategy_.run([&] {
    step.assign_add(Tensor::scalar<int64_t>(1));
    return step.read_value().item<int64_t>();
  });
  EXPECT_THAT(std::vector<int64_t>(seen.begin(), seen.end()), ElementsAre(1, 1));
}

// C145, C170, C169, C157
TEST_F(Variables, AreReadAsSynchronizationAndAggregationSay) {
  for (const int n : {1, 2, 3, 7}) {
    scope_.close();
    MirroredStrategy strategy(cpus(size_t(n)));
    const Scope scope = strategy.scope();
    for (const Aggregation aggregation : kAggregations) {
      const Variable v = on_read(1, aggregation);
      strategy.run([&](ReplicaContext& ctx) {
        v.assign(id_of(ctx));
        EXPECT_EQ(v.read_value().item<float>(), float(ctx.local_replica_id()));
        EXPECT_EQ(v.read_value().device(), ctx.device());
      });
      if (aggregation == Aggregation::NONE) {
        EXPECT_ERROR(InvalidArgumentError, "NONE", v.read_value());
        continue;
      }
      const float expected = aggregation == Aggregation::SUM    ? float(n * (n - 1)) / 2
                             : aggregation == Aggregation::MEAN ? float(n - 1) / 2
                                                                : 0;
      EXPECT_EQ(v.read_value().item<float>(), expected) << n << " " << aggregation;
      if (aggregation == Aggregation::MEAN) {
        v.assign(number(6));
        EXPECT_EQ(v.read_value().item<float>(), 6.f);
      }
    }
  }
}

TEST_F(Variables, AreReadFromTheCurrentDeviceAsACopy) {
  const Variable v = Variable::create(number(1));
  const DeviceScope device(cpu(1));
  const Tensor value = v.read_value();
  EXPECT_EQ(value.device(), cpu(1));
  value.span<float>()[0] = 9;
  EXPECT_THAT(components(v), ElementsAre(1, 1));
}

// C151
TEST_F(Variables, SynchronisedOnReadKeepWhatEachReplicaCounted) {
  const Variable sum = on_read(1, Aggregation::SUM), mean = on_read(0, Aggregation::MEAN);
  strategy_.run([&](ReplicaContext& ctx) {
    sum.assign_add(number(2 + ctx.local_replica_id()));
    mean.assign(number(6 * ctx.local_replica_id()));
  });
  EXPECT_THAT(components(sum), ElementsAre(3, 4));
  EXPECT_THAT(components(mean), ElementsAre(0, 6));
  EXPECT_EQ(sum.read_value().item<float>(), 7.f);
  EXPECT_EQ(mean.read_value().item<float>(), 3.f);
}

// C167: an assignment is shared out so that reading gives it back, even if it does not divide.
TEST_F(Variables, ThatAreSumsOfIntegersGiveBackWhatWasAssigned) {
  for (const int64_t value : {int64_t(2), int64_t(5), int64_t(-7), (int64_t(1) << 60) + 2}) {
    const Variable v = Variable::create(
        Tensor::scalar<int64_t>(0),
        {.synchronization = Synchronization::ON_READ, .aggregation = Aggregation::SUM});
    v.assign(Tensor::scalar<int64_t>(value));
    EXPECT_EQ(v.read_value().item<int64_t>(), value);
  }
}

// C155
TEST_F(Variables, TakeTheValueOfAnother) {
  const Variable v = Variable::create(number(1)), two = Variable::create(number(2));
  v.assign(two);
  EXPECT_THAT(components(v), ElementsAre(2, 2));
}

TEST_F(Variables, TakeAMirroredValueComponentByComponent) {
  const Mirrored<Tensor> value{number(3, cpu(0)), number(3, cpu(1))};
  for (const Aggregation aggregation : kAggregations) {
    const Variable v = Variable::create(number(10), {.aggregation = aggregation});
    v.assign_add(value);
    EXPECT_THAT(components(v), ElementsAre(13, 13));
    v.assign_sub(value);
    v.assign_sub(value);
    EXPECT_THAT(components(v), ElementsAre(7, 7));
    v.assign(value);
    EXPECT_THAT(components(v), ElementsAre(3, 3));
  }
  const Variable counted = on_read(0, Aggregation::SUM);
  counted.assign(value);
  EXPECT_EQ(counted.read_value().item<float>(), 3.f);
  const Variable v = Variable::create(number(10), {.aggregation = Aggregation::MEAN});
  strategy_.run([&] { v.assign(value); });
  EXPECT_THAT(components(v), ElementsAre(3, 3));
  EXPECT_ERROR(InvalidArgumentError, "1", v.assign(Mirrored<Tensor>{number(1)}));
  EXPECT_ERROR(InvalidArgumentError, "[2]",
               v.assign(Mirrored<Tensor>{number(1), Tensor::of<float>({1, 2})}));
  EXPECT_THAT(components(v), ElementsAre(3, 3));
}

// C158
TEST_F(Variables, AreAssignedOutsideOfTheScope) {
  const Variable v = Variable::create(number(1));
  scope_.close();
  v.assign(number(3));
  v.assign_add(number(1));
  EXPECT_THAT(components(v), ElementsAre(4, 4));
  EXPECT_EQ(v.read_value().item<float>(), 4.f);
}

// C161
TEST_F(Variables, OfIntegersAreReadAlikeInBothContexts) {
  const Variable v =
      Variable::create(Tensor::scalar<int32_t>(1), {.aggregation = Aggregation::SUM});
  EXPECT_EQ(v.read_value().item<int32_t>() + 1, 2);
  strategy_.run([&] { EXPECT_EQ(v.read_value().item<int32_t>() + 1, 2); });
}

TEST_F(Variables, OfEveryDtypeAddAndSubtract) {
  for (const DType dtype : testing::kDTypes) {
    if (dtype == DType::boolean) continue;
    const auto value = [&](double x) { return Tensor::full({1}, x, dtype); };
    const Variable v = Variable::create(value(10), {.aggregation = Aggregation::SUM});
    v.assign_add(value(5));
    strategy_.run([&](ReplicaContext& ctx) { v.assign_sub(value(ctx.local_replica_id() + 1)); });
    EXPECT_THAT(components(v), ElementsAre(12, 12)) << dtype;
    v.assign(value(7));
    EXPECT_THAT(components(v), ElementsAre(7, 7)) << dtype;
  }
  const Variable small = Variable::create(Tensor::scalar<int8_t>(100));
  small.assign_add(Tensor::scalar<int8_t>(100));  // wraps
  EXPECT_EQ(small.read_value().item<int8_t>(), int8_t(200));
}

TEST_F(Variables, OfBoolsAreAssignedButHaveNoArithmetic) {
  const Variable v = Variable::create(Tensor::scalar<bool>(false));
  v.assign(Tensor::scalar<bool>(true));
  EXPECT_TRUE(v.component(1).item<bool>());
  EXPECT_ERROR(InvalidArgumentError, "bool", v.assign_add(Tensor::scalar<bool>(true)));
  EXPECT_ERROR(InvalidArgumentError, "bool", v.assign_sub(Tensor::scalar<bool>(true)));
  EXPECT_TRUE(v.component(0).item<bool>());
}

TEST_F(Variables, RefuseOtherDtypesAndShapes) {
  const Variable v = Variable::create(number(1), {.name = "loss"});
  EXPECT_ERROR(InvalidArgumentError, "assign: the variable \"loss\" has shape []",
               v.assign(Tensor::of<float>({1})));
  EXPECT_ERROR(InvalidArgumentError, "float64", v.assign_add(Tensor::scalar<double>(1)));
  EXPECT_ERROR(InvalidArgumentError, "nothing", v.assign_sub(Tensor()));
  EXPECT_THAT(components(v), ElementsAre(1, 1));
}

// The first component is the value while the others are still to be written.
TEST_F(Variables, TakeTheirOwnComponentAsAValue) {
  const Variable v = Variable::create(number(1));
  v.assign_add(v.component(0));
  EXPECT_THAT(components(v), ElementsAre(2, 2));
  v.assign_sub(v.component(0));
  EXPECT_THAT(components(v), ElementsAre(0, 0));
}

TEST_F(Variables, StayEqualOverManySteps) {
  const Variable v =
      Variable::create(Tensor::zeros({100}, DType::float32), {.aggregation = Aggregation::MEAN});
  for (int step = 0; step < 50; ++step)
    strategy_.run([&](ReplicaContext& ctx) {
      const Tensor gradient = Tensor::empty({100}, DType::float32);
      testing::fill_random(DType::float32, gradient.data(), 100,
                           uint64_t(2 * step + ctx.local_replica_id()),
                           /*specials=*/false);
      v.assign_sub(gradient);
    });
  EXPECT_EQ(v.component(0).to_vector<float>(), v.component(1).to_vector<float>());
}

// C146
TEST_F(Variables, MadeInAReplicaFunctionAreOneForAllReplicas) {
  const PerReplica<std::vector<Variable>> made = strategy_.run([](ReplicaContext& ctx) {
    const std::string suffix = "_" + std::to_string(ctx.local_replica_id());
    return std::vector<Variable>{
        Variable::create(number(ctx.local_replica_id() + 5), {.name = "foo" + suffix}),
        Variable::create(number(2), {.name = "foo" + suffix}), Variable::create(number(3)),
        Variable::create(number(4), {.name = "layer" + suffix + "/w"})};
  });
  for (size_t i = 0; i < made[0].size(); ++i) EXPECT_EQ(made[0][i], made[1][i]) << i;
  EXPECT_EQ(made[1][0].name(), "foo_0");
  EXPECT_EQ(made[1][3].name(), "layer_0/w");
  EXPECT_THAT(components(made[1][0]), ElementsAre(5, 5));  // replica 0's initial value
  EXPECT_THAT(components(made[1][1]), ElementsAre(2, 2));
  EXPECT_FALSE(made[0][0] == made[0][1]);
}

// C146
TEST_F(Variables, MadeInAReplicaFunctionMustAgree) {
  EXPECT_ERROR(FailedPreconditionError, "\"bar\"", strategy_.run([](ReplicaContext& ctx) {
    Variable::create(number(1), {.name = ctx.local_replica_id() ? "bar" : "foo"});
  }));
  EXPECT_ERROR(InvalidArgumentError, "replica 1", strategy_.run([](ReplicaContext& ctx) {
    Variable::create(
        number(1), {.aggregation = ctx.local_replica_id() ? Aggregation::SUM : Aggregation::MEAN});
  }));
  EXPECT_ERROR(FailedPreconditionError, "replica 1", strategy_.run([](ReplicaContext& ctx) {
    if (ctx.local_replica_id() == 0) Variable::create(number(1));
  }));
}

TEST_F(Variables, MadeInAReplicaFunctionMustAgreeInDtypeAndShape) {
  for (const Tensor& other : {Tensor::scalar<double>(1), Tensor::of<float>({1, 2})})
    EXPECT_ERROR(InvalidArgumentError, "replica 1", strategy_.run([&](ReplicaContext& ctx) {
      Variable::create(ctx.local_replica_id() ? other : number(1));
    }));
}

TEST_F(Variables, AreDestinationsThatAreNotWritten) {
  const Variable v = Variable::create(number(5));
  const Mirrored<Tensor> sum =
      strategy_.extended().reduce_to(ReduceOp::SUM, testing::numbers({1, 2}), v);
  EXPECT_THAT(sum.devices(), ElementsAre(cpu(0), cpu(1)));
  EXPECT_EQ(sum[1].item<float>(), 3.f);
  EXPECT_THAT(components(v), ElementsAre(5, 5));
}

// C176
TEST_F(Variables, AreClonedInsideAndOutsideOfTheScope) {
  const Variable v = Variable::create(
      number(1),
      {.name = "v", .synchronization = Synchronization::ON_READ, .aggregation = Aggregation::SUM});
  strategy_.run([&](ReplicaContext& ctx) { v.assign(id_of(ctx)); });
  for (const bool inside : {true, false}) {
    if (!inside) scope_.close();
    const Variable copy = v.clone();
    EXPECT_FALSE(copy == v);
    EXPECT_EQ(copy.name(), "v");
    EXPECT_EQ(copy.synchronization(), v.synchronization());
    EXPECT_EQ(copy.aggregation(), v.aggregation());
    EXPECT_EQ(copy.trainable(), v.trainable());
    EXPECT_EQ(copy.devices(), v.devices());
    EXPECT_EQ(&copy.strategy(), &strategy_);
    EXPECT_THAT(components(copy), ElementsAre(0, 1));
    copy.assign(number(8));
    EXPECT_THAT(components(v), ElementsAre(0, 1));
    EXPECT_EQ(strategy_.extended().value_container(copy.component(0)), copy);
  }
}

// C176
TEST_F(Variables, AreNotClonedUnderAnotherStrategy) {
  const Variable v = Variable::create(number(1));
  scope_.close();
  MirroredStrategy other({cpu(2)});
  const Scope scope = other.scope();
  EXPECT_ERROR(FailedPreconditionError, "strategy", v.clone());
}

// As if each replica assigned its component.
TEST_F(Variables, TakeAValueOfEachReplica) {
  struct Case {
    VariableSynchronization synchronization;
    VariableAggregation aggregation;
    Floats after_assign, after_add;
  };
  using enum VariableAggregation;
  const auto on_write = VariableSynchronization::ON_WRITE,
             on_read = VariableSynchronization::ON_READ;
  for (const Case& c :
       {Case{on_write, SUM, {5, 5}, {10, 10}}, Case{on_write, MEAN, {2.5, 2.5}, {5, 5}},
        Case{on_write, ONLY_FIRST_REPLICA, {2, 2}, {4, 4}}, Case{on_write, NONE, {2, 3}, {4, 6}},
        Case{on_read, SUM, {2, 3}, {4, 6}}}) {
    const auto make = [&] {
      return Variable::create(
          number(9),
          {.name = "v", .synchronization = c.synchronization, .aggregation = c.aggregation});
    };
    const auto values = [](const Variable& v) {
      return Floats{v.component(0).item<float>(), v.component(1).item<float>()};
    };
    const Variable v = make(), in_replica = make();
    const PerReplica<Tensor> given = numbers({2, 3});
    v.assign(given);
    EXPECT_EQ(values(v), c.after_assign);
    v.assign_add(given);
    EXPECT_EQ(values(v), c.after_add);
    v.assign_sub(given);
    EXPECT_EQ(values(v), c.after_assign);
    strategy_.run([&] { in_replica.assign(given); });
    EXPECT_EQ(values(in_replica), c.after_assign);
    EXPECT_ERROR(InvalidArgumentError, "is of 2 replicas and got values of 3",
                 v.assign(numbers({1, 2, 3})));
    EXPECT_ERROR(InvalidArgumentError, "got a value of shape [1]",
                 v.assign(PerReplica<Tensor>{number(1), Tensor::of<float>({1})}));
    EXPECT_EQ(values(v), c.after_assign);
  }
}

}  // namespace
}  // namespace tutti
