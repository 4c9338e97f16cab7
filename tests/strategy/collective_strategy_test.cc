// SPDX-License-Identifier: Apache-2.0
// Strategies over several workers, which here are threads of one process: values, variables,
// failures and checkpoints.
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <tutti/compat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>

#include "group/ranks.h"
#include "input/pipelines.h"
#include "strategy/strategies.h"
#include "strategy/workers.h"

namespace tutti {
namespace {

using testing::Caught;
using testing::caught;
using testing::cpus;
using testing::Floats;
using testing::Folder;
using testing::Groups;
using ::testing::HasSubstr;
using testing::id_of;
using testing::number;
using testing::on_ranks;
using testing::on_threads;
using Aggregation = VariableAggregation;
using Synchronization = VariableSynchronization;

// f(strategy, worker) on every worker of a job.
template <class F>
void on_workers(int workers, int devices, const F& f) {
  cpus(1);
  on_ranks(Group::in_process(workers), [&](const Group& group) {
    CollectiveAllReduceStrategy strategy(group, {.cpu_devices_per_worker = devices});
    f(strategy, group.rank());
  });
}

// Layouts of workers and devices.
class Workers : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  const int workers = GetParam().first, devices = GetParam().second, n = workers * devices;
  template <class F>
  void on_all(const F& f) const {
    on_workers(workers, devices, f);
  }
};
INSTANTIATE_TEST_SUITE_P(, Workers,
                         ::testing::Values(std::pair(1, 1), std::pair(1, 3), std::pair(2, 1),
                                           std::pair(2, 2), std::pair(3, 2), std::pair(4, 1)),
                         [](const auto& test) {
                           return fmt::format("{}x{}", test.param.first, test.param.second);
                         });

// C229
TEST_P(Workers, HaveReplicasThatAreNumberedWorkerByWorker) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int worker) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), n);
    EXPECT_EQ(strategy.extended().num_workers(), workers);
    EXPECT_EQ(strategy.extended().is_chief(), worker == 0);
    EXPECT_EQ(strategy.extended().should_checkpoint(), worker == 0);
    const PerReplica<int> ids = strategy.run([&](ReplicaContext& ctx) {
      EXPECT_EQ(ctx.num_replicas_in_sync(), n);
      EXPECT_EQ(ctx.replica_id_in_sync_group(), worker * devices + ctx.local_replica_id());
      return ctx.replica_id_in_sync_group();
    });
    EXPECT_EQ(ids.size(), size_t(devices));
    const auto values = strategy.experimental_distribute_values_from_function(
        [](const ValueContext& ctx) { return ctx.replica_id_in_sync_group; });
    EXPECT_EQ(values[0], worker * devices);
  });
}

// C035, C037, C182
TEST_P(Workers, MeetInReplicaFunctions) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int) {
    strategy.run([&](ReplicaContext& ctx) {
      const Tensor mine = id_of(ctx);
      EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, mine).item<float>(), float(n * (n - 1)) / 2);
      EXPECT_EQ(ctx.all_reduce("mean", mine).item<float>(), float(n - 1) / 2);
      const Tensor all = ctx.all_gather(mine.reshape({1}), 0);
      Floats want;
      for (int i = 0; i < n; ++i) want.push_back(float(i));
      EXPECT_EQ(all.to_vector<float>(), want);
      const IndexedSlices sparse{Tensor::of<float>({1}, ctx.device()),
                                 Tensor::of<int64_t>({0}, ctx.device()), Shape{5}};
      EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, sparse).to_dense().to_vector<float>(),
                Floats({float(n), 0, 0, 0, 0}));
      // The weight is the id, so replica 0 counts for nothing.
      if (n > 1) {
        const double squares = double(n - 1) * n * (2 * n - 1) / 6, sum = double(n) * (n - 1) / 2;
        EXPECT_FLOAT_EQ(
            ctx.all_reduce(ReduceOp::MEAN, mine, {.weight = double(ctx.replica_id_in_sync_group())})
                .item<float>(),
            float(squares / sum));
      }
      return 0;
    });
  });
}

// C106 over workers: replica r holds r repeated r + 1 times.
TEST_P(Workers, WeighReplicasByWhatTheyHold) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int) {
    const PerReplica<Tensor> values = strategy.run([](ReplicaContext& ctx) {
      const auto r = ctx.replica_id_in_sync_group();
      return Tensor::of(std::span<const float>(Floats(size_t(r) + 1, float(r))), ctx.device());
    });
    double sum = 0, count = 0;
    for (int r = 0; r < n; ++r) sum += r * (r + 1), count += r + 1;
    EXPECT_EQ(strategy.reduce(ReduceOp::SUM, values, 0).item<float>(), float(sum));
    EXPECT_EQ(strategy.reduce(ReduceOp::MEAN, values, 0).item<float>(), float(sum / count));
    EXPECT_EQ(strategy.gather(values, 0).num_elements(), int64_t(count));
  });
}

