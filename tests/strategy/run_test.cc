// SPDX-License-Identifier: Apache-2.0
// Strategy::run: one thread per replica, arguments split, results gathered.
#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <thread>

#include "strategy/strategies.h"

namespace tutti {
namespace {

using testing::cpu;
using testing::cpus;
using testing::Floats;
using testing::id_of;
using testing::number;
using testing::numbers;

template <class T>
std::vector<T> list(const PerReplica<T>& value) {
  return {value.begin(), value.end()};
}

class StrategyRun : public ::testing::Test {
 protected:
  MirroredStrategy two_{cpus(2)};
};

class RunOn : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Replicas, RunOn, ::testing::Values(1, 2, 3, 4, 7));

// C101, C104
TEST_P(RunOn, CallsTheFunctionOncePerReplicaInReplicaOrder) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  EXPECT_EQ(strategy.num_replicas_in_sync(), n);
  std::atomic<int> calls = 0;
  const PerReplica<Tensor> ids = strategy.run([&](ReplicaContext& ctx) {
    ++calls;
    EXPECT_EQ(ctx.num_replicas_in_sync(), n);
    EXPECT_EQ(ctx.local_replica_id(), ctx.replica_id_in_sync_group());
    EXPECT_EQ(ctx.device(), cpu(size_t(ctx.replica_id_in_sync_group())));
    return id_of(ctx);
  });
  EXPECT_EQ(calls, n);
  ASSERT_EQ(ids.size(), size_t(n));
  for (int i = 0; i < n; ++i) EXPECT_EQ(ids[size_t(i)].item<float>(), float(i));
  EXPECT_EQ(strategy.reduce(ReduceOp::SUM, ids).item<float>(), float(n * (n - 1) / 2));
}

TEST_P(RunOn, RunsAllReplicasAtTheSameTimeOnThreadsThatItKeeps) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  std::vector<std::thread::id> first;
  for (int i = 0; i < 3; ++i) {
    std::atomic<int> inside = 0;
    const auto threads = list(strategy.run([&] {
      ++inside;
      while (inside < n) std::this_thread::yield();  // hangs if replicas take turns
      return std::this_thread::get_id();
    }));
    EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), size_t(n));
    if (i == 0) first = threads;
    EXPECT_EQ(threads, first);
  }
}

TEST_P(RunOn, KeepsManyRunsInStep) {
  const int n = GetParam();
  MirroredStrategy strategy(cpus(size_t(n)));
  for (int i = 0; i < 200; ++i)
    strategy.run([&](ReplicaContext& ctx) {
      for (int j = 0; j < 3; ++j)
        ASSERT_EQ(ctx.all_reduce(ReduceOp::SUM, number(i + j)).item<float>(), float(n * (i + j)));
    });
}

// C113
TEST_F(StrategyRun, TakesResultsOfOneRunAsArgumentsOfTheNext) {
  using Parts = std::map<std::string, float>;
  struct Case {
    std::vector<float> start;
    std::vector<Parts> parts;
    std::vector<float> end;
  };
  for (const Case& c : {Case{{1, 2}, {{{"a", 2}, {"b", 1}}, {{"a", 4}, {"b", 4}}}, {6, 14}},
                        Case{{4}, {{{"a", 8}, {"b", 16}}}, {42}}}) {
    MirroredStrategy strategy(cpus(c.start.size()));
    const PerReplica<float> start(c.start);
    const PerReplica<Parts> parts = strategy.run(
        [](float x) {
          return Parts{{"a", 2 * x}, {"b", x * x}};
        },
        start);
    EXPECT_EQ(list(parts), c.parts);
    const PerReplica<float> end = strategy.run([](float a, float b) { return a + 2 * b + 2; },
                                               parts.map([](const Parts& p) { return p.at("a"); }),
                                               parts.map([](const Parts& p) { return p.at("b"); }));
    EXPECT_EQ(list(end), c.end);
  }
}

TEST_F(StrategyRun, SplitsDistributedArgumentsAndPassesOthersOn) {
  const Mirrored<int> mirrored{7, 7};
  const Variable v = [&] {
    const Scope scope = two_.scope();
    return Variable::create(number(5));
  }();
  const Tensor shared = number(1);
  const auto results = list(two_.run(
      [&](ReplicaContext& ctx, const std::string& own, int same, double plain, const Variable& var,
          const Tensor& tensor) {
        EXPECT_EQ(var, v);
        EXPECT_EQ(tensor.const_data(), shared.const_data());
        return own + std::to_string(same + int(plain) + ctx.local_replica_id());
      },
      PerReplica<std::string>{"a", "b"}, mirrored, 1.0, v, shared));
  EXPECT_EQ(results, (std::vector<std::string>{"a8", "b9"}));
}

