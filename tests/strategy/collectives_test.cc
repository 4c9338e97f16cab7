// SPDX-License-Identifier: Apache-2.0
// Replicas that meet: all_reduce, all_gather, merge_call; and what StrategyExtended adds.
#include <tutti/compat.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "strategy/strategies.h"

namespace tutti {
namespace {

using testing::CapturedLog;
using testing::cpu;
using testing::cpus;
using ::testing::ElementsAre;
using testing::Floats;
using testing::id_of;
using testing::Longs;
using testing::number;
using testing::numbers;

class Collectives : public ::testing::Test {
 protected:
  MirroredStrategy two_{cpus(2)};
  MirroredStrategy three_{cpus(3)};
};
using ReplicaAllReduce = Collectives;
using AllGather = Collectives;
using MergeCall = Collectives;
using Extended = Collectives;

class OnReplicas : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Replicas, OnReplicas, ::testing::Values(1, 2, 3, 4, 7));

// C182
TEST_P(OnReplicas, AllReduceGivesEveryReplicaItsOwnCopyOnItsDevice) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  const PerReplica<Tensor> sums = strategy.run([&](ReplicaContext& ctx) {
    const Tensor mine = Tensor::full({3}, ctx.local_replica_id() + 1, DType::float32);
    const Tensor sum = ctx.all_reduce(ReduceOp::SUM, mine);
    EXPECT_NE(sum.const_data(), mine.const_data());
    EXPECT_EQ(mine.to_vector<float>()[0], float(ctx.local_replica_id() + 1));
    sum.span<float>()[0] += float(ctx.local_replica_id());  // its own copy
    return sum;
  });
  const float total = float(n * (n + 1) / 2);
  for (size_t i = 0; i < size_t(n); ++i) {
    EXPECT_EQ(sums[i].to_vector<float>(), Floats({total + float(i), total, total}));
    EXPECT_EQ(sums[i].device(), cpu(i));
  }
}

TEST_F(ReplicaAllReduce, HasAllOpsAndTheirNames) {
  struct Case {
    ReduceOpArg op;
    float expected;
  };
  for (const Case& c : {Case{ReduceOp::SUM, 9}, Case{ReduceOp::MEAN, 3}, Case{ReduceOp::MIN, 2},
                        Case{ReduceOp::MAX, 4}, Case{ReduceOp::PROD, 24}, Case{"sum", 9},
                        Case{"Mean", 3}, Case{"PROD", 24}})
    three_.run([&](ReplicaContext& ctx) {
      EXPECT_EQ(ctx.all_reduce(c.op, number(2 + ctx.local_replica_id())).item<float>(), c.expected);
    });
  EXPECT_ERROR(InvalidArgumentError, "median",
               three_.run([](ReplicaContext& ctx) { ctx.all_reduce("median", number(1)); }));
}

TEST_F(ReplicaAllReduce, OfAListKeepsItsOrderDtypesAndShapes) {
  three_.run([](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    const std::vector<Tensor> sums = ctx.all_reduce(
        ReduceOp::SUM, std::vector<Tensor>{number(id), Tensor::full({2, 1}, id, DType::int64),
                                           Tensor::zeros({0}, DType::float32),
                                           Tensor::full({1}, id, DType::float64)});
    ASSERT_EQ(sums.size(), 4u);
    EXPECT_EQ(sums[0].item<float>(), 3.f);
    EXPECT_EQ(sums[1].shape(), (Shape{2, 1}));
    EXPECT_EQ(sums[1].to_vector<int64_t>(), Longs({3, 3}));
    EXPECT_EQ(sums[2].num_elements(), 0);
    EXPECT_EQ(sums[3].to_vector<double>(), std::vector<double>{3});
    EXPECT_TRUE(ctx.all_reduce(ReduceOp::SUM, std::vector<Tensor>{}).empty());
  });
}

IndexedSlices row_of(int id) {
  return {Tensor::of<float>({float(id), 1}).reshape({1, 2}), Tensor::of<int64_t>({id}),
          Shape{3, 2}};
}

// C182
TEST_F(ReplicaAllReduce, OfSlicesJoinsThemInReplicaOrder) {
  three_.run([](ReplicaContext& ctx) {
    const IndexedSlices sum = ctx.all_reduce(ReduceOp::SUM, row_of(ctx.local_replica_id()));
    EXPECT_EQ(sum.indices.to_vector<int64_t>(), Longs({0, 1, 2}));
    EXPECT_EQ(sum.to_dense().to_vector<float>(), Floats({0, 1, 1, 1, 2, 1}));
    EXPECT_EQ(sum.device(), ctx.device());
    const IndexedSlices mean = ctx.all_reduce(ReduceOp::MEAN, row_of(0));
    EXPECT_EQ(mean.to_dense().to_vector<float>(), Floats({0, 1, 0, 0, 0, 0}));
  });
}