// C230
TEST_P(Workers, ReduceAPlainTensorOverThemselves) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int worker) {
    const Tensor one = number(1);
    if (workers == 1 && devices > 1) {
      EXPECT_ERROR(InvalidArgumentError, "is not defined", strategy.reduce(ReduceOp::SUM, one));
      return;
    }
    EXPECT_EQ(strategy.reduce(ReduceOp::SUM, one).item<float>(), float(workers));
    EXPECT_EQ(strategy.extended().reduce_to(ReduceOp::SUM, one, one)[0].item<float>(),
              float(workers));
    EXPECT_EQ(strategy.reduce(ReduceOp::MEAN, number(worker)).item<float>(),
              float(workers - 1) / 2);
    EXPECT_EQ(strategy.gather(number(worker).reshape({1}), 0).num_elements(), workers);
  });
}

// C224
TEST_P(Workers, StartVariablesFromTheChiefsValue) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int worker) {
    const Scope scope = strategy.scope();
    const Variable v = Variable::create(number(worker + 3));
    EXPECT_EQ(v.size(), size_t(devices));
    for (size_t i = 0; i < v.size(); ++i) EXPECT_EQ(v.component(i).item<float>(), 3);
    strategy.run([&](ReplicaContext& ctx) {
      const Variable inside = Variable::create(id_of(ctx), {.name = "inside"});
      EXPECT_EQ(inside.read_value().item<float>(), 0);
    });
  });
}

TEST_P(Workers, KeepVariablesEqual) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int) {
    const Scope scope = strategy.scope();
    const auto assigned = [&](Aggregation aggregation) {
      const Variable v = Variable::create(number(1), {.aggregation = aggregation});
      strategy.run([&](ReplicaContext& ctx) { v.assign_add(id_of(ctx)); });
      return v.read_value().item<float>();
    };
    EXPECT_EQ(assigned(Aggregation::SUM), 1 + float(n * (n - 1)) / 2);
    EXPECT_EQ(assigned(Aggregation::MEAN), 1 + float(n - 1) / 2);
    EXPECT_EQ(assigned(Aggregation::ONLY_FIRST_REPLICA), 1);
    const Variable rows =
        Variable::create(Tensor::zeros({n}, DType::float32), {.aggregation = Aggregation::SUM});
    strategy.run([&](ReplicaContext& ctx) {
      rows.scatter_add({Tensor::of<float>({1}, ctx.device()),
                        Tensor::of<int64_t>({ctx.replica_id_in_sync_group()}, ctx.device())});
    });
    EXPECT_EQ(rows.read_value().to_vector<float>(), Floats(size_t(n), 1));
  });
}

// C167, C170
TEST_P(Workers, AggregateVariablesThatAreSynchronisedOnRead) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int) {
    const Scope scope = strategy.scope();
    const auto read = [&](Aggregation aggregation) {
      const Variable v = Variable::create(
          number(0), {.synchronization = Synchronization::ON_READ, .aggregation = aggregation});
      strategy.run([&](ReplicaContext& ctx) { v.assign(id_of(ctx)); });
      return v.read_value().item<float>();
    };
    EXPECT_EQ(read(Aggregation::SUM), float(n * (n - 1)) / 2);
    EXPECT_EQ(read(Aggregation::MEAN), float(n - 1) / 2);
    EXPECT_EQ(read(Aggregation::ONLY_FIRST_REPLICA), 0);
    const Variable count = Variable::create(
        Tensor::scalar<int64_t>(0),
        {.synchronization = Synchronization::ON_READ, .aggregation = Aggregation::SUM});
    count.assign(Tensor::scalar<int64_t>(17));
    EXPECT_EQ(count.read_value().item<int64_t>(), 17);
  });
}

TEST_P(Workers, LeaveAndJoinAgain) {
  on_all([&](CollectiveAllReduceStrategy& strategy, int worker) {
    strategy.experimental_initialize();
    strategy.experimental_finalize();
    EXPECT_EQ(strategy.num_replicas_in_sync(), n);
    EXPECT_ERROR(FailedPreconditionError, "has left its job",
                 strategy.reduce(ReduceOp::SUM, strategy.run(id_of)));
    strategy.experimental_finalize();
    strategy.experimental_initialize();
    EXPECT_EQ(strategy.reduce(ReduceOp::SUM, strategy.run(id_of)).item<float>(),
              float(n * (n - 1)) / 2);
    const auto copy = strategy.clone();
    EXPECT_EQ(copy->num_replicas_in_sync(), n);
    EXPECT_EQ(copy->extended().replica_ids()[0], worker * devices);
    EXPECT_EQ(copy->reduce(ReduceOp::MEAN, copy->run(id_of)).item<float>(), float(n - 1) / 2);
  });
}