TEST_F(StrategyRun, NeedsAComponentForEveryReplica) {
  EXPECT_ERROR(OutOfRangeError, "component 1", two_.run([](int) {}, PerReplica<int>{1}));
}

struct NoDefault {
  explicit NoDefault(int v) : value(v) {}
  int value;
};

TEST_F(StrategyRun, ReturnsResultsOfAnyType) {
  const auto owned =
      two_.run([](ReplicaContext& ctx) { return std::make_unique<int>(ctx.local_replica_id()); });
  EXPECT_EQ(*owned[1], 1);
  const auto flags = two_.run([](ReplicaContext& ctx) { return ctx.local_replica_id() == 1; });
  EXPECT_FALSE(flags[0]);
  EXPECT_TRUE(flags[1]);
  const auto made = two_.run([](ReplicaContext& ctx) { return NoDefault(ctx.local_replica_id()); });
  EXPECT_EQ(made.map(&NoDefault::value)[1], 1);
  const std::string text = "kept";
  const PerReplica<std::string> copied =
      two_.run([&](ReplicaContext&) -> const std::string& { return text; });
  EXPECT_EQ(copied[1], text);
  static_assert(std::is_void_v<decltype(two_.run([] {}))>);
}

// C179
TEST_F(StrategyRun, GivesLocalResultsAsAList) {
  using Structure = std::map<std::string, std::vector<int>>;
  const PerReplica<Structure> nested = two_.run([](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    return id == 0 ? Structure{{"a", {id}}} : Structure{{"b", {id, id}}};  // they may differ
  });
  EXPECT_EQ(two_.experimental_local_results(nested),
            (std::vector<Structure>{{{"a", {0}}}, {{"b", {1, 1}}}}));
  EXPECT_EQ(two_.experimental_local_results(PerReplica<int>{0, 1}), (std::vector<int>{0, 1}));
  EXPECT_EQ(two_.experimental_local_results(Mirrored<int>{4, 4}), (std::vector<int>{4, 4}));
  EXPECT_EQ(two_.experimental_local_results(4), std::vector<int>{4});
}

TEST_F(StrategyRun, DoesNotNest) {
  MirroredStrategy other({cpu(2)});
  for (Strategy* const s :
       {static_cast<Strategy*>(&two_), static_cast<Strategy*>(&other), &get_strategy()})
    two_.run([&] { EXPECT_ERROR(FailedPreconditionError, "nest", s->run([] {})); });
  EXPECT_EQ(list(two_.run([] { return 1; })), (std::vector<int>{1, 1}));
}

// A run holds a strategy's replicas until it ends, and a merge function is part of it.
TEST_F(StrategyRun, DoesNotNestInAMergeFunctionEither) {
  two_.run([&](ReplicaContext& ctx) {
    ctx.merge_call(
        [](Strategy& s) { EXPECT_ERROR(FailedPreconditionError, "nest", s.run([] {})); });
  });
}

TEST_F(StrategyRun, FromTwoThreadsIsSerialised) {
  std::atomic<int> running = 0;
  const auto work = [&](float own) {
    for (int i = 0; i < 50; ++i)
      two_.run([&](ReplicaContext& ctx) {
        if (ctx.local_replica_id() == 0) {
          EXPECT_EQ(++running, 1);
        }
        EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, number(own)).item<float>(), 2 * own);
        if (ctx.local_replica_id() == 0) --running;
      });
  };
  std::thread second(work, 2.f);
  work(1.f);
  second.join();
}

TEST_F(StrategyRun, OfTwoStrategiesAtOnceIsLegal) {
  MirroredStrategy other({cpu(2), cpu(3)});
  std::atomic<int> inside = 0;
  const auto meet = [&] {
    ++inside;
    while (inside < 4) std::this_thread::yield();  // hangs if the runs take turns
  };
  std::thread second([&] { other.run(meet); });
  two_.run(meet);
  second.join();
}