// C182
TEST_F(ReplicaAllReduce, OfAMixedListKeepsEachAsItWas) {
  two_.run([](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    const std::vector<Value> sums =
        ctx.all_reduce(ReduceOp::SUM, std::vector<Value>{number(id), row_of(id), number(1)});
    ASSERT_EQ(sums.size(), 3u);
    EXPECT_EQ(sums[0].tensor().item<float>(), 1.f);
    EXPECT_EQ(sums[1].slices().to_dense().to_vector<float>(), Floats({0, 1, 1, 1, 0, 0}));
    EXPECT_EQ(sums[2].tensor().item<float>(), 2.f);
    const Value own = id ? Value(row_of(id)) : Value(Tensor::full({3, 2}, 1, DType::float32));
    EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, std::vector<Value>{own})[0].tensor().to_vector<float>(),
              Floats({1, 1, 2, 2, 1, 1}));
  });
}

// C172
TEST_F(ReplicaAllReduce, TakesWhatAVariableHolds) {
  const Scope scope = two_.scope();
  const Variable mirrored = Variable::create(number(2));
  const Variable counted =
      Variable::create(number(0), {.synchronization = VariableSynchronization::ON_READ,
                                   .aggregation = VariableAggregation::SUM});
  two_.run([&](ReplicaContext& ctx) {
    const float id = float(ctx.local_replica_id());
    EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, mirrored.read_value()).item<float>() + id, 4 + id);
    counted.assign(number(3 * id));
    EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, counted.read_value()).item<float>(), 3.f);
  });
}

TEST_F(ReplicaAllReduce, WeighsReplicas) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    Floats values;
    std::vector<double> weights;
    float expected;
  };
  for (const Case& c : {Case{{0, 1, 2}, {1, 2, 3}, 8.f / 6}, Case{{4, 8, nan}, {1, 3, 0}, 7},
                        Case{{1, 2, 3}, {0, 0, 5}, 3}, Case{{2, 4, 6}, {0.25, 0.25, 0.5}, 4.5f}})
    three_.run([&](ReplicaContext& ctx) {
      const size_t id = size_t(ctx.local_replica_id());
      const std::vector<Tensor> means =
          ctx.all_reduce(ReduceOp::MEAN, std::vector<Tensor>{number(c.values[id]), number(1)},
                         {.weight = c.weights[id]});
      EXPECT_FLOAT_EQ(means[0].item<float>(), c.expected);
      EXPECT_FLOAT_EQ(means[1].item<float>(), 1);
      EXPECT_EQ(means[0].device(), ctx.device());
      EXPECT_EQ(means[0].dtype(), DType::float32);
    });
}

TEST_F(ReplicaAllReduce, WeighsSlices) {
  two_.run([](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    const IndexedSlices mean =
        ctx.all_reduce(ReduceOp::MEAN, row_of(id), {.weight = id == 0 ? 1.0 : 3.0});
    EXPECT_EQ(mean.to_dense().to_vector<float>(), Floats({0, 0.25f, 0.75f, 0.75f, 0, 0}));
  });
}

TEST_F(ReplicaAllReduce, RefusesWeightsThatHaveNoMean) {
  struct Case {
    ReduceOp op;
    double weight;
    const char* text;
  };
  for (const Case& c : {Case{ReduceOp::SUM, 1, "MEAN"}, Case{ReduceOp::MEAN, -1, "-1"},
                        Case{ReduceOp::MEAN, 0, "0"}, Case{ReduceOp::MEAN, NAN, "nan"},
                        Case{ReduceOp::MEAN, INFINITY, "inf"}})
    EXPECT_ERROR(InvalidArgumentError, c.text, two_.run([&](ReplicaContext& ctx) {
      ctx.all_reduce(c.op, number(1), {.weight = c.weight});
    }));
}

TEST_P(OnReplicas, AllGatherJoinsUnevenPartsInReplicaOrder) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  Floats expected;
  for (int i = 0; i < n; ++i) expected.insert(expected.end(), size_t(i), float(i));
  strategy.run([&](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    for (const int64_t axis : {0, 1, -1}) {
      const Shape shape = axis == 0 ? Shape{id, 1} : Shape{1, id};  // replica 0 has nothing
      const Tensor all = ctx.all_gather(Tensor::full(shape, id, DType::float32), axis);
      EXPECT_EQ(all.to_vector<float>(), expected);
      EXPECT_EQ(all.shape()[axis == 0 ? 0 : 1], int64_t(expected.size()));
      EXPECT_EQ(all.device(), ctx.device());
    }
  });
}

