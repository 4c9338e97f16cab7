// SPDX-License-Identifier: Apache-2.0
// Strategies, variables and input on logical GPUs: the bits are those of the same on CPUs.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <thread>

#include "cuda/gpus.h"
#include "support/expect.h"
#include "support/fake_cuda.h"

namespace tutti {
namespace {

using testing::devices;
using testing::gpu;
using testing::random_tensor;
using testing::same;
using F = std::vector<float>;
using I = std::vector<int64_t>;

// Runs a scenario on CPUs, and twice on GPUs.
class GpuStrategy : public testing::LogicalGpus<8, ::testing::TestWithParam<size_t>> {
 protected:
  using Scenario = std::function<std::vector<Tensor>(Strategy&)>;
  static void expect_same(const Scenario& scenario) {
    MirroredStrategy on_cpus(devices("CPU", GetParam()));
    const std::vector<Tensor> want = scenario(on_cpus);
    EXPECT_FALSE(want.empty());
    for (int repeat = 0; repeat < 2; ++repeat) {
      MirroredStrategy on_gpus(devices("GPU", GetParam()));
      const std::vector<Tensor> got = scenario(on_gpus);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(same(got[i], want[i])) << i;
    }
  }
  template <class T>
  static void append(std::vector<Tensor>& results, const T& tensors) {
    for (const Tensor& t : tensors) results.push_back(t);
  }
  static void append(std::vector<Tensor>& results, const Variable& variable) {
    for (size_t i = 0; i < variable.size(); ++i)
      results.push_back(testing::on_host(variable.component(i)));
  }
};

class GpuWorkers : public testing::LogicalGpus<8> {};

TEST_F(GpuWorkers, TakeTheGpusOfTheirLocalRank) {
  const size_t visible = list_logical_devices("GPU").size();
  for (const size_t each : {size_t(1), size_t(3), visible}) {
    std::vector<Group> groups = Group::in_process(8);
    std::vector<std::vector<std::string>> taken(groups.size());
    std::vector<float> sums(groups.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < groups.size(); ++r)
      threads.emplace_back([&, r] {
        CollectiveAllReduceStrategy strategy(groups[r], {.num_gpus_per_worker = int(each)});
        taken[r] = strategy.extended().worker_devices();
        const auto ones = strategy.run([](ReplicaContext&) { return Tensor::scalar<float>(1); });
        sums[r] = strategy.reduce(ReduceOp::SUM, ones).item<float>();
      });
    for (std::thread& thread : threads) thread.join();
    for (size_t r = 0; r < groups.size(); ++r) {
      ASSERT_EQ(taken[r].size(), each);
      for (size_t i = 0; i < each; ++i) EXPECT_EQ(taken[r][i], gpu((r * each + i) % visible));
      EXPECT_EQ(sums[r], float(8 * each));
    }
  }
}

TEST_P(GpuStrategy, RunsOnItsDevices) {
  MirroredStrategy strategy(devices("GPU", GetParam()));
  EXPECT_EQ(strategy.num_replicas_in_sync(), int(GetParam()));
  const PerReplica<Tensor> out = strategy.run([](ReplicaContext& ctx) {
    EXPECT_EQ(current_device(), ctx.device());
    return Tensor::scalar<float>(float(ctx.replica_id_in_sync_group()));
  });
  for (size_t i = 0; i < GetParam(); ++i) {
    EXPECT_EQ(out[i].device(), gpu(i));
    EXPECT_EQ(out[i].item<float>(), float(i));
  }
}

TEST_P(GpuStrategy, MeetsInsideOfReplicas) {
  expect_same([](Strategy& strategy) {
    std::vector<Tensor> results;
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64}) {
      const auto mine = [dtype](ReplicaContext& ctx, const Shape& shape) {
        return random_tensor(dtype, shape, uint64_t(ctx.replica_id_in_sync_group()))
            .clone_to(ctx.device());
      };
      for (const ReduceOp op : testing::kOps)
        append(results, strategy.run([&](ReplicaContext& ctx) {
          return ctx.all_reduce(op, mine(ctx, {33, 3}));
        }));
      for (const int64_t axis : {0, 1})
        append(results, strategy.run([&](ReplicaContext& ctx) {
          const int64_t own = ctx.replica_id_in_sync_group();
          return ctx.all_gather(mine(ctx, axis ? Shape{3, own} : Shape{own, 3}), axis);
        }));
      const PerReplica<std::vector<Tensor>> lists = strategy.run([&](ReplicaContext& ctx) {
        return ctx.all_reduce(
            ReduceOp::MEAN, std::vector<Tensor>{mine(ctx, {2}), mine(ctx, {0}), mine(ctx, {501})});
      });
      for (const auto& list : lists) append(results, list);
      append(results, strategy.run([&](ReplicaContext& ctx) {
        return ctx.merge_call(
            [](Strategy& s, const PerReplica<Tensor>& all) {
              return s.extended().reduce_to(ReduceOp::SUM, all, all);
            },
            mine(ctx, {7}));
      }));
      const PerReplica<IndexedSlices> sparse = strategy.run([&](ReplicaContext& ctx) {
        const IndexedSlices slices{mine(ctx, {4, 2}), Tensor::of<int64_t>({1, 0, 1, 5}),
                                   Shape{6, 2}};
        return ctx.all_reduce(ReduceOp::SUM, slices);
      });
      append(results, sparse.map(&IndexedSlices::to_dense));
    }
    return results;
  });
}

