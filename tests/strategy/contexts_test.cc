// SPDX-License-Identifier: Apache-2.0
// Which strategy a thread is in, and how.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "strategy/strategies.h"

namespace tutti {
namespace {

using testing::CapturedLog;
using testing::cpu;
using testing::cpus;
using ::testing::ElementsAre;
using testing::Floats;
using ::testing::HasSubstr;
using testing::Longs;
using testing::number;
using testing::numbers;

class Contexts : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{cpus(2)};
  MirroredStrategy other_{{cpu(2), cpu(3)}};
};
using ScopeTest = Contexts;

// C083
TEST_F(Contexts, StartWithoutAStrategyInTheDefaultReplica) {
  EXPECT_FALSE(has_strategy());
  EXPECT_FALSE(in_cross_replica_context());
  const ReplicaContext& ctx = get_replica_context();
  EXPECT_EQ(&ctx.strategy(), &get_strategy());
  EXPECT_EQ(ctx.replica_id_in_sync_group(), 0);
  EXPECT_EQ(ctx.num_replicas_in_sync(), 1);
  EXPECT_EQ(get_strategy().num_replicas_in_sync(), 1);
}

TEST_F(Contexts, AreCrossReplicaInsideAScope) {
  const Scope scope = strategy_.scope();
  EXPECT_TRUE(has_strategy());
  EXPECT_TRUE(in_cross_replica_context());
  EXPECT_EQ(&get_strategy(), &strategy_);
  EXPECT_ERROR(FailedPreconditionError, "cross-replica", get_replica_context());
}

// C085
TEST_F(Contexts, AreOfTheReplicaInsideARunWithOrWithoutAScope) {
  for (const bool with_scope : {false, true}) {
    std::optional<Scope> scope;
    if (with_scope) scope.emplace(strategy_.scope());
    strategy_.extended().call_for_each_replica([&](ReplicaContext& ctx) {
      EXPECT_TRUE(has_strategy());
      EXPECT_FALSE(in_cross_replica_context());
      EXPECT_EQ(&get_strategy(), &strategy_);
      EXPECT_EQ(&get_replica_context(), &ctx);
      EXPECT_EQ(&ctx.strategy(), &strategy_);
    });
    EXPECT_EQ(has_strategy(), with_scope);
    EXPECT_EQ(in_cross_replica_context(), with_scope);
  }
}

TEST_F(Contexts, AreCrossReplicaInsideAMergeFunction) {
  strategy_.run([&](ReplicaContext& ctx) {
    ctx.merge_call([&](Strategy& s) {
      EXPECT_EQ(&s, &strategy_);
      EXPECT_EQ(&get_strategy(), &strategy_);
      EXPECT_TRUE(in_cross_replica_context());
      EXPECT_ERROR(FailedPreconditionError, "cross-replica", get_replica_context());
      const Scope scope = s.scope();
      EXPECT_EQ(s.reduce(ReduceOp::SUM, numbers({1, 2})).item<float>(), 3.f);
    });
    EXPECT_EQ(&get_replica_context(), &ctx);
  });
}

// C091
TEST_F(ScopeTest, NestsWithItselfAndCanBeOpenedAgain) {
  for (int i = 0; i < 3; ++i) {
    Scope outer = strategy_.scope();
    {
      const Scope inner = strategy_.scope();
      EXPECT_EQ(&get_strategy(), &strategy_);
    }
    EXPECT_EQ(&get_strategy(), &strategy_);
    outer.close();
    EXPECT_FALSE(has_strategy());
  }
}

// C091
TEST_F(ScopeTest, OfAnotherStrategyDoesNotNest) {
  const Scope outer = strategy_.scope();
  EXPECT_ERROR(FailedPreconditionError, "mixed", other_.scope());
  EXPECT_EQ(&get_strategy(), &strategy_);
}

TEST_F(ScopeTest, CannotBeOpenedInAReplicaFunction) {
  for (Strategy* const s : {static_cast<Strategy*>(&strategy_), static_cast<Strategy*>(&other_)})
    strategy_.run([&] { EXPECT_ERROR(FailedPreconditionError, "merge_call", s->scope()); });
}

// C086
TEST_F(ScopeTest, CannotBeClosedBeforeADeviceScopeInsideIt) {
  Scope scope = strategy_.scope();
  {
    const DeviceScope device(cpu(1));
    EXPECT_ERROR(FailedPreconditionError, "DeviceScope", scope.close());
    EXPECT_TRUE(has_strategy());
  }
  scope.close();
  EXPECT_FALSE(has_strategy());
  scope.close();  // closed already, and stays so
}

TEST_F(ScopeTest, ToleratesADeviceScopeAroundIt) {
  const DeviceScope device(cpu(1));
  Scope scope = strategy_.scope();
  EXPECT_EQ(current_device(), cpu(1));
  scope.close();
  EXPECT_FALSE(has_strategy());
}

// C088
TEST_F(ScopeTest, CannotBeClosedBeforeAScopeInsideIt) {
  Scope outer = strategy_.scope();
  Scope inner = strategy_.scope();
  EXPECT_ERROR(FailedPreconditionError, "scope of a strategy", outer.close());
  EXPECT_TRUE(has_strategy());
  inner.close();
  outer.close();
  EXPECT_FALSE(has_strategy());
}

TEST_F(ScopeTest, CannotBeClosedInAReplicaFunction) {
  Scope scope = strategy_.scope();
  strategy_.run([&](ReplicaContext& ctx) {
    if (ctx.local_replica_id() != 0) return;
    EXPECT_ERROR(FailedPreconditionError, "replica function", scope.close());
  });
  EXPECT_TRUE(has_strategy());
}

TEST_F(ScopeTest, IsRestoredAndLoggedByItsDestructor) {
  CapturedLog log;
  auto scope = std::make_unique<Scope>(strategy_.scope());
  const DeviceScope device(cpu(1));
  scope.reset();
  EXPECT_FALSE(has_strategy());
  EXPECT_THAT(log.texts(), ElementsAre(HasSubstr("DeviceScope")));
}

TEST_F(ScopeTest, DestroyedInTheWrongOrderLeavesNothingBehind) {
  CapturedLog log;
  auto outer = std::make_unique<Scope>(strategy_.scope());
  auto inner = std::make_unique<Scope>(strategy_.scope());
  outer.reset();
  inner.reset();
  EXPECT_FALSE(has_strategy());
  experimental_set_strategy(nullptr);  // throws if a scope still counts as open
}

TEST_F(ScopeTest, MovesToItsNewOwner) {
  std::optional<Scope> outer;
  {
    Scope inner = strategy_.scope();
    outer.emplace(std::move(inner));
  }
  EXPECT_TRUE(has_strategy());
  outer.reset();
  EXPECT_FALSE(has_strategy());
}

// C089
TEST_F(Contexts, AreSetWithoutAScope) {
  experimental_set_strategy(&strategy_);
  EXPECT_EQ(&get_strategy(), &strategy_);
  EXPECT_TRUE(in_cross_replica_context());
  experimental_set_strategy(&other_);
  EXPECT_EQ(&get_strategy(), &other_);
  EXPECT_ERROR(FailedPreconditionError, "mixed", strategy_.scope());
  {
    const Scope scope = other_.scope();
    EXPECT_ERROR(FailedPreconditionError, "scope", experimental_set_strategy(&strategy_));
    EXPECT_ERROR(FailedPreconditionError, "scope", experimental_set_strategy(nullptr));
  }
  EXPECT_EQ(&get_strategy(), &other_);
  other_.run([&] {
    EXPECT_ERROR(FailedPreconditionError, "replica", experimental_set_strategy(nullptr));
  });
  experimental_set_strategy(nullptr);
  EXPECT_FALSE(has_strategy());
}

struct Method {
  const char* name;
  std::function<void(Strategy&)> call;
};

const std::vector<Method>& cross_replica_methods() {
  static const auto value_on = [](Strategy& s) {
    return s.extended().broadcast_to(number(1), s.extended().worker_devices());
  };
  static const auto per_replica = [](Strategy& s) {
    std::vector<Tensor> parts;
    for (const std::string& device : s.extended().worker_devices())
      parts.push_back(Tensor::of<float>({1, 2}, device));
    return PerReplica<Tensor>(std::move(parts));
  };
  static const Dataset batches = Dataset::range(8).batch(4);
  static const InputFn input_fn = [](const InputContext&) { return batches; };
  static const std::vector<Method> methods{
      {"scope", [](Strategy& s) { (void)s.scope(); }},
      {"run", [](Strategy& s) { s.run([] {}); }},
      {"experimental_run", [](Strategy& s) { s.experimental_run([] {}); }},
      {"reduce", [](Strategy& s) { s.reduce(ReduceOp::SUM, per_replica(s)); }},
      {"reduce with an axis", [](Strategy& s) { s.reduce(ReduceOp::SUM, per_replica(s), 0); }},
      {"gather", [](Strategy& s) { s.gather(per_replica(s), 0); }},
      {"reduce_to",
       [](Strategy& s) { s.extended().reduce_to(ReduceOp::SUM, per_replica(s), cpu(0)); }},
      {"batch_reduce_to",
       [](Strategy& s) {
         s.extended().batch_reduce_to(ReduceOp::SUM, {{per_replica(s), cpu(0)}});
       }},
      {"broadcast_to", [](Strategy& s) { value_on(s); }},
      {"gather_to", [](Strategy& s) { s.extended().gather_to(per_replica(s), cpu(0), 0); }},
      {"update_non_slot",
       [](Strategy& s) { s.extended().update_non_slot(s.extended().non_slot_devices(), [] {}); }},
      {"make_dataset_iterator", [](Strategy& s) { s.make_dataset_iterator(batches); }},
      {"make_input_fn_iterator", [](Strategy& s) { s.make_input_fn_iterator(input_fn); }},
      {"experimental_distribute_dataset",
       [](Strategy& s) { s.experimental_distribute_dataset(batches); }},
      {"distribute_datasets_from_function",
       [](Strategy& s) { s.distribute_datasets_from_function(input_fn); }},
      {"experimental_initialize", [](Strategy& s) { s.experimental_initialize(); }},
      {"experimental_finalize", [](Strategy& s) { s.experimental_finalize(); }},
      {"experimental_distribute_values_from_function",
       [](Strategy& s) {
         s.experimental_distribute_values_from_function([](const ValueContext&) { return 1; });
       }},
  };
  return methods;
}

class CrossReplicaMethods : public Contexts, public ::testing::WithParamInterface<size_t> {
 protected:
  const Method& method() const { return cross_replica_methods()[GetParam()]; }
};

// C092, and the same in replica functions.
TEST_P(CrossReplicaMethods, BelongToTheirOwnStrategy) {
  SCOPED_TRACE(method().name);
  method().call(strategy_);
  {
    const Scope scope = strategy_.scope();
    method().call(strategy_);
  }
  {
    const Scope scope = other_.scope();
    EXPECT_ERROR(FailedPreconditionError, "mixed", method().call(strategy_));
  }
  for (Strategy* const around :
       {static_cast<Strategy*>(&strategy_), static_cast<Strategy*>(&other_)})
    around->run([&] {
      EXPECT_ERROR(FailedPreconditionError, "replica function", method().call(strategy_));
    });
  strategy_.run([&](ReplicaContext& ctx) {
    if (std::string_view(method().name).find("run") != std::string_view::npos) return;
    ctx.merge_call([&](Strategy& s) { method().call(s); });
  });
}
INSTANTIATE_TEST_SUITE_P(All, CrossReplicaMethods,
                         ::testing::Range(size_t(0), cross_replica_methods().size()),
                         [](const auto& test) {
                           std::string name = cross_replica_methods()[test.param].name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

// C092
TEST_F(Contexts, LetAVariableBeUpdatedByItsOwnStrategyOnly) {
  Scope scope = strategy_.scope();
  const Variable v = Variable::create(number(1), {.aggregation = VariableAggregation::SUM});
  scope.close();
  const auto update = [&](Strategy& s) { s.extended().update(v, [](const Tensor&) {}); };
  update(strategy_);
  strategy_.run([&] { update(strategy_); });
  EXPECT_ERROR(InvalidArgumentError, "another strategy", update(other_));
  const Scope inside = other_.scope();
  EXPECT_ERROR(FailedPreconditionError, "mixed", update(strategy_));
  EXPECT_ERROR(FailedPreconditionError, "another strategy", v.assign(number(1)));
  EXPECT_ERROR(FailedPreconditionError, "another strategy", v.read_value());
}

TEST_F(Contexts, OfAnotherStrategysReplicaKeepVariablesFromBeingUpdated) {
  Scope scope = strategy_.scope();
  const Variable v = Variable::create(number(1));
  scope.close();
  other_.run([&] {
    EXPECT_ERROR(FailedPreconditionError, "strateg",
                 strategy_.extended().update(v, [](const Tensor&) {}));
  });
}

TEST_F(Contexts, OfAReplicaHaveNoColocation) {
  Scope scope = strategy_.scope();
  const Variable v = Variable::create(number(1));
  scope.close();
  strategy_.run([&] {
    EXPECT_ERROR(FailedPreconditionError, "replica", strategy_.extended().colocate_vars_with(v));
  });
}

// The algorithms themselves are for cross-replica context too.
TEST_F(Contexts, OfAReplicaPointFromCrossDeviceOpsToAllReduce) {
  ReductionToOneDevice ops;
  strategy_.run([&] {
    EXPECT_ERROR(FailedPreconditionError, "all_reduce",
                 ops.reduce(ReduceOp::SUM, numbers({1, 2}), cpu(0)));
  });
}

struct OneReplicaCase {
  ReduceOp op;
  std::vector<int64_t> axes;
  Floats expected;
};

// C094, C095
TEST(DefaultStrategy, ReducesItsOneReplica) {
  const Tensor square = Tensor::of<float>({1, 2, 3, 4}).reshape({2, 2});
  const std::vector<OneReplicaCase> cases{
      {ReduceOp::MEAN, {}, {1, 2, 3, 4}}, {ReduceOp::MEAN, {0}, {2, 3}},
      {ReduceOp::MEAN, {0, 1}, {2.5f}},   {ReduceOp::SUM, {}, {1, 2, 3, 4}},
      {ReduceOp::SUM, {0}, {4, 6}},       {ReduceOp::SUM, {0, 1}, {10}},
  };
  for (const OneReplicaCase& c : cases)
    for (const DistributedTensor& value :
         {DistributedTensor(square), DistributedTensor(PerReplica<Tensor>{square})})
      EXPECT_EQ(get_strategy().reduce(c.op, value, {.axes = c.axes}).to_vector<float>(), c.expected)
          << c.op << " over " << c.axes.size() << " axes";
}

TEST(DefaultStrategy, RunsOneReplica) {
  const PerReplica<int> ids = get_strategy().run([](ReplicaContext& ctx) {
    EXPECT_FALSE(has_strategy());
    EXPECT_FALSE(in_cross_replica_context());
    EXPECT_EQ(&get_replica_context(), &ctx);
    EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, number(3)).item<float>(), 3.f);
    return ctx.replica_id_in_sync_group();
  });
  EXPECT_THAT(std::vector<int>(ids.begin(), ids.end()), ElementsAre(0));
}

TEST(DefaultStrategy, MeetsOnlyItselfOutsideOfARun) {
  ReplicaContext& ctx = get_replica_context();
  EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, number(3)).item<float>(), 3.f);
  EXPECT_EQ(ctx.all_gather(Tensor::of<float>({1, 2}), 0).to_vector<float>(), Floats({1, 2}));
  const int result = ctx.merge_call(
      [](Strategy& s, const PerReplica<int>& all) {
        EXPECT_EQ(&s, &get_strategy());
        EXPECT_TRUE(in_cross_replica_context());
        return int(all.size()) + all[0];
      },
      41);
  EXPECT_EQ(result, 42);
}