TEST_F(AllGather, TakesAList) {
  two_.run([](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    const std::vector<Tensor> all = ctx.all_gather(
        {Tensor::full({1}, id, DType::float32), Tensor::full({1}, id, DType::int64)}, 0);
    EXPECT_EQ(all[0].to_vector<float>(), Floats({0, 1}));
    EXPECT_EQ(all[1].to_vector<int64_t>(), Longs({0, 1}));
  });
}

TEST_F(AllGather, ChecksShapesAndAxis) {
  const auto gather = [&](Shape first, Shape second, int64_t axis) {
    two_.run([&](ReplicaContext& ctx) {
      ctx.all_gather(Tensor::zeros(ctx.local_replica_id() ? second : first, DType::float32), axis);
    });
  };
  EXPECT_ERROR(InvalidArgumentError, "scalar", gather({}, {}, 0));
  EXPECT_ERROR(InvalidArgumentError, "axis", gather({2}, {2}, 1));
  EXPECT_ERROR(InvalidArgumentError, "[2, 1]", gather({2}, {2, 1}, 0));
  EXPECT_ERROR(InvalidArgumentError, "[1, 3]", gather({1, 2}, {1, 3}, 0));
}

TEST_F(MergeCall, GathersItsArgumentsAndCallsOnce) {
  std::atomic<int> calls = 0;
  const auto merge = [&](Strategy& s, const PerReplica<int>& ids,
                         const PerReplica<std::string>& names) {
    ++calls;
    EXPECT_EQ(&s, &three_);
    EXPECT_THAT(std::vector<int>(ids.begin(), ids.end()), ElementsAre(0, 1, 2));
    EXPECT_THAT(std::vector<std::string>(names.begin(), names.end()),
                ElementsAre("r0", "r1", "r2"));
  };
  three_.run([&](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    ctx.merge_call(merge, id, "r" + std::to_string(id));
  });
  EXPECT_EQ(calls, 1);
}

TEST_F(MergeCall, HandsOutItsResult) {
  three_.run([](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    const auto per_replica = [](Strategy&, const PerReplica<int>& ids) {
      return ids.map([](int i) { return 10 * i; });
    };
    EXPECT_EQ(ctx.merge_call(per_replica, id), 10 * id);
    EXPECT_EQ(ctx.merge_call([](Strategy&) { return Mirrored<int>{7, 7, 7}; }), 7);
    EXPECT_EQ(ctx.merge_call([](Strategy&) { return std::string("all"); }), "all");
    const Tensor sum = ctx.merge_call(
        [](Strategy& s, const PerReplica<Tensor>& all) {
          return s.extended().reduce_to(ReduceOp::SUM, all, all);
        },
        number(id));
    EXPECT_EQ(sum.item<float>(), 3.f);
    EXPECT_EQ(sum.device(), ctx.device());
  });
}

TEST_F(MergeCall, CallsTheFunctionOfReplicaZero) {
  three_.run([](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    EXPECT_EQ(ctx.merge_call([id](Strategy&) { return id; }), 0);
  });
}

TEST_F(MergeCall, WritesVariables) {
  const Scope scope = two_.scope();
  const Variable v = Variable::create(number(1));
  two_.run([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy&) { v.assign_add(number(2)); });
    EXPECT_EQ(v.read_value().item<float>(), 3.f);
  });
}

// C190
TEST_F(Extended, DistributesValuesFromAFunction) {
  const auto ids = three_.experimental_distribute_values_from_function([](const ValueContext& ctx) {
    EXPECT_EQ(ctx.num_replicas_in_sync, 3);
    return ctx.replica_id_in_sync_group;
  });
  const PerReplica<int> squares = three_.run([](int id) { return id * id; }, ids);
  EXPECT_THAT(std::vector<int>(squares.begin(), squares.end()), ElementsAre(0, 1, 4));
  const auto constant =
      three_.experimental_distribute_values_from_function([](const ValueContext&) { return true; });
  EXPECT_TRUE(constant[2]);
  const auto tensors =
      three_.experimental_distribute_values_from_function([](const ValueContext& ctx) {
        return ctx.replica_id_in_sync_group == 2 ? number(2, cpu(5)) : number(1);
      });
  EXPECT_THAT(tensors.devices(), ElementsAre(cpu(0), cpu(0), cpu(5)));
}