TEST_P(GpuStrategy, GoesOnAfterFailures) {
  MirroredStrategy strategy(devices("GPU", GetParam()));
  const int last = int(GetParam()) - 1;
  const auto one = [](ReplicaContext& ctx) {
    return ctx.all_reduce(ReduceOp::SUM, Tensor::scalar<float>(1));
  };
  for (int i = 0; i < 3; ++i) {
    EXPECT_ERROR(std::domain_error, "unhappy", strategy.run([&](ReplicaContext& ctx) {
      if (ctx.replica_id_in_sync_group() == last) throw std::domain_error("unhappy");
      return one(ctx);
    }));
    if (last == 0) continue;
    EXPECT_ERROR(InvalidArgumentError, "shape", strategy.run([&](ReplicaContext& ctx) {
      return ctx.all_reduce(
          ReduceOp::SUM,
          Tensor::zeros({ctx.replica_id_in_sync_group() == last ? 2 : 1}, DType::float32));
    }));
    EXPECT_ERROR(FailedPreconditionError, "replica", strategy.run([&](ReplicaContext& ctx) {
      return ctx.replica_id_in_sync_group() == last ? Tensor::scalar<float>(1) : one(ctx);
    }));
    const PerReplica<Tensor> out = strategy.run(one);
    for (const Tensor& t : out) EXPECT_EQ(t.item<float>(), float(GetParam()));
  }
}

TEST_P(GpuStrategy, UpdatesVariables) {
  expect_same([](Strategy& strategy) {
    const auto in_scope = strategy.scope();
    std::vector<Tensor> results;
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::float64,
                              DType::int32, DType::uint8, DType::boolean}) {
      const Shape shape{17, 3};
      const auto value = [&](uint64_t seed) { return random_tensor(dtype, shape, seed, false); };
      for (const auto aggregation :
           {VariableAggregation::NONE, VariableAggregation::SUM, VariableAggregation::MEAN,
            VariableAggregation::ONLY_FIRST_REPLICA}) {
        if (aggregation == VariableAggregation::MEAN && !is_floating(dtype)) continue;
        const Variable v = Variable::create(value(1), {.name = "v", .aggregation = aggregation});
        v.assign(value(2));
        append(results, v);
        if (dtype != DType::boolean) {
          v.assign_add(value(3).clone_to(v.devices().back()));
          append(results, v);
          v.assign_sub(value(4));
          append(results, v);
          v.assign_add(v.component(v.size() - 1));  // itself
          append(results, v);
        }
        if (dtype == DType::boolean && aggregation == VariableAggregation::SUM) continue;
        strategy.run([&](ReplicaContext& ctx) {
          const Tensor mine =
              value(uint64_t(ctx.replica_id_in_sync_group()) + 10).clone_to(ctx.device());
          v.assign(mine);
          if (dtype == DType::boolean) return;
          v.assign_add(mine);
          v.assign_sub(v.read_value());
          v.assign_sub(mine);
        });
        append(results, v);
        results.push_back(v.read_value());
        append(results, v.clone());
      }
    }
    return results;
  });
}