class Job : public ::testing::Test {
 protected:
  Job() { cpus(1); }
};

TEST_F(Job, EndsOnAllWorkersIfAReplicaThrows) {
  std::vector<Caught> all(3), later(3), input(3);
  on_workers(3, 2, [&](CollectiveAllReduceStrategy& strategy, int worker) {
    const auto w = size_t(worker);
    InputIterator own = strategy.make_input_fn_iterator(
        [](const InputContext&) { return Dataset::range(8).batch(1); });
    own.initialize();
    try {
      strategy.run([&](ReplicaContext& ctx) {
        if (ctx.replica_id_in_sync_group() == 3) throw std::runtime_error("no more memory");
        return ctx.all_reduce(ReduceOp::SUM, id_of(ctx));
      });
    } catch (const Error& e) {
      all[w] = {e.code(), e.what()};
    } catch (const std::runtime_error& e) {
      all[w] = {{}, e.what()};  // what was thrown, as it was
    }
    later[w] = caught([&] { strategy.reduce(ReduceOp::SUM, number(1)); });
    input[w] = caught([&] { own.get_next(); });
  });
  EXPECT_EQ(all[1].text, "no more memory");
  for (const size_t w : {0, 2}) {
    EXPECT_EQ(all[w].code, ErrorCode::aborted);
    EXPECT_THAT(all[w].text, HasSubstr("worker 1 gave up: replica 3: no more memory"));
  }
  for (const std::vector<Caught>& errors : {later, input})
    for (const Caught& error : errors) {
      EXPECT_EQ(error.code, ErrorCode::aborted);
      EXPECT_THAT(error.text, HasSubstr("replica 3: no more memory"));
    }
}

// C232: 20 strategies one after another, each time with another worker as the chief.
TEST_F(Job, MayBeMadeManyTimesWithChangingRanks) {
  on_ranks(Group::in_process(5), [](const Group& all) {
    for (int i = 0; i < 20; ++i) {
      const Group group = all.split(0, (all.rank() + i) % 5);
      CollectiveAllReduceStrategy strategy(group);
      const Scope scope = strategy.scope();
      EXPECT_EQ(strategy.reduce(ReduceOp::MEAN, number(group.rank())).item<float>(), 2);
      const Variable v = Variable::create(number(all.rank()));
      EXPECT_EQ(v.read_value().item<float>(), float((5 - i % 5) % 5)) << "of the chief";
    }
  });
}

// C223: what all workers fit together comes out, and gets better on the way.
TEST_F(Job, LearnsTogether) {
  on_workers(3, 2, [](CollectiveAllReduceStrategy& strategy, int) {
    const Scope scope = strategy.scope();
    const Variable w = Variable::create(number(0), {.aggregation = Aggregation::MEAN});
    float before = std::numeric_limits<float>::max();
    for (int step = 0; step < 10; ++step) {
      const PerReplica<Tensor> losses = strategy.run([&](ReplicaContext& ctx) {
        const float x = 1 + float(ctx.replica_id_in_sync_group()) / 6;
        const float error = w.read_value().item<float>() * x - 3 * x;
        w.assign_sub(number(0.2 * error * x, ctx.device()));
        return number(error * error, ctx.device());
      });
      const float loss = strategy.reduce(ReduceOp::MEAN, losses).item<float>();
      EXPECT_LT(loss, before);
      before = loss;
    }
    EXPECT_NEAR(w.read_value().item<float>(), 3, 0.2);
  });
}

TEST_F(Job, NamesTheWorkerThatAsksForSomethingElse) {
  std::vector<Caught> all(2);
  on_workers(2, 1, [&](CollectiveAllReduceStrategy& strategy, int worker) {
    all[size_t(worker)] = caught([&] {
      strategy.run([&](ReplicaContext& ctx) {
        const ReduceOp op = worker == 0 ? ReduceOp::SUM : ReduceOp::MAX;
        return ctx.all_reduce(op, id_of(ctx));
      });
    });
  });
  testing::expect_everywhere(all, ErrorCode::invalid_argument, {"SUM", "MAX"});
}