TEST_F(Extended, ReducesToDestinations) {
  const PerReplica<Tensor> v = numbers({1, 2, 3});
  const Mirrored<Tensor> sum = three_.extended().reduce_to("SUM", v, {cpu(4), cpu(1)});
  EXPECT_THAT(sum.devices(), ElementsAre(cpu(4), cpu(1)));
  EXPECT_EQ(sum[1].item<float>(), 6.f);
  const auto batch = three_.extended().batch_reduce_to("mean", {{v, v}, {v, cpu(0)}});
  EXPECT_EQ(batch[0].size(), 3u);
  EXPECT_EQ(batch[1][0].tensor().item<float>(), 2.f);
  EXPECT_TRUE(three_.extended().batch_reduce_to(ReduceOp::SUM, {}).empty());
  EXPECT_ERROR(InvalidArgumentError, "99", three_.extended().reduce_to("sum", v, "/cpu:99"));
}

TEST_F(Extended, TakesAPlainValueForWhatEveryReplicaHolds) {
  const Tensor plain = Tensor::scalar<int32_t>(4);
  for (const ReduceOp op : {ReduceOp::MEAN, ReduceOp::MIN, ReduceOp::MAX}) {
    const Mirrored<Tensor> result = three_.extended().reduce_to(op, plain, cpus(3));
    EXPECT_EQ(result[2].item<int32_t>(), 4) << op;
    EXPECT_EQ(result[2].device(), cpu(2));
  }
  for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::PROD})
    EXPECT_ERROR(InvalidArgumentError, "plain", three_.extended().reduce_to(op, plain, cpu(0)));
  MirroredStrategy one(cpus(1));
  EXPECT_EQ(one.extended().reduce_to(ReduceOp::SUM, plain, cpu(1))[0].item<int32_t>(), 4);
}

TEST_F(Extended, TakesAMirroredValueForOne) {
  const Mirrored<Tensor> same{number(4, cpu(0)), number(4, cpu(1))};
  EXPECT_EQ(two_.extended().reduce_to(ReduceOp::MEAN, same, same)[1].item<float>(), 4.f);
  EXPECT_ERROR(InvalidArgumentError, "Mirrored",
               two_.extended().reduce_to(ReduceOp::SUM, same, same));
  EXPECT_EQ(two_.reduce(ReduceOp::MEAN, same).item<float>(), 4.f);
  EXPECT_ERROR(InvalidArgumentError, "Mirrored", two_.reduce(ReduceOp::SUM, same));
}

// C152
TEST_F(Extended, UpdatesEachComponentOnItsDevice) {
  const Scope scope = two_.scope();
  const Variable v =
      Variable::create(number(1), {.synchronization = VariableSynchronization::ON_READ,
                                   .aggregation = VariableAggregation::SUM});
  const auto devices = two_.extended().update(
      v,
      [](const Tensor& component, float value, int same) {
        component.span<float>()[0] = value * float(same);
        EXPECT_EQ(component.device(), current_device());
        return current_device();
      },
      PerReplica<float>{5, 6}, 2);
  EXPECT_THAT(std::vector<std::string>(devices.begin(), devices.end()),
              ElementsAre(cpu(0), cpu(1)));
  EXPECT_EQ(v.component(0).item<float>(), 10.f);
  EXPECT_EQ(v.component(1).item<float>(), 12.f);
  EXPECT_EQ(v.read_value().item<float>(), 22.f);
}

// C178
TEST_F(Extended, UpdatesTheReplicasOwnComponent) {
  struct Case {
    void (*update)(float& x, float value);
    float expected;
  };
  const Scope scope = two_.scope();
  for (const Case& c :
       {Case{[](float& x, float y) { x = y; }, 1}, Case{[](float& x, float y) { x += y; }, 8},
        Case{[](float& x, float y) { x -= y; }, 2}}) {
    const Variable v = Variable::create(number(5));
    two_.run([&](ReplicaContext& ctx) {
      for (const float value : {2.f, 1.f})
        ctx.strategy().extended().update(v, [&](const Tensor& component) {
          EXPECT_EQ(component.device(), ctx.device());
          c.update(component.span<float>()[0], value);
        });
    });
    EXPECT_EQ(v.component(0).item<float>(), c.expected);
    EXPECT_EQ(v.component(1).item<float>(), c.expected);
  }
}

TEST_F(Extended, CallsAFunctionForEachDevice) {
  const auto results = two_.extended().update_non_slot(
      {cpu(3), cpu(4), cpu(5)}, [](int i) { return current_device() + std::to_string(i); },
      PerReplica<int>{0, 1, 2});
  EXPECT_THAT(std::vector<std::string>(results.begin(), results.end()),
              ElementsAre(cpu(3) + "0", cpu(4) + "1", cpu(5) + "2"));
}