TEST_P(GpuStrategy, ScattersIntoVariables) {
  expect_same([](Strategy& strategy) {
    const auto in_scope = strategy.scope();
    std::vector<Tensor> results;
    using Scatter = void (Variable::*)(const IndexedSlices&) const;
    const Scatter scatters[] = {&Variable::scatter_add, &Variable::scatter_sub,
                                &Variable::scatter_mul, &Variable::scatter_min,
                                &Variable::scatter_max, &Variable::scatter_update,
                                &Variable::scatter_div};
    const I rows{3, 1, 3, 16, 3, 0};
    const auto slices = [&](DType dtype, uint64_t seed, std::string_view device) {
      return IndexedSlices{random_tensor(dtype, {6, 5}, seed, false).clone_to(device),
                           Tensor::of(std::span<const int64_t>(rows), device), Shape{17, 5}};
    };
    for (const DType dtype : {DType::float32, DType::float16, DType::int32, DType::uint8})
      for (const Scatter scatter : scatters) {
        if (scatter == scatters[6] && !is_floating(dtype)) continue;
        const Variable v =
            Variable::create(random_tensor(dtype, {17, 5}, 1, false),
                             {.aggregation = VariableAggregation::ONLY_FIRST_REPLICA});
        (v.*scatter)(slices(dtype, 5, "/cpu:0"));
        (v.*scatter)(slices(dtype, 6, v.devices()[0]));
        strategy.run([&](ReplicaContext& ctx) { (v.*scatter)(slices(dtype, 7, ctx.device())); });
        append(results, v);
        if (scatter != scatters[0]) continue;
        const Variable sum = Variable::create(random_tensor(dtype, {17, 5}, 1, false),
                                              {.aggregation = VariableAggregation::SUM});
        strategy.run([&](ReplicaContext& ctx) {
          (sum.*scatter)(slices(dtype, uint64_t(ctx.replica_id_in_sync_group()), ctx.device()));
        });
        append(results, sum);
        EXPECT_ERROR(InvalidArgumentError, "no row 17",
                     (sum.*scatter)({Tensor::zeros({1, 5}, dtype), Tensor::of<int64_t>({17})}));
      }
    const Variable whole = Variable::create(Tensor::full({4, 2}, 100, DType::int32));
    whole.scatter_div({Tensor::full({2, 2}, -3, DType::int32, whole.devices()[0]),
                       Tensor::of<int64_t>({2, 2}, whole.devices()[0])});
    append(results, whole);
    EXPECT_ERROR(InvalidArgumentError, "divided by 0",
                 whole.scatter_div({Tensor::zeros({1, 2}, DType::int32, whole.devices()[0]),
                                    Tensor::of<int64_t>({0}, whole.devices()[0])}));
    return results;
  });
}

