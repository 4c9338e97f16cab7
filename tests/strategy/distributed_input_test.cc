// SPDX-License-Identifier: Apache-2.0
// Input dealt out to the replicas of one worker.
#include <atomic>
#include <numeric>
#include <stdexcept>

#include "input/pipelines.h"
#include "strategy/strategies.h"

namespace tutti {
namespace {

using testing::cpu;
using testing::cpus;
using ::testing::ElementsAre;
using testing::Floats;
using testing::Folder;
using testing::Longs;
using testing::number;
using Parts = std::vector<Longs>;  // by replica

Parts parts_of(const DistributedElement& element, size_t component = 0) {
  Parts parts;
  for (const Tensor& part : element.at(component)) parts.push_back(part.to_vector<int64_t>());
  return parts;
}

std::vector<Parts> all_of(InputIterator& it) {
  std::vector<Parts> steps;
  while (const auto element = it.get_next_as_optional()) steps.push_back(parts_of(*element));
  return steps;
}

std::vector<Parts> all_of(const DistributedDataset& dataset) {
  std::vector<Parts> steps;
  for (const DistributedElement& element : dataset) steps.push_back(parts_of(element));
  return steps;
}

class DistributedInput : public ::testing::Test {
 protected:
  MirroredStrategy two_{cpus(2)};
  MirroredStrategy three_{cpus(3)};
};
using DatasetIteratorOf = DistributedInput;
using InputFnIterator = DistributedInput;
using ExperimentalRun = DistributedInput;

// C193
TEST_F(DatasetIteratorOf, AStrategySplitsEveryBatchInReplicaOrder) {
  InputIterator it = two_.make_dataset_iterator(Dataset::range(8).batch(4).prefetch(1));
  it.initialize();
  const DistributedElement first = it.get_next();
  EXPECT_EQ(parts_of(first), (Parts{{0, 1}, {2, 3}}));
  EXPECT_THAT(first[0].devices(), ElementsAre(cpu(0), cpu(1)));
  EXPECT_EQ(all_of(it), (std::vector<Parts>{{{4, 5}, {6, 7}}}));
}

// C194
TEST_F(DatasetIteratorOf, AStrategyKeepsComponentsTogether) {
  const Dataset pairs = Dataset::range(4).map([](const std::vector<Tensor>& element) {
    const auto i = element[0].item<int64_t>();
    return std::vector<Tensor>{element[0], Tensor::scalar<int64_t>(i * i)};
  });
  InputIterator it = two_.make_dataset_iterator(pairs.batch(4));
  it.initialize();
  const DistributedElement element = it.get_next();
  ASSERT_EQ(element.size(), 2u);
  EXPECT_EQ(parts_of(element, 0), (Parts{{0, 1}, {2, 3}}));
  EXPECT_EQ(parts_of(element, 1), (Parts{{0, 1}, {4, 9}}));
}

TEST_F(DatasetIteratorOf, AStrategyNeedsInitialize) {
  InputIterator it = two_.make_dataset_iterator(Dataset::range(4).batch(2));
  EXPECT_ERROR(FailedPreconditionError, "initialize", it.get_next());
  EXPECT_ERROR(FailedPreconditionError, "initialize", it.get_next_as_optional());
  EXPECT_ERROR(FailedPreconditionError, "initialize", it.save());
  for (int epoch = 0; epoch < 2; ++epoch) {  // and starts over with it, C109
    it.initialize();
    EXPECT_EQ(all_of(it), (std::vector<Parts>{{{0}, {1}}, {{2}, {3}}}));
    EXPECT_ERROR(OutOfRangeError, "end", it.get_next());
    EXPECT_EQ(it.get_next_as_optional(), std::nullopt);
  }
  it.initialize();
  it.get_next();
  it.initialize();
  EXPECT_EQ(parts_of(it.get_next()), (Parts{{0}, {1}}));
}

TEST_F(DatasetIteratorOf, AStrategyNeedsABatchThatDivides) {
  EXPECT_ERROR(InvalidArgumentError, "4", three_.make_dataset_iterator(Dataset::range(8).batch(4)));
  EXPECT_ERROR(InvalidArgumentError, "make_input_fn_iterator",
               three_.make_dataset_iterator(Dataset::range(8).batch(4)));
  EXPECT_ERROR(InvalidArgumentError, "batch", two_.make_dataset_iterator(Dataset::range(8)));
  EXPECT_ERROR(InvalidArgumentError, "last step",
               two_.make_dataset_iterator(Dataset::range(8).batch(4).repeat(2)));
}

TEST_F(DatasetIteratorOf, AStrategySharesOutTheRest) {
  struct Case {
    int64_t count;
    bool drop;
    std::vector<Parts> rest;
  };
  for (const Case& c :
       {Case{7, false, {{{4, 5}, {6}}}}, Case{5, false, {{{4}, {}}}}, Case{7, true, {}}}) {
    InputIterator it = two_.make_dataset_iterator(Dataset::range(c.count).batch(4, c.drop));
    it.initialize();
    it.get_next();
    EXPECT_EQ(all_of(it), c.rest);
  }
}

TEST_F(InputFnIterator, CallsItsFunctionOncePerWorkerAndDealsElementsInTurn) {
  int calls = 0;
  InputIterator it = two_.make_input_fn_iterator([&](const InputContext& ctx) {
    ++calls;
    EXPECT_EQ(ctx.num_input_pipelines(), 1);
    EXPECT_EQ(ctx.input_pipeline_id(), 0);
    EXPECT_EQ(ctx.num_replicas_in_sync(), 2);
    return Dataset::range(7).batch(ctx.get_per_replica_batch_size(4));
  });
  for (int epoch = 0; epoch < 2; ++epoch) {
    it.initialize();
    const DistributedElement first = it.get_next();
    EXPECT_EQ(parts_of(first), (Parts{{0, 1}, {2, 3}}));
    EXPECT_THAT(first[0].devices(), ElementsAre(cpu(0), cpu(1)));
    EXPECT_EQ(all_of(it), (std::vector<Parts>{{{4, 5}, {6}}}));
  }
  EXPECT_EQ(calls, 1);
}

TEST_F(InputFnIterator, GivesAnEmptyBatchToAReplicaWithoutData) {
  InputIterator it = three_.make_input_fn_iterator([](const InputContext&) {
    return Dataset::range(8).batch(2).map([](const auto& element) {
      return std::vector<Tensor>{element[0].reshape({-1, 1})};
    });
  });
  it.initialize();
  it.get_next();
  const DistributedElement last = it.get_next();
  EXPECT_EQ(parts_of(last), (Parts{{6, 7}, {}, {}}));
  EXPECT_EQ(last[0][2].shape(), (Shape{0, 1}));
  EXPECT_EQ(last[0][2].device(), cpu(2));
  EXPECT_EQ(it.get_next_as_optional(), std::nullopt);
}

TEST_F(InputFnIterator, DropsScalarsThatDoNotGoRound) {
  InputIterator it =
      two_.make_input_fn_iterator([](const InputContext&) { return Dataset::range(3); });
  it.initialize();
  EXPECT_EQ(parts_of(it.get_next()), (Parts{{0}, {1}}));
  EXPECT_ERROR(OutOfRangeError, "end", it.get_next());
}

// C208
TEST_F(InputFnIterator, ChecksItsOptions) {
  const InputFn fn = [](const InputContext&) { return Dataset::range(3); };
  EXPECT_ERROR(InvalidArgumentError, "PER_WORKER",
               two_.make_input_fn_iterator(fn, InputReplicationMode::PER_REPLICA));
  EXPECT_ERROR(InvalidArgumentError, "empty", two_.make_input_fn_iterator({}));
  EXPECT_ERROR(std::domain_error, "no data",
               two_.make_input_fn_iterator(
                   [](const InputContext&) -> Dataset { throw std::domain_error("no data"); }));
}

TEST_F(ExperimentalRun, FeedsOneElementPerReplica) {
  InputIterator it = two_.make_dataset_iterator(Dataset::range(4).batch(2));
  it.initialize();
  const auto doubled = [](ReplicaContext& ctx, const Tensor& x) {
    EXPECT_EQ(x.device(), ctx.device());
    return 2 * x.to_vector<int64_t>().at(0);
  };
  const auto step = [&] {
    const PerReplica<int64_t> result = two_.experimental_run(doubled, it);
    return Longs(result.begin(), result.end());
  };
  EXPECT_EQ(step(), Longs({0, 2}));
  EXPECT_EQ(step(), Longs({4, 6}));
  EXPECT_ERROR(OutOfRangeError, "end", step());
}

TEST_F(ExperimentalRun, PassesComponentsAsArgumentsOrAsOneList) {
  InputIterator it = two_.make_input_fn_iterator([](const InputContext&) {
    return Dataset::from_tensors({Tensor::of<float>({1.5f}), Tensor::of<int32_t>({7})}).repeat();
  });
  it.initialize();
  const PerReplica<float> sums = two_.experimental_run(
      [](ReplicaContext&, const Tensor& x, const Tensor& y) {
        return x.item<float>() + float(y.item<int32_t>());
      },
      it);
  EXPECT_EQ(sums[1], 8.5f);
  const PerReplica<size_t> counts = two_.experimental_run(
      [](ReplicaContext&, const std::vector<Tensor>& parts) { return parts.size(); }, it);
  EXPECT_EQ(counts[1], 2u);
  EXPECT_ERROR(InvalidArgumentError, "takes 1 tensors, and the input's elements have 2",
               two_.experimental_run([](ReplicaContext&, const Tensor&) {}, it));
  EXPECT_ERROR(InvalidArgumentError, "takes 3 tensors",
               two_.experimental_run(
                   [](ReplicaContext&, const Tensor&, const Tensor&, const Tensor&) {}, it));
}

TEST_F(DistributedInput, IsSplitByRun) {
  const DistributedElement element{
      PerReplica<Tensor>{Tensor::scalar<int64_t>(1), Tensor::scalar<int64_t>(2)},
      PerReplica<Tensor>{Tensor::scalar<int64_t>(10), Tensor::scalar<int64_t>(20)}};
  const auto sum = [](const Tensor& x, const Tensor& y) {
    return x.item<int64_t>() + y.item<int64_t>();
  };
  const auto listed = [&](const std::vector<Tensor>& parts) { return sum(parts[0], parts[1]); };
  const auto expect = [](const PerReplica<int64_t>& sums) {
    EXPECT_EQ(Longs(sums.begin(), sums.end()), Longs({11, 22}));
  };
  expect(two_.run(sum, element));
  expect(two_.run(listed, element));
  expect(two_.run([&](ReplicaContext&, const Tensor& x, const Tensor& y) { return sum(x, y); },
                  element));
  expect(two_.run([&](ReplicaContext&, const std::vector<Tensor>& parts) { return listed(parts); },
                  element));
  expect(two_.run(
      [&](ReplicaContext&, int, const std::vector<Tensor>& parts) { return listed(parts); }, 7,
      element));
  EXPECT_ERROR(InvalidArgumentError,
               "run: the function takes 1 tensors, and the input's elements have 2 components",
               two_.run([](const Tensor&) {}, element));
}

TEST_F(ExperimentalRun, NeedsNoInput) {
  const PerReplica<int> ids =
      two_.experimental_run([](ReplicaContext& ctx) { return ctx.local_replica_id(); });
  EXPECT_EQ(ids[1], 1);
}

TEST_F(DistributedInput, SharesOutWhatDoesNotDivide) {
  struct Case {
    Dataset dataset;
    std::vector<Parts> steps;
  };
  for (const Case& c : {
           Case{Dataset::range(7).batch(6), {{{0, 1}, {2, 3}, {4, 5}}, {{6}, {}, {}}}},
           Case{Dataset::range(8).batch(4), {{{0, 1}, {2}, {3}}, {{4, 5}, {6}, {7}}}},
           Case{Dataset::range(5).batch(5), {{{0, 1}, {2, 3}, {4}}}},
           Case{Dataset::range(2).batch(2), {{{0}, {1}, {}}}},
           Case{Dataset::range(0).batch(2), {}},
           // No batch step is needed, only rows.
           Case{Dataset::from_tensors({Tensor::of<int64_t>({5, 6, 7, 8})}), {{{5, 6}, {7}, {8}}}},
       })
    EXPECT_EQ(all_of(three_.experimental_distribute_dataset(c.dataset)), c.steps);
}

TEST_F(DistributedInput, KeepsTheShapeOfAnEmptyPart) {
  const Dataset one_row = Dataset::from_tensors({Tensor::zeros({1, 2}, DType::float32)});
  const DistributedDataset d = two_.experimental_distribute_dataset(one_row);
  const DistributedElement element = *d.begin();
  EXPECT_EQ(element[0][1].shape(), (Shape{0, 2}));
  EXPECT_EQ(element[0][1].device(), cpu(1));
}

TEST_F(DistributedInput, NeedsBatches) {
  const auto first_of = [&](const Dataset& dataset) {
    two_.experimental_distribute_dataset(dataset).make_iterator().get_next();
  };
  EXPECT_ERROR(InvalidArgumentError, "scalars", first_of(Dataset::range(4)));
  EXPECT_ERROR(
      InvalidArgumentError, "2 and 3 rows",
      first_of(Dataset::from_tensors({Tensor::of<float>({1, 2}), Tensor::of<float>({1, 2, 3})})));
}

TEST_F(DistributedInput, OfOneReplicaIsPassedOnAsItIs) {
  MirroredStrategy one(cpus(1));
  EXPECT_EQ(all_of(one.experimental_distribute_dataset(Dataset::range(3))),
            (std::vector<Parts>{{{0}}, {{1}}, {{2}}}));
  const Dataset uneven =
      Dataset::from_tensors({Tensor::of<float>({1, 2}), Tensor::of<float>({1, 2, 3})});
  const DistributedElement element =
      one.experimental_distribute_dataset(uneven).make_iterator().get_next();
  EXPECT_EQ(element[0][0].shape(), (Shape{2}));
  EXPECT_EQ(element[1][0].shape(), (Shape{3}));
}

// Batches without a remainder all have one shape, and an empty one would be another.
TEST_F(DistributedInput, OfFullBatchesEndsWithTheLastThatGoRound) {
  const auto three_batches = [](bool drop_remainder) {
    return [=](const InputContext&) {
      return Dataset::range(6).batch(2, drop_remainder).map([](const auto& x) { return x; });
    };
  };
  EXPECT_EQ(all_of(two_.distribute_datasets_from_function(three_batches(true))),
            (std::vector<Parts>{{{0, 1}, {2, 3}}}));
  EXPECT_EQ(all_of(two_.distribute_datasets_from_function(three_batches(false))),
            (std::vector<Parts>{{{0, 1}, {2, 3}}, {{4, 5}, {}}}));
}

// C202, C208
TEST_F(DistributedInput, TakesEveryPolicyOnOneWorker) {
  Folder folder;
  const std::string file = folder.write("lines", "a\nb\n");
  const Dataset lines = Dataset::text_lines({file}).batch(2), numbers = Dataset::range(2).batch(2);
  for (const AutoShardPolicy policy : {AutoShardPolicy::OFF, AutoShardPolicy::AUTO,
                                       AutoShardPolicy::FILE, AutoShardPolicy::DATA}) {
    const DistributedDataset d =
        two_.experimental_distribute_dataset(lines, {.auto_shard_policy = policy});
    EXPECT_EQ(text((*d.begin())[0][1].reshape({-1})), "b");
    if (policy == AutoShardPolicy::FILE) continue;
    EXPECT_EQ(all_of(two_.experimental_distribute_dataset(numbers, {.auto_shard_policy = policy})),
              (std::vector<Parts>{{{0}, {1}}}));
  }
  EXPECT_ERROR(
      NotFoundError, "FILE",
      two_.experimental_distribute_dataset(numbers, {.auto_shard_policy = AutoShardPolicy::FILE}));
}

// C208, C209
TEST_F(DistributedInput, HasAPipelinePerWorkerOrPerReplica) {
  const InputOptions per_replica{.experimental_replication_mode =
                                     InputReplicationMode::PER_REPLICA};
  std::vector<std::string> contexts;
  const InputFn fn = [&](const InputContext& ctx) {
    contexts.push_back(ctx.to_string());
    const int64_t scale = ctx.input_pipeline_id() + 1;
    return Dataset::range(2).map([scale](const std::vector<Tensor>& element) {
      return std::vector<Tensor>{Tensor::of<int64_t>({scale * element[0].item<int64_t>()})};
    });
  };
  EXPECT_EQ(all_of(two_.distribute_datasets_from_function(fn)), (std::vector<Parts>{{{0}, {1}}}));
  EXPECT_EQ(all_of(two_.distribute_datasets_from_function(fn, per_replica)),
            (std::vector<Parts>{{{0}, {0}}, {{1}, {2}}}));
  EXPECT_EQ(contexts, (std::vector<std::string>{InputContext(1, 0, 2).to_string(),
                                                InputContext(2, 0, 2).to_string(),
                                                InputContext(2, 1, 2).to_string()}));
  EXPECT_ERROR(UnimplementedError, "PER_REPLICA",
               two_.experimental_distribute_dataset(Dataset::range(2).batch(2), per_replica));
}

TEST_F(DistributedInput, GoesOnWhileOnePipelineHasData) {
  const DistributedDataset d = two_.distribute_datasets_from_function(
      [](const InputContext& ctx) {
        return Dataset::range(ctx.input_pipeline_id() == 0 ? 1 : 3).batch(1);
      },
      {.experimental_replication_mode = InputReplicationMode::PER_REPLICA});
  EXPECT_EQ(all_of(d), (std::vector<Parts>{{{0}, {0}}, {{}, {1}}, {{}, {2}}}));
}

TEST_F(DistributedInput, BelongsToCrossReplicaContext) {
  InputIterator it = two_.make_dataset_iterator(Dataset::range(4).batch(2));
  it.initialize();
  two_.run([&](ReplicaContext& ctx) {
    if (ctx.local_replica_id() == 0) {
      EXPECT_ERROR(FailedPreconditionError, "replica function", it.get_next());
      EXPECT_ERROR(FailedPreconditionError, "replica function", it.get_next_as_optional());
    }
    ctx.merge_call([&](Strategy&) { EXPECT_EQ(parts_of(it.get_next()), (Parts{{0}, {1}})); });
  });
}

// C199
TEST_F(DistributedInput, StartsAgainWithEveryLoop) {
  std::atomic<int> mapped = 0;
  const Dataset counted = Dataset::range(4).map([&](const std::vector<Tensor>& element) {
    ++mapped;
    return element;
  });
  const DistributedDataset cached = two_.experimental_distribute_dataset(counted.cache().batch(4));
  const auto first = all_of(cached);
  EXPECT_EQ(first, (std::vector<Parts>{{{0, 1}, {2, 3}}}));
  EXPECT_EQ(all_of(cached), first);
  EXPECT_EQ(mapped, 4);
  for (const bool reshuffle : {false, true}) {
    const DistributedDataset shuffled = two_.experimental_distribute_dataset(
        Dataset::range(64).shuffle(64, /*seed=*/3, reshuffle).repeat(2).batch(64));
    const auto epochs = all_of(shuffled);
    ASSERT_EQ(epochs.size(), 2u);
    EXPECT_EQ(epochs[0] != epochs[1], reshuffle);
    EXPECT_EQ(all_of(shuffled), epochs);
  }
}

TEST_F(DistributedInput, GoesOnFromWhereItWasSaved) {
  const Dataset shuffled = Dataset::range(24).shuffle(10, /*seed=*/1).batch(4).prefetch(2);
  const DistributedDataset whole = two_.experimental_distribute_dataset(shuffled);
  const DistributedDataset per_replica = two_.distribute_datasets_from_function(
      [&](const InputContext& ctx) { return shuffled.shard(2, ctx.input_pipeline_id()); },
      {.experimental_replication_mode = InputReplicationMode::PER_REPLICA});
  for (const DistributedDataset& dataset : {whole, per_replica}) {
    InputIterator it = dataset.make_iterator();
    it.get_next();
    const std::string state = it.save();
    const auto rest = all_of(it);
    EXPECT_FALSE(rest.empty());
    InputIterator other = dataset.make_iterator();
    other.restore(state);
    EXPECT_EQ(all_of(other), rest);
    it.restore(state);
    EXPECT_EQ(all_of(it), rest);
  }
}

TEST_F(DistributedInput, KeepsItsPlaceIfAStateIsDamaged) {
  InputIterator it =
      two_.experimental_distribute_dataset(Dataset::range(4).batch(2)).make_iterator();
  it.get_next();
  const std::string state = it.save();
  for (size_t length = 0; length < state.size(); ++length)
    EXPECT_ERROR(DataLossError, "state", it.restore(state.substr(0, length))) << length;
  for (const std::string& wrong :
       {std::string("x"), std::string("999999999999999999:"), state + "x", state + state})
    EXPECT_ERROR(DataLossError, "state", it.restore(wrong));
  EXPECT_EQ(parts_of(it.get_next()), (Parts{{2}, {3}}));
}

TEST_F(DistributedInput, PassesOnWhatAPipelineThrows) {
  const Dataset failing = Dataset::range(6).map([](const std::vector<Tensor>& element) {
    if (element[0].item<int64_t>() == 3) throw std::domain_error("element 3 is bad");
    return element;
  });
  for (const Dataset& dataset : {failing.batch(2), failing.batch(2).prefetch(2)}) {
    InputIterator it = two_.make_dataset_iterator(dataset);
    it.initialize();
    it.get_next();
    EXPECT_ERROR(std::domain_error, "element 3 is bad", it.get_next());
    EXPECT_EQ(it.get_next_as_optional(), std::nullopt);
    it.initialize();
    EXPECT_EQ(parts_of(it.get_next()), (Parts{{0}, {1}}));
  }
}

PerReplica<Floats> squares(Strategy& strategy, const DistributedElement& element) {
  return strategy.run(
      [](const Tensor& x) {
        Floats values = x.to_vector<float>();
        for (float& value : values) value *= value;
        return values;
      },
      element[0]);
}

// C215, C217
TEST_F(DistributedInput, FeedsATrainingLoop) {
  const Dataset four = Dataset::from_tensor_slices({Tensor::of<float>({5, 6, 7, 8})}).batch(2);
  InputIterator it = two_.experimental_distribute_dataset(four).make_iterator();
  std::vector<Floats> seen;
  while (const auto element = it.get_next_as_optional())
    for (const Floats& part : squares(two_, *element)) seen.push_back(part);
  EXPECT_EQ(seen, (std::vector<Floats>{{25}, {36}, {49}, {64}}));

  const Dataset one = Dataset::from_tensor_slices({Tensor::of<float>({5})}).batch(2);
  for (const DistributedElement& element : three_.experimental_distribute_dataset(one)) {
    const PerReplica<Floats> parts = squares(three_, element);
    EXPECT_THAT(std::vector<Floats>(parts.begin(), parts.end()),
                ElementsAre(Floats{25}, Floats{}, Floats{}));
  }
}

// C218
TEST_F(DistributedInput, EndsALoopThatGoesPastItsData) {
  const Dataset four = Dataset::from_tensor_slices({Tensor::of<float>({5, 6, 7, 8})}).batch(2);
  InputIterator it = two_.make_dataset_iterator(four);
  it.initialize();
  float sum = 0;
  EXPECT_ERROR(OutOfRangeError, "end", [&] {
    for (int i = 0; i < 10; ++i) {
      const PerReplica<float> parts = two_.experimental_run(
          [](ReplicaContext&, const Tensor& x) {
            const Floats values = x.to_vector<float>();
            return std::accumulate(values.begin(), values.end(), 0.f);
          },
          it);
      sum += parts[0] + parts[1];
    }
  }());
  EXPECT_EQ(sum, 26.f);
}

}  // namespace
}  // namespace tutti