// C097
TEST(DefaultStrategy, NestsItsScopeWithItselfOnly) {
  MirroredStrategy other(cpus(2));
  Strategy& fallback = get_strategy();
  {
    const Scope outer = fallback.scope();
    const Scope inner = fallback.scope();
    EXPECT_TRUE(in_cross_replica_context());
    EXPECT_FALSE(has_strategy());
    EXPECT_ERROR(FailedPreconditionError, "mixed", other.scope());
  }
  const Scope outer = other.scope();
  EXPECT_ERROR(FailedPreconditionError, "mixed", fallback.scope());
}

// C098
TEST(DefaultStrategy, HandsOutDatasetsAsTheyAre) {
  Strategy& s = get_strategy();
  InputIterator it = s.make_dataset_iterator(Dataset::range(10).batch(2));
  it.initialize();
  EXPECT_EQ(it.get_next()[0][0].to_vector<int64_t>(), Longs({0, 1}));
  const DistributedDataset d = s.experimental_distribute_dataset(Dataset::range(10).batch(2));
  EXPECT_EQ((*d.begin())[0][0].to_vector<int64_t>(), Longs({0, 1}));
}

// C100
TEST(InputContext, DividesTheGlobalBatch) {
  const InputContext ctx(2, 1, 6);
  EXPECT_EQ(ctx.num_input_pipelines(), 2);
  EXPECT_EQ(ctx.input_pipeline_id(), 1);
  EXPECT_EQ(ctx.num_replicas_in_sync(), 6);
  EXPECT_EQ(ctx.get_per_replica_batch_size(12), 2);
  EXPECT_ERROR(InvalidArgumentError, "13", ctx.get_per_replica_batch_size(13));
  EXPECT_THAT(ctx.to_string(), HasSubstr("pipeline 1 of 2"));
  EXPECT_EQ(InputContext().get_per_replica_batch_size(13), 13);
}

// The division by the number of replicas would end the process.
TEST(InputContext, NeedsAReplica) {
  EXPECT_ERROR(InvalidArgumentError, "0", InputContext(1, 0, 0));
}

}  // namespace
}  // namespace tutti