TEST_F(Extended, FindsTheVariableOfAComponent) {
  const Scope scope = two_.scope();
  std::optional<Variable> v = Variable::create(number(1));
  const Variable empty = Variable::create(Tensor::zeros({0}, DType::float32));
  const Tensor component = v->component(1);
  EXPECT_EQ(two_.extended().value_container(component), v);
  EXPECT_EQ(two_.extended().value_container(number(1)), std::nullopt);
  EXPECT_EQ(three_.extended().value_container(component), std::nullopt);
  v.reset();
  EXPECT_EQ(two_.extended().value_container(component), std::nullopt);
}

TEST_F(Extended, FindsNoVariableForATensorWithoutElements) {
  const Scope scope = two_.scope();
  const Variable empty = Variable::create(Tensor::zeros({0}, DType::float32));
  EXPECT_EQ(two_.extended().value_container(Tensor::zeros({0}, DType::float32)), std::nullopt);
}

TEST_F(Extended, KnowsItsVariables) {
  Scope scope = two_.scope();
  const Variable mine = Variable::create(number(1));
  EXPECT_TRUE(two_.extended().variable_created_in_scope(mine));
  EXPECT_FALSE(three_.extended().variable_created_in_scope(mine));
  {
    const ColocationScope colocated = two_.extended().colocate_vars_with(mine);
    EXPECT_EQ(Variable::create(number(2)).devices(), mine.devices());
  }
  EXPECT_EQ(two_.extended().read_var(mine).item<float>(), 1.f);
  scope.close();
  EXPECT_ERROR(InvalidArgumentError, "another strategy",
               three_.extended().colocate_vars_with(mine));
  EXPECT_FALSE(two_.extended().variable_created_in_scope(Variable::create(number(1))));
}

TEST(Compat, HasTheNamesOfTheFirstRelease) {
  MirroredStrategy strategy(cpus(2));
  EXPECT_EQ(num_towers(strategy), 2);
  const PerDevice<int> ids = call_for_each_tower(
      strategy,
      [](TowerContext& ctx, int x) {
        EXPECT_EQ(&get_tower_context(), &ctx);
        return x + ctx.local_replica_id();
      },
      10);
  EXPECT_EQ(ids[1], 11);
  ReductionToOneDeviceCrossTowerOps one;
  CrossTowerOps& ops = one;
  EXPECT_EQ(ops.reduce(VariableAggregation::MEAN, numbers({1, 2}), cpu(0))[0].item<float>(), 1.5f);
  EXPECT_ERROR(InvalidArgumentError, "NONE",
               ops.reduce(VariableAggregation::NONE, numbers({1, 2}), cpu(0)));
}

TEST(Compat, UpdatesACopyOfTheConfig) {
  const MirroredStrategy strategy(cpus(2));
  const ConfigProto config{.device_filters = {"/job:worker"}};
  const ConfigProto updated = strategy.update_config_proto(config);
  EXPECT_EQ(updated,
            (ConfigProto{.isolate_session_state = true, .device_filters = {"/job:worker"}}));
  EXPECT_FALSE(config.isolate_session_state);
}

TEST(Compat, TurnsHintsIntoOptionsAndSaysOnceThatTheyAreOld) {
  CapturedLog log;
  const CommunicationOptions options = CollectiveHints(128, 1.5);
  EXPECT_EQ(options.bytes_per_pack, 128);
  EXPECT_EQ(options.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(static_cast<const CommunicationOptions&>(CollectiveHints()), CommunicationOptions());
  EXPECT_EQ(log.texts().size(), 1u);
  EXPECT_ERROR(InvalidArgumentError, "-1", CollectiveHints(-1));
  EXPECT_ERROR(InvalidArgumentError, "timeout", CollectiveHints(0, -1.0));
  EXPECT_ERROR(InvalidArgumentError, "timeout", CollectiveHints(0, NAN));
}

TEST_F(ReplicaAllReduce, TakesANumber) {
  three_.run([](ReplicaContext& ctx) {
    const float id = float(ctx.replica_id_in_sync_group());
    const int n = ctx.num_replicas_in_sync();
    EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, id), float(n * (n - 1) / 2));
    EXPECT_EQ(ctx.all_reduce("mean", 2.5), 2.5);
    EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, int64_t{3}), 3 * n);
    EXPECT_EQ(ctx.all_reduce(ReduceOp::MEAN, id + 1, {.weight = id == 0 ? 1.0 : 0.0}), 1.f);
    EXPECT_ERROR(InvalidArgumentError, "float64", ctx.all_reduce(ReduceOp::MEAN, 3));
  });
}

}  // namespace
}  // namespace tutti