TEST_F(Job, IsOverForEverythingOnceLeft) {
  const Folder folder;
  on_workers(2, 1, [&](CollectiveAllReduceStrategy& strategy, int worker) {
    const Scope scope = strategy.scope();
    const Variable v = Variable::create(number(worker), {.name = "v"});
    strategy.experimental_finalize();
    constexpr const char* why = "has left its job";
    EXPECT_ERROR(FailedPreconditionError, why, Variable::create(number(1)));
    EXPECT_ERROR(
        FailedPreconditionError, why,
        strategy.make_input_fn_iterator([](const InputContext&) { return Dataset::range(1); }));
    EXPECT_ERROR(FailedPreconditionError, why, save_variables(folder / "v.safetensors", {v}));
    EXPECT_ERROR(FailedPreconditionError, why, Checkpoint(folder / "c", {v}).save(1));
    EXPECT_FALSE(std::filesystem::exists(folder / "v.safetensors"));
  });
}

TEST_F(Job, MayBeLeftAfterAFailure) {
  on_workers(2, 1, [&](CollectiveAllReduceStrategy& strategy, int worker) {
    const Caught error = caught([&] {
      strategy.run([&](ReplicaContext& ctx) {
        if (worker == 1) throw InternalError("boom");
        return ctx.all_reduce(ReduceOp::SUM, id_of(ctx));
      });
    });
    EXPECT_THAT(error.text, HasSubstr("boom"));
    EXPECT_THAT(caught([&] { strategy.experimental_finalize(); }).text, HasSubstr("boom"));
    strategy.experimental_initialize();
    EXPECT_EQ(strategy.reduce(ReduceOp::SUM, number(1)).item<float>(), 2);
  });
}

TEST_F(Job, NeedsTheSameVariablesOnAllWorkers) {
  std::vector<Caught> all(2);
  on_workers(2, 1, [&](CollectiveAllReduceStrategy& strategy, int worker) {
    const Scope scope = strategy.scope();
    all[size_t(worker)] =
        caught([&] { Variable::create(number(1), {.name = worker ? "b" : "a"}); });
  });
  testing::expect_everywhere(all, ErrorCode::invalid_argument,
                             {"Variable::create: the workers disagree", "\"a\" (float32", "\"b\""});
}

TEST_F(Job, NeedsAsManyDevicesOnAllWorkers) {
  testing::expect_everywhere(
      testing::errors_on_ranks(Group::in_process(3),
                               [](const Group& group) {
                                 CollectiveAllReduceStrategy(
                                     group, {.cpu_devices_per_worker = group.rank() == 2 ? 2 : 1});
                               }),
      ErrorCode::invalid_argument, {"worker 0 has 1 devices, worker 2 2 devices"});
}

TEST_F(Job, KeepsItsTimeout) {
  std::vector<Caught> all(2);
  std::promise<void> done;
  on_ranks(Group::in_process(2), [&](const Group& group) {
    CollectiveAllReduceStrategy strategy(group, {.communication = testing::kSoon});
    const Scope scope = strategy.scope();
    if (group.rank() == 1) return done.get_future().wait();  // is there, but does not come
    all[0] = caught([&] { Variable::create(number(1)); });
    done.set_value();
  });
  EXPECT_EQ(all[0].code, ErrorCode::deadline_exceeded);
  EXPECT_THAT(all[0].text, HasSubstr("rank 1"));
}

TEST_F(Job, DoesNotMistakeRowsThatNoReplicaNames) {
  on_ranks(Group::in_process(2), [&](const Group& group) {
    CollectiveAllReduceStrategy strategy(group, {.communication = {.sparse_as_dense = true}});
    const Scope scope = strategy.scope();
    const Variable v =
        Variable::create(Tensor::of<float>({1, 5, 1}), {.aggregation = Aggregation::SUM});
    strategy.run([&](ReplicaContext&) {
      v.scatter_mul({Tensor::of<float>({2}), Tensor::of<int64_t>({1})});
    });
    EXPECT_EQ(v.read_value().to_vector<float>(), Floats({1, 20, 1}));
  });
}

// Bits must not depend on the layout.
TEST_F(Job, CountsAMirroredValueOnce) {
  on_workers(3, 1, [](CollectiveAllReduceStrategy& strategy, int) {
    const Mirrored<Tensor> value{Tensor::of<double>({0.1})};
    EXPECT_EQ(strategy.reduce(ReduceOp::MEAN, value, 0).item<double>(), 0.1);
    EXPECT_ERROR(InvalidArgumentError, "is not defined", strategy.reduce(ReduceOp::SUM, value, 0));
  });
}