TEST_P(GpuStrategy, SynchronisesVariablesOnRead) {
  expect_same([](Strategy& strategy) {
    const auto in_scope = strategy.scope();
    std::vector<Tensor> results;
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64})
      for (const auto aggregation : {VariableAggregation::SUM, VariableAggregation::MEAN,
                                     VariableAggregation::ONLY_FIRST_REPLICA}) {
        if (aggregation == VariableAggregation::MEAN && !is_floating(dtype)) continue;
        const Variable v = Variable::create(
            Tensor::zeros({3}, dtype),
            {.synchronization = VariableSynchronization::ON_READ, .aggregation = aggregation});
        strategy.run([&](ReplicaContext& ctx) {
          v.assign_add(Tensor::full({3}, ctx.replica_id_in_sync_group() + 1, dtype));
        });
        append(results, v);
        results.push_back(v.read_value());
        v.assign(Tensor::full({3}, -7, dtype));
        append(results, v);
        results.push_back(v.read_value());
        const DeviceScope on_the_last(v.devices().back());
        v.assign(Tensor::full({3}, 11, dtype));
        results.push_back(v.read_value());
      }
    return results;
  });
}

TEST_P(GpuStrategy, UpdatesComponentsInPlace) {
  expect_same([](Strategy& strategy) {
    const auto in_scope = strategy.scope();
    const Variable v = Variable::create(Tensor::full({100}, 1, DType::float64));
    strategy.extended().update(
        v,
        [](Tensor component, const Tensor& g) {
          const double factor = g.item<double>();
          if (component.device().find("GPU") != std::string::npos)
            testing::multiply(component, factor);
          else
            for (double& x : component.span<double>()) x *= factor;
        },
        Tensor::scalar<double>(0.3));
    std::vector<Tensor> results;
    append(results, v);
    return results;
  });
}

TEST_P(GpuStrategy, SavesAndLoadsVariables) {
  const std::string path = (std::filesystem::path(::testing::TempDir()) /
                            ("gpu-" + std::to_string(getpid()) + ".safetensors"))
                               .string();
  expect_same([&](Strategy& strategy) {
    const auto in_scope = strategy.scope();
    const Variable a = Variable::create(random_tensor(DType::bfloat16, {5, 3}, 1), {.name = "a"});
    const Variable b = Variable::create(Tensor::zeros({2}, DType::int64),
                                        {.name = "b",
                                         .synchronization = VariableSynchronization::ON_READ,
                                         .aggregation = VariableAggregation::SUM});
    strategy.run([&](ReplicaContext&) { b.assign_add(Tensor::of<int64_t>({1, 2})); });
    for (const char* const device : {"", "/gpu:0"}) {
      const DeviceScope scope(device);
      save_variables(path, {a, b}, {{"step", "3"}});
      a.assign(Tensor::zeros({5, 3}, DType::bfloat16));
      b.assign(Tensor::zeros({2}, DType::int64));
      EXPECT_EQ(load_variables(path, {a, b}).at("step"), "3");
    }
    std::vector<Tensor> results{b.read_value()};
    append(results, a);
    append(results, b);
    return results;
  });
  std::filesystem::remove(path);
}

TEST_P(GpuStrategy, GoesOnFromACheckpoint) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / ("gpu-checkpoints-" + std::to_string(getpid()));
  expect_same([&](Strategy& strategy) {
    std::filesystem::remove_all(folder);
    const auto in_scope = strategy.scope();
    const Variable v = Variable::create(Tensor::zeros({2}, DType::int64),
                                        {.name = "v", .aggregation = VariableAggregation::SUM});
    InputIterator input = strategy.make_dataset_iterator(
        Dataset::range(1000).shuffle(100, 3).batch(int64_t(2 * GetParam())));
    input.initialize();
    Checkpoint checkpoint(folder.string(), {v}, {&input});
    const auto step = [&] {
      strategy.run([&](ReplicaContext&, const Tensor& x) { v.assign_add(x); }, input.get_next()[0]);
    };
    step();
    checkpoint.save(1);
    step();
    const Tensor want = v.read_value();
    EXPECT_EQ(checkpoint.restore(), 1);
    step();
    EXPECT_TRUE(same(v.read_value(), want));
    return std::vector<Tensor>{want};
  });
  std::filesystem::remove_all(folder);
}