TEST_F(StrategyRun, PutsTensorsOnTheReplicasDevice) {
  const auto devices = list(two_.run([](ReplicaContext& ctx) {
    EXPECT_EQ(current_device(), ctx.device());
    std::vector<std::string> names{Tensor::zeros({2}, DType::float32).device()};
    {
      const DeviceScope scope("/cpu:5");
      names.push_back(Tensor::zeros({2}, DType::float32).device());
    }
    names.push_back(number(1).device());
    return names;
  }));
  EXPECT_EQ(devices, (std::vector<std::vector<std::string>>{{cpu(0), cpu(5), cpu(0)},
                                                            {cpu(1), cpu(5), cpu(1)}}));
}

// C125
TEST_F(StrategyRun, ShowsNothingOfTheCallersThread) {
  const DeviceScope around(cpu(6));
  const Scope scope = two_.scope();
  const DeviceScope inner(cpu(7));
  two_.run([](ReplicaContext& ctx) { EXPECT_EQ(current_device(), ctx.device()); });
  EXPECT_EQ(current_device(), cpu(7));
  EXPECT_THROW(two_.run([] { throw 1; }), int);
  EXPECT_EQ(current_device(), cpu(7));
  EXPECT_TRUE(in_cross_replica_context());
}

// C125
TEST_F(StrategyRun, KeepsTheStateOfItsThreadsApart) {
  two_.run([](ReplicaContext& ctx) {
    const DeviceScope scope(ctx.local_replica_id() == 0 ? "/cpu:4" : "/cpu:5");
    ctx.merge_call([](Strategy&) { EXPECT_EQ(current_device(), cpu(0)); });
    EXPECT_EQ(current_device(), cpu(ctx.local_replica_id() == 0 ? 4 : 5));
  });
  two_.run([](ReplicaContext& ctx) { EXPECT_EQ(current_device(), ctx.device()); });
}

TEST_F(StrategyRun, EndsTheUseOfItsContexts) {
  std::vector<ReplicaContext*> kept(2);
  two_.run([&](ReplicaContext& ctx) { kept[size_t(ctx.local_replica_id())] = &ctx; });
  EXPECT_ERROR(FailedPreconditionError, "all_reduce",
               kept[0]->all_reduce(ReduceOp::SUM, number(1)));
  two_.run([&](ReplicaContext& ctx) {
    ReplicaContext& others = *kept[size_t(1 - ctx.local_replica_id())];
    EXPECT_ERROR(FailedPreconditionError, "another replica",
                 others.all_reduce(ReduceOp::SUM, number(1)));
  });
}

TEST(MirroredStrategy, ChecksItsDevices) {
  cpus(1);
  EXPECT_ERROR(InvalidArgumentError, cpu(1), MirroredStrategy({"/cpu:1", "/device:CPU:1"}));
  EXPECT_ERROR(InvalidArgumentError, "CPU:99", MirroredStrategy({"/cpu:99"}));
  EXPECT_ERROR(InvalidArgumentError, "worker", MirroredStrategy({"/job:worker/task:1/cpu:0"}));
  EXPECT_ERROR(InvalidArgumentError, "empty", MirroredStrategy(std::vector<std::string>{""}));
  EXPECT_ERROR(InvalidArgumentError, "what is this", MirroredStrategy({"what is this"}));
}

TEST(MirroredStrategy, TakesEveryDeviceUnlessTold) {
  const auto all = cpus(8);
  if (!list_logical_devices("GPU").empty()) GTEST_SKIP() << "takes the GPUs instead";
  EXPECT_EQ(MirroredStrategy().extended().worker_devices(), all);
  EXPECT_EQ(MirroredStrategy(std::make_shared<ReductionToOneDevice>()).num_replicas_in_sync(), 8);
}

TEST(MirroredStrategy, IsTheOnlyWorkerAndItsChief) {
  MirroredStrategy strategy(cpus(3));
  const StrategyExtended& extended = strategy.extended();
  EXPECT_EQ(extended.num_workers(), 1);
  EXPECT_EQ(extended.replica_ids(), (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(extended.is_chief());
  EXPECT_TRUE(extended.should_checkpoint());
  EXPECT_TRUE(extended.should_save_summary());
  EXPECT_EQ(extended.parameter_devices(), cpus(3));
  EXPECT_EQ(extended.non_slot_devices(), cpus(3));
}

}  // namespace
}  // namespace tutti