// C227, C236 and the like
TEST_F(Job, IsConfiguredByAClusterAndATask) {
  CollectiveAllReduceStrategy strategy;
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  const ClusterSpec one{{{"worker", {"127.0.0.1:1"}}}};
  const ClusterSpec two{{{"worker", {"127.0.0.1:1", "127.0.0.1:2"}}, {"ps", {"127.0.0.1:3"}}}};
  EXPECT_ERROR(InvalidArgumentError, "without task_type",
               strategy.configure({.cluster_spec = two}));
  EXPECT_ERROR(InvalidArgumentError, "without task_id",
               strategy.configure({.cluster_spec = two, .task_type = "worker"}));
  EXPECT_ERROR(InvalidArgumentError, "task_id is 2",
               strategy.configure({.cluster_spec = two, .task_type = "worker", .task_id = 2}));
  EXPECT_ERROR(InvalidArgumentError, "ps",
               strategy.configure({.cluster_spec = two, .task_type = "ps", .task_id = 0}));
  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  ConfigProto config{.device_filters = {"old"}};
  strategy.configure({.session_config = &config});
  EXPECT_EQ(config.device_filters, std::vector<std::string>{"old"});
  EXPECT_TRUE(config.scoped_allocator_optimization);
  strategy.configure(
      {.session_config = &config, .cluster_spec = one, .task_type = "worker", .task_id = 0});
  EXPECT_EQ(config.device_filters, std::vector<std::string>{"/job:worker/task:0"});
  const Scope scope = strategy.scope();
  const Variable v = Variable::create(number(1));
  EXPECT_ERROR(FailedPreconditionError, "the strategy has 1 variables",
               strategy.configure({.cluster_spec = one, .task_type = "worker", .task_id = 0}));
}

// C226
TEST_F(Job, FillsTheConfigOfEachTask) {
  const ClusterSpec workers{{{"worker", {"a:1", "b:1"}}}};
  const ConfigProto config = detail::Roster::from(workers, "worker", 1)
                                 .updated({.scoped_allocator_enable_op = {"x", "y"}});
  EXPECT_EQ(config.experimental.collective_group_leader, "/job:worker/replica:0/task:0");
  EXPECT_EQ(config.device_filters, std::vector<std::string>{"/job:worker/task:1"});
  EXPECT_TRUE(config.scoped_allocator_optimization);
  EXPECT_EQ(config.scoped_allocator_enable_op, std::vector<std::string>{"CollectiveReduce"});
  const ClusterSpec chief{{{"chief", {"a:1"}}, {"worker", {"b:1", "c:1"}}}};
  const auto cast = detail::Roster::from(chief, "worker", 1);
  EXPECT_EQ(cast.updated({}).experimental.collective_group_leader, "/job:chief/replica:0/task:0");
  EXPECT_EQ(cast.rank_of("chief", 0), 0);
  EXPECT_EQ(cast.rank_of("worker", 1), 2);
}

// C241, as far as it is about one process
TEST_F(Job, KnowsOnlyItsOwnTasks) {
  CollectiveAllReduceStrategy strategy;
  strategy.check_health();
  strategy.check_health("worker", 0);
  EXPECT_ERROR(InvalidArgumentError, "there is no /job:worker/task:1 among the 1 workers",
               strategy.check_health("worker", 1));
  EXPECT_ERROR(InvalidArgumentError, "/job:gardener/task:0", strategy.check_health("gardener", 0));
}

TEST_F(Job, NeedsItsDevices) {
  EXPECT_ERROR(InvalidArgumentError, "num_gpus_per_worker is 1, but this machine has 0 logical GPU",
               CollectiveAllReduceStrategy(1));
  EXPECT_ERROR(InvalidArgumentError, "num_gpus_per_worker is -1", CollectiveAllReduceStrategy(-1));
  EXPECT_ERROR(InvalidArgumentError, "cpu_devices_per_worker is 0",
               CollectiveAllReduceStrategy({.cpu_devices_per_worker = 0}));
  EXPECT_ERROR(InvalidArgumentError, "bytes_per_pack is -1",
               CollectiveAllReduceStrategy({.communication = {.bytes_per_pack = -1}}));
}

// What each worker trains in a few steps: the momentary sum of all it has seen.
class Resumed : public ::testing::Test {
 protected:
  static constexpr int kSteps = 12;