TEST_P(GpuStrategy, GetsItsPartOfTheInput) {
  expect_same([](Strategy& strategy) {
    std::vector<Tensor> results;
    const auto n = int64_t(GetParam());
    const auto collect = [&](DistributedDataset dataset) {
      for (const DistributedElement& element : dataset)
        for (const PerReplica<Tensor>& component : element)
          for (size_t r = 0; r < component.size(); ++r) {
            EXPECT_EQ(component[r].device(), strategy.extended().worker_devices()[r]);
            results.push_back(component[r]);
          }
    };
    const Tensor x = random_tensor(DType::float32, {23, 3}, 1);
    const Tensor y = random_tensor(DType::int64, {23}, 2);
    // Uneven and partial batches, some replicas without any row.
    for (const int64_t batch : {int64_t(1), n + 1, 3 * n, int64_t(23)})
      collect(strategy.experimental_distribute_dataset(
          Dataset::from_tensor_slices({x, y}).batch(batch).prefetch(2)));
    // Elements that are on a device already, on this one or on another.
    for (const char* const device : {"/gpu:0", "/cpu:1"})
      collect(strategy.experimental_distribute_dataset(
          Dataset::from_tensors({x.clone_to(device), y.clone_to(device)})));
    collect(strategy.distribute_datasets_from_function([&](const InputContext&) {
      return Dataset::from_tensor_slices({x.clone_to("/gpu:0"), y}).batch(4);
    }));
    collect(strategy.distribute_datasets_from_function([&](const InputContext&) {
      return Dataset::from_tensor_slices({x.clone_to("/gpu:0"), y}).take(7);
    }));
    const DeviceScope scope("/gpu:0");
    collect(strategy.experimental_distribute_dataset(Dataset::range(13).batch(2 * n)));
    InputIterator input =
        strategy.make_dataset_iterator(Dataset::range(1000).shuffle(50, 7).batch(2 * n));
    input.initialize();
    (void)input.get_next();
    const std::string state = input.save();
    const DistributedElement next = input.get_next();
    input.restore(state);
    const DistributedElement again = input.get_next();
    append(results, next[0]);
    append(results, again[0]);
    return results;
  });
}

// Gradients by the host, everything else on the devices.
TEST_P(GpuStrategy, TrainsToTheSameBits) {
  expect_same([](Strategy& strategy) {
    const auto in_scope = strategy.scope();
    const Variable w = Variable::create(random_tensor(DType::float32, {3}, 1, false),
                                        {.name = "w", .aggregation = VariableAggregation::MEAN});
    const Variable total = Variable::create(Tensor::scalar<double>(0),
                                            {.synchronization = VariableSynchronization::ON_READ,
                                             .aggregation = VariableAggregation::SUM});
    DistributedDataset data = strategy.experimental_distribute_dataset(
        Dataset::from_tensor_slices({random_tensor(DType::float32, {61, 3}, 2, false),
                                     random_tensor(DType::float32, {61}, 3, false)})
            .shuffle(61, 5)
            .repeat(4)
            .batch(int64_t(3 * GetParam())));
    for (const DistributedElement& element : data)
      strategy.run(
          [&](ReplicaContext& ctx, const Tensor& x, const Tensor& y) {
            const F xs = x.to_vector<float>(), ys = y.to_vector<float>();
            const F now = w.read_value().to_vector<float>();
            F gradient(3, 0.f);
            float loss = 0;
            for (size_t i = 0; i < ys.size(); ++i) {
              float error = -ys[i];
              for (size_t j = 0; j < 3; ++j) error += now[j] * xs[3 * i + j];
              for (size_t j = 0; j < 3; ++j) gradient[j] += 0.01f * error * xs[3 * i + j];
              loss += error * error;
            }
            const Tensor g = Tensor::of(std::span<const float>(gradient));
            const Tensor mean = ctx.all_reduce(ReduceOp::MEAN, g, {.weight = double(ys.size())});
            const Tensor half = ctx.all_reduce(ReduceOp::SUM, mean.to(DType::bfloat16));
            w.assign_sub(mean);
            w.assign_add(half.to(DType::float32));
            w.assign_sub(half.to(DType::float32));
            total.assign_add(Tensor::scalar<double>(loss));
          },
          element[0], element[1]);
    std::vector<Tensor> results{total.read_value()};
    append(results, w);
    return results;
  });
}