  // Trains until `stop` and returns the variable, with a checkpoint after every third step.
  std::vector<float> train(int workers, int devices, int stop, bool own_data = false) {
    std::vector<float> result;
    on_workers(workers, devices, [&](CollectiveAllReduceStrategy& strategy, int worker) {
      const Scope scope = strategy.scope();
      const Variable v =
          Variable::create(number(0), {.name = "v", .aggregation = Aggregation::SUM});
      const Dataset all = Dataset::range(kSteps * 12).shuffle(30, 7).batch(12);
      InputIterator input = own_data
                                ? strategy.make_input_fn_iterator([&](const InputContext& ctx) {
                                    return Dataset::range(1000 * ctx.input_pipeline_id(),
                                                          1000 * ctx.input_pipeline_id() + 60)
                                        .batch(1);
                                  })
                                : strategy.experimental_distribute_dataset(all).make_iterator();
      if (own_data) input.initialize();
      Checkpoint checkpoint(folder_ / "checkpoints", {v}, {&input});
      for (int64_t step = checkpoint.restore().value_or(0); step < stop; ++step) {
        const DistributedElement element = input.get_next();
        strategy.run(
            [&](ReplicaContext& ctx, const Tensor& x) {
              float sum = 0;
              for (const int64_t value : x.span<const int64_t>()) sum += float(value * (step + 1));
              v.assign_add(number(sum, ctx.device()));
            },
            element[0]);
        if ((step + 1) % 3 == 0) checkpoint.save(step + 1);
      }
      if (worker == 0) result = v.read_value().to_vector<float>();
    });
    return result;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "checkpoints"))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }

  Folder folder_;
};

TEST_F(Resumed, JobsEndAsIfNothingHadHappened) {
  const Folder another;
  const std::vector<float> undisturbed = train(2, 2, kSteps);
  std::filesystem::remove_all(folder_ / "checkpoints");
  train(2, 2, 5);  // the checkpoint is of step 3
  EXPECT_EQ(train(2, 2, kSteps), undisturbed);
  std::filesystem::remove_all(folder_ / "checkpoints");
  train(2, 2, 7);
  EXPECT_EQ(train(4, 1, kSteps), undisturbed) << "on another number of workers";
}

TEST_F(Resumed, JobsWithDataOfTheirOwnNeedAsManyWorkers) {
  const std::vector<float> undisturbed = train(3, 1, kSteps, true);
  std::filesystem::remove_all(folder_ / "checkpoints");
  train(3, 1, 7, true);
  EXPECT_EQ(train(3, 1, kSteps, true), undisturbed);
  const Groups groups = Group::in_process(2);
  testing::expect_everywhere(
      testing::errors_on_ranks(groups,
                               [&](const Group& group) {
                                 CollectiveAllReduceStrategy strategy(group);
                                 const Scope scope = strategy.scope();
                                 const Variable v = Variable::create(number(0), {.name = "v"});
                                 InputIterator input =
                                     strategy.make_input_fn_iterator([](const InputContext&) {
                                       return Dataset::range(9).batch(1);
                                     });
                                 input.initialize();
                                 Checkpoint(folder_ / "checkpoints", {v}, {&input}).restore();
                               }),
      ErrorCode::invalid_argument, {"has input 0 of 3 workers, and here it is of 2 workers"});
}

TEST_F(Resumed, JobsPassOverDamagedFiles) {
  const std::vector<float> undisturbed = train(2, 1, kSteps);
  std::filesystem::remove_all(folder_ / "checkpoints");
  train(2, 1, 7);
  std::filesystem::resize_file(folder_ / "checkpoints/step-000000000006.safetensors", 100);
  testing::CapturedLog log;
  EXPECT_EQ(train(2, 1, kSteps), undisturbed);
  EXPECT_THAT(log.texts(), ::testing::Contains(HasSubstr("passing over")));
}

TEST_F(Resumed, JobsWhoseFilesAreAllDamagedFailAndDeleteNone) {
  const auto job = [&](int64_t step, std::optional<int64_t> restored) {
    return testing::errors_on_ranks(Group::in_process(2), [&](const Group& group) {
      CollectiveAllReduceStrategy strategy(group);
      const Scope scope = strategy.scope();
      const Variable v = Variable::create(number(1), {.name = "v"});
      Checkpoint checkpoint(folder_ / "checkpoints", {v}, {}, 1);
      const Caught error = caught([&] { EXPECT_EQ(checkpoint.restore(), restored); });
      if (step > 0) checkpoint.save(step);
      if (error.code) throw_error(*error.code, error.text);
    });
  };
  const std::string six = "step-000000000006.safetensors";
  const auto damage = [&] { std::filesystem::resize_file(folder_ / "checkpoints/" + six, 100); };
  const auto none = [](const std::vector<Caught>& all) {
    for (const Caught& error : all) EXPECT_FALSE(error.code) << error.text;
  };
  testing::CapturedLog log;
  none(job(6, {}));
  damage();
  std::ofstream(folder_ / "checkpoints/step-000000000005.safetensors.tmp.1.1") << "half";
  testing::expect_everywhere(job(0, {}), ErrorCode::data_loss, {six, "move them"});
  testing::expect_everywhere(job(6, {}), ErrorCode::data_loss, {six});
  EXPECT_THAT(files(), ::testing::ElementsAre(six, six + ".damaged.1"));
  damage();  // once more: the first is not written over
  testing::expect_everywhere(job(3, {}), ErrorCode::data_loss, {six, six + ".damaged.1"});
  none(job(7, 3));
  none(job(8, 7));
  EXPECT_THAT(files(), ::testing::ElementsAre(six + ".damaged.1", six + ".damaged.2",
                                              "step-000000000008.safetensors"));
  // If no save follows, the damaged files still are not nothing.
  std::filesystem::remove(folder_ / "checkpoints/step-000000000008.safetensors");
  testing::expect_everywhere(job(0, {}), ErrorCode::data_loss, {six + ".damaged.2"});
}