INSTANTIATE_TEST_SUITE_P(, GpuStrategy, ::testing::Values(1, 2, 4, 8),
                         [](const auto& n) { return "On" + std::to_string(n.param); });

struct GpuMirrored : testing::LogicalGpus<4> {};

TEST_F(GpuMirrored, UsesAllGpusUnlessToldOtherwise) {
  EXPECT_EQ(MirroredStrategy().extended().worker_devices(), list_logical_devices("GPU"));
}

TEST_F(GpuMirrored, MayMixGpusAndCpus) {
  MirroredStrategy strategy({"/gpu:0", "/cpu:0", "/gpu:1"});
  const PerReplica<Tensor> out = strategy.run([](ReplicaContext& ctx) {
    return ctx.all_reduce(ReduceOp::SUM,
                          Tensor::scalar<float>(float(ctx.replica_id_in_sync_group() + 1)));
  });
  EXPECT_EQ(out[1].device(), canonicalize("/cpu:0"));
  for (const Tensor& t : out) EXPECT_EQ(t.item<float>(), 6);
  const auto in_scope = strategy.scope();
  const Variable v =
      Variable::create(Tensor::scalar<float>(1), {.aggregation = VariableAggregation::MEAN});
  strategy.run([&](ReplicaContext& ctx) {
    v.assign_add(Tensor::scalar<float>(float(ctx.replica_id_in_sync_group())));
  });
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(v.component(i).item<float>(), 2);
}

TEST_F(GpuMirrored, TakesNoMoreMemoryWithEveryStep) {
  NEEDS_FAKE("counts blocks of memory");
  MirroredStrategy strategy(devices("GPU", 4));
  const auto in_scope = strategy.scope();
  const Variable v = Variable::create(Tensor::zeros({1000}, DType::float32),
                                      {.aggregation = VariableAggregation::SUM});
  InputIterator input = strategy.make_dataset_iterator(Dataset::range(100000).repeat().batch(64));
  input.initialize();
  const auto step = [&] {
    strategy.run(
        [&](ReplicaContext& ctx, const Tensor& x) {
          const Tensor gradient = Tensor::full({1000}, 0.5, DType::float32);
          const Tensor large = Tensor::zeros({300000}, DType::float32);
          v.assign_add(ctx.all_reduce(ReduceOp::MEAN, gradient));
          (void)ctx.all_gather(x, 0);
          (void)ctx
              .all_reduce(ReduceOp::SUM,
                          IndexedSlices{gradient.reshape({10, 100}),
                                        Tensor::zeros({10}, DType::int64), Shape{20, 100}})
              .to_dense();
        },
        input.get_next()[0]);
    for (const std::string& device : devices("GPU", 4)) synchronize(device);
  };
  for (int i = 0; i < 50; ++i) step();
  release_cached_memory();
  const int64_t before = testing::fake_cuda_counts().blocks;
  for (int i = 0; i < (TUTTI_TEST_SANITIZED ? 100 : 1000); ++i) step();
  EXPECT_LE(testing::fake_cuda_counts().blocks, before + 100);  // what is kept in reserve
  release_cached_memory();
  EXPECT_EQ(testing::fake_cuda_counts().blocks, before);
}

}  // namespace
}  // namespace tutti