TEST_F(Resumed, JobsThatPassOverAFileKeepItThroughLaterStarts) {
  train(2, 1, 7);
  const std::string six = "step-000000000006.safetensors";
  std::filesystem::resize_file(folder_ / "checkpoints/" + six, 100);
  testing::CapturedLog log;
  train(2, 1, 9);
  train(2, 1, kSteps);
  EXPECT_THAT(files(), ::testing::ElementsAre(six + ".damaged.1", "step-000000000009.safetensors",
                                              "step-000000000012.safetensors"));
}

// One wrong bit must not turn the check off.
TEST_F(Resumed, JobsRefuseAFileWithoutItsChecksum) {
  MirroredStrategy strategy;
  const Scope scope = strategy.scope();
  const Variable v = Variable::create(number(1), {.name = "v"});
  Checkpoint checkpoint(folder_ / "checkpoints", {v});
  checkpoint.save(1);
  v.assign(number(2));
  const std::string path = folder_ / "checkpoints/step-000000000001.safetensors";
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}}, key = "tutti.checksum";
  const size_t at = bytes.find(key);
  ASSERT_NE(at, bytes.npos);
  testing::CapturedLog log;
  for (size_t bit = 0; bit < key.size() * 8; ++bit) {
    std::string wrong = bytes;
    wrong[at + bit / 8] ^= char(1 << bit % 8);
    std::ofstream(path, std::ios::binary) << wrong;
    EXPECT_ERROR(DataLossError, path.substr(path.rfind('/') + 1), checkpoint.restore())
        << "bit " << bit;
    EXPECT_EQ(v.read_value().item<float>(), 2);
  }
  save_variables(path, {v});  // a file of ours, but no checkpoint
  EXPECT_ERROR(DataLossError, "step-000000000001", checkpoint.restore());
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(checkpoint.restore(), 1);
}

// What a folder holds that cannot be listed is not known, so it is not step 0.
TEST_F(Resumed, JobsFailIfTheirFolderCannotBeListed) {
  MirroredStrategy strategy;
  const Scope scope = strategy.scope();
  const Variable v = Variable::create(number(1), {.name = "v"});
  const auto restore = [&](const std::string& folder) { return Checkpoint(folder, {v}).restore(); };
  EXPECT_EQ(restore(folder_ / "not made yet"), std::nullopt);
  std::ofstream(folder_ / "file") << "in the way";
  EXPECT_ERROR(UnavailableError, folder_ / "file", restore(folder_ / "file"));
  std::filesystem::create_symlink("loop", folder_ / "loop");
  EXPECT_ERROR(UnavailableError, folder_ / "loop", restore(folder_ / "loop"));

  const std::string folder = folder_ / "checkpoints";
  Checkpoint(folder, {v}).save(1);
  constexpr uid_t kOther = 65534;
  const bool root = geteuid() == 0;
  // Modes do not bind root. The user for files is this thread's alone.
  if (root) {
    ASSERT_EQ(chown((folder_ / "").c_str(), kOther, gid_t(-1)), 0);
    ASSERT_EQ(chown(folder.c_str(), kOther, gid_t(-1)), 0);
  }
  ASSERT_EQ(chmod(folder.c_str(), 0300), 0);
  if (root) setfsuid(kOther);
  EXPECT_ERROR(UnavailableError, "Permission denied", restore(folder));
  EXPECT_ERROR(UnavailableError, "cannot list", Checkpoint(folder, {v}).save(2));
  if (root) setfsuid(0);
  ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
  EXPECT_EQ(restore(folder), 1);
}

TEST_F(Resumed, AnInputThatCannotGoOnIsAnErrorOnAllWorkers) {
  const auto job = [&](bool shuffled, bool restoring) {
    return testing::errors_on_ranks(Group::in_process(2), [&](const Group& group) {
      CollectiveAllReduceStrategy strategy(group);
      const Scope scope = strategy.scope();
      const Variable v = Variable::create(number(restoring ? 2 : 1), {.name = "v"});
      InputIterator input = strategy.make_input_fn_iterator([&](const InputContext& ctx) {
        const Dataset data = Dataset::range(100);
        return (shuffled && ctx.input_pipeline_id() == 1 ? data.shuffle(9, 1) : data).batch(1);
      });
      input.initialize();
      input.get_next();
      Checkpoint checkpoint(folder_ / "checkpoints", {v}, {&input});
      if (!restoring) return checkpoint.save(1);
      const Caught error = caught([&] { checkpoint.restore(); });
      EXPECT_EQ(v.read_value().item<float>(), 2);
      const int64_t next = input.get_next()[0][0].item<int64_t>();
      EXPECT_EQ(group.rank() == 0 ? next : 1, 1) << "the input is not where it was";
      throw_error(error.code.value(), error.text);
    });
  };
  job(false, false);
  testing::expect_everywhere(job(true, true), ErrorCode::data_loss, {"another dataset"});
}

TEST_F(Resumed, JobsNeedVariablesOfOneStrategy) {
  const auto variable = [](Strategy& strategy, const std::string& name) {
    const Scope scope = strategy.scope();
    return Variable::create(number(1), {.name = name});
  };
  MirroredStrategy one, two;
  const Variable a = variable(one, "a"), b = variable(two, "b"), c = variable(one, "tutti.c");
  EXPECT_ERROR(InvalidArgumentError, "no variables", Checkpoint(folder_ / "x", {}));
  EXPECT_ERROR(InvalidArgumentError, "of two strategies", Checkpoint(folder_ / "x", {a, b}));
  EXPECT_ERROR(InvalidArgumentError, "are taken", Checkpoint(folder_ / "x", {a, c}));
  EXPECT_ERROR(InvalidArgumentError, "keep is 0", Checkpoint(folder_ / "x", {a}, {}, 0));
}

TEST_F(Resumed, FoldersKeepTheNewestFiles) {
  train(2, 1, kSteps);
  EXPECT_THAT(files(), ::testing::ElementsAre("step-000000000009.safetensors",
                                              "step-000000000012.safetensors"));
}

TEST_F(Resumed, ErrorsOfTheChiefAreErrorsOnAllWorkers) {
  std::ofstream(folder_ / "checkpoints") << "in the way";
  const Groups groups = Group::in_process(3);
  const auto all = testing::errors_on_ranks(groups, [&](const Group& group) {
    CollectiveAllReduceStrategy strategy(group);
    const Scope scope = strategy.scope();
    const Variable v = Variable::create(number(0), {.name = "v"});
    Checkpoint(folder_ / "checkpoints", {v}).save(1);
  });
  testing::expect_everywhere(all, ErrorCode::unavailable, {"cannot make"});
  EXPECT_THAT(all[1].text, HasSubstr("worker 0: "));
  const auto missing = testing::errors_on_ranks(Group::in_process(2), [&](const Group& group) {
    CollectiveAllReduceStrategy strategy(group);
    const Scope scope = strategy.scope();
    const Variable v = Variable::create(number(0), {.name = "v"});
    load_variables(folder_ / "none.safetensors", {v});
  });
  testing::expect_everywhere(missing, ErrorCode::not_found, {"none.safetensors"});
}

TEST_F(Resumed, MetadataComesBackEverywhere) {
  on_workers(3, 1, [&](CollectiveAllReduceStrategy& strategy, int worker) {
    const Scope scope = strategy.scope();
    const Variable v = Variable::create(number(5), {.name = "v"});
    Checkpoint checkpoint(folder_ / "checkpoints", {v});
    EXPECT_EQ(checkpoint.restore(), std::nullopt);
    EXPECT_ERROR(InvalidArgumentError, "the step is -1", checkpoint.save(-1));
    checkpoint.save(4, {{"note", "half way"}, {"worker", std::to_string(worker)}});
    v.assign(number(6));
    EXPECT_EQ(checkpoint.restore(), 4);
    EXPECT_EQ(v.read_value().item<float>(), 5);
    EXPECT_EQ(checkpoint.metadata(),
              (std::map<std::string, std::string>{{"note", "half way"}, {"worker", "0"}}));
  });
}

}  // namespace
}  // namespace tutti
