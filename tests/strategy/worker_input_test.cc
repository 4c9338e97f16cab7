// SPDX-License-Identifier: Apache-2.0
// Input on several workers: which worker gets what, and how it ends if some have more than others.
#include "group/ranks.h"
#include "input/pipelines.h"
#include "strategy/strategies.h"

namespace tutti {
namespace {

using testing::cpus;
using testing::Folder;
using testing::Longs;
using testing::on_ranks;

// The rows that every replica of the job gets in every step.
using Steps = std::vector<std::vector<Longs>>;  // [step][replica]

template <class Make>
Steps dealt(int workers, int devices, const Make& make) {
  cpus(1);
  std::vector<Steps> by_worker(static_cast<size_t>(workers));
  on_ranks(Group::in_process(workers), [&](const Group& group) {
    CollectiveAllReduceStrategy strategy(group, {.cpu_devices_per_worker = devices});
    InputIterator input = make(strategy);
    while (const auto element = input.get_next_as_optional()) {
      std::vector<Longs> replicas;
      for (const Tensor& part : (*element)[0]) replicas.push_back(part.to_vector<int64_t>());
      by_worker[size_t(group.rank())].push_back(replicas);
    }
    EXPECT_ERROR(OutOfRangeError, "at its end", input.get_next());
  });
  Steps steps(by_worker[0].size());
  for (const Steps& mine : by_worker) {
    EXPECT_EQ(mine.size(), steps.size()) << "not all workers took as many steps";
    for (size_t i = 0; i < std::min(mine.size(), steps.size()); ++i)
      steps[i].insert(steps[i].end(), mine[i].begin(), mine[i].end());
  }
  return steps;
}

auto shared(const Dataset& dataset, const InputOptions& options = {}) {
  return [=](Strategy& strategy) {
    return strategy.experimental_distribute_dataset(dataset, options).make_iterator();
  };
}

auto function(const InputFn& fn, const InputOptions& options = {}) {
  return [=](Strategy& strategy) {
    return strategy.distribute_datasets_from_function(fn, options).make_iterator();
  };
}

// C196, C197, but with the rows of a batch in the order of the replicas
TEST(WorkerInput, GoesToReplicasInOrderWhateverTheLayout) {
  const auto data = shared(Dataset::range(15).batch(4));
  const Steps want{
      {{0}, {1}, {2}, {3}}, {{4}, {5}, {6}, {7}}, {{8}, {9}, {10}, {11}}, {{12}, {13}, {14}, {}}};
  EXPECT_EQ(dealt(2, 2, data), want);
  EXPECT_EQ(dealt(4, 1, data), want);
  EXPECT_EQ(dealt(1, 4, data), want);
}

// C220
TEST(WorkerInput, SharesOutAPartialBatch) {
  EXPECT_EQ(dealt(2, 1, shared(Dataset::range(14).batch(8))),
            (Steps{{{0, 1, 2, 3}, {4, 5, 6, 7}}, {{8, 9, 10}, {11, 12, 13}}}));
}

// C205
TEST(WorkerInput, OfItsOwnIsTakenInSharesOfTheBatch) {
  EXPECT_EQ(
      dealt(2, 1, shared(Dataset::range(12).batch(8), {.auto_shard_policy = AutoShardPolicy::OFF})),
      (Steps{{{0, 1, 2, 3}, {0, 1, 2, 3}},
             {{4, 5, 6, 7}, {4, 5, 6, 7}},
             {{8, 9, 10, 11}, {8, 9, 10, 11}}}));
}

// Of a batch of 5, replica 0 takes 3 rows in every step and replica 1 the other 2.
TEST(WorkerInput, OfItsOwnIsTakenInOneGlobalBatchPerStep) {
  const InputOptions off{.auto_shard_policy = AutoShardPolicy::OFF};
  EXPECT_EQ(dealt(2, 1, shared(Dataset::range(6).batch(5), off)),
            (Steps{{{0, 1, 2}, {0, 1}}, {{3, 4, 5}, {2, 3}}, {{}, {4, 5}}}));
  // The same with two replicas on each worker: 2, 1, 1 and 1.
  EXPECT_EQ(dealt(2, 2, shared(Dataset::range(6).batch(5), off)),
            (Steps{{{0, 1}, {2}, {0}, {1}}, {{3, 4}, {5}, {2}, {3}}, {{}, {}, {4}, {5}}}));
}

// Worker 1 would otherwise never read its data.
TEST(WorkerInput, WorkersTakeTurnsIfABatchHasFewerRowsThanWorkers) {
  EXPECT_EQ(
      dealt(2, 1, shared(Dataset::range(2).batch(1), {.auto_shard_policy = AutoShardPolicy::OFF})),
      (Steps{{{0}, {}}, {{}, {0}}, {{1}, {}}, {{}, {1}}}));
}

// C206: the size of batches is not known.
TEST(WorkerInput, OfUnknownBatchSizeIsCutAsItComes) {
  const Dataset batches =
      Dataset::range(12).batch(8).map([](const std::vector<Tensor>& x) { return x; });
  const Steps steps = dealt(2, 1, shared(batches, {.auto_shard_policy = AutoShardPolicy::OFF}));
  std::vector<size_t> sizes;
  for (const auto& step : steps) sizes.push_back(step[0].size());
  EXPECT_EQ(sizes, (std::vector<size_t>{4, 4, 2, 2}));
}

TEST(WorkerInput, OfUnknownBatchSizeMakesAGlobalBatchPerStep) {
  const Dataset batches =
      Dataset::range(10).batch(5).map([](const std::vector<Tensor>& x) { return x; });
  EXPECT_EQ(
      dealt(2, 1, shared(batches, {.auto_shard_policy = AutoShardPolicy::OFF})),
      (Steps{{{0, 1, 2}, {0, 1}}, {{3, 4}, {2, 3, 4}}, {{5, 6, 7}, {5, 6}}, {{8, 9}, {7, 8, 9}}}));
}

// C203, and worker k having k batches more
TEST(WorkerInput, EndsWhenNoWorkerHasAnyLeft) {
  const InputFn more_and_more = [](const InputContext& ctx) {
    return Dataset::range(100 * ctx.input_pipeline_id(), 102 * ctx.input_pipeline_id()).batch(2);
  };
  EXPECT_EQ(dealt(4, 1, function(more_and_more)), (Steps{{{}, {100, 101}, {200, 201}, {300, 301}},
                                                         {{}, {}, {202, 203}, {302, 303}},
                                                         {{}, {}, {}, {304, 305}}}));
}

TEST(WorkerInput, WithoutBatchesEndsWhenOneHasNoneLeft) {
  const Steps steps = dealt(3, 1, function([](const InputContext& ctx) {
                              return Dataset::range(5 - ctx.input_pipeline_id());
                            }));
  EXPECT_EQ(steps.size(), 3);
}

TEST(WorkerInput, GivesThoseWithoutDataTheShapesOfTheOthers) {
  cpus(1);
  on_ranks(Group::in_process(3), [](const Group& group) {
    CollectiveAllReduceStrategy strategy(group);
    const auto data = strategy.distribute_datasets_from_function([](const InputContext& ctx) {
      const int64_t rows = ctx.input_pipeline_id() == 2 ? 3 : 0;
      return Dataset::from_tensor_slices({Tensor::zeros({rows, 4, 2}, DType::bfloat16),
                                          Tensor::zeros({rows}, DType::int32)})
          .batch(2);
    });
    int steps = 0;
    for (const DistributedElement& element : data) {
      ++steps;
      EXPECT_EQ(element[0][0].dtype(), DType::bfloat16);
      EXPECT_EQ(element[1][0].dtype(), DType::int32);
      const int64_t rows = group.rank() < 2 ? 0 : steps == 1 ? 2 : 1;
      EXPECT_EQ(element[0][0].shape(), (Shape{rows, 4, 2}));
      EXPECT_EQ(element[1][0].shape(), (Shape{rows}));
    }
    EXPECT_EQ(steps, 2);
  });
}

// The mean over what all workers have equals that of one process, though some have none.
TEST(WorkerInput, UnevenDataHasTheRightMean) {
  double sum = 0, count = 0;
  for (int w = 0; w < 4; ++w)
    for (int i = 0; i < 3 * w; ++i) sum += 10 * w + i, ++count;
  cpus(1);
  on_ranks(Group::in_process(4), [&](const Group& group) {
    CollectiveAllReduceStrategy strategy(group);
    const auto data = strategy.distribute_datasets_from_function([](const InputContext& ctx) {
      const int64_t w = ctx.input_pipeline_id();
      return Dataset::range(10 * w, 13 * w).batch(3);
    });
    double total = 0, seen = 0;
    for (const DistributedElement& element : data) {
      const double rows = strategy
                              .reduce(ReduceOp::SUM, element[0].map([](const Tensor& t) {
                                return Tensor::scalar<double>(double(t.num_elements()));
                              }))
                              .item<double>();
      total += rows * strategy.reduce(ReduceOp::MEAN, element[0], 0).item<double>();
      seen += rows;
    }
    EXPECT_EQ(seen, count);
    EXPECT_DOUBLE_EQ(total / seen, sum / count);
  });
}

TEST(WorkerInput, IsMadeOnAllWorkersOrOnNone) {
  cpus(1);
  testing::expect_everywhere(
      testing::errors_on_ranks(Group::in_process(3),
                               [](const Group& group) {
                                 CollectiveAllReduceStrategy strategy(group);
                                 strategy.make_input_fn_iterator([](const InputContext& ctx) {
                                   if (ctx.input_pipeline_id() == 1) throw NotFoundError("no file");
                                   return Dataset::range(3).batch(1);
                                 });
                               }),
      ErrorCode::not_found, {"no file"});
}

TEST(WorkerInput, FailsOnAllWorkersIfItFailsOnOne) {
  cpus(1);
  const auto all = testing::errors_on_ranks(Group::in_process(3), [](const Group& group) {
    CollectiveAllReduceStrategy strategy(group);
    InputIterator input = strategy.make_input_fn_iterator([](const InputContext& ctx) {
      return Dataset::range(9).batch(1).map(
          [w = ctx.input_pipeline_id()](const std::vector<Tensor>& x) {
            if (w == 1 && x[0].item<int64_t>() == 2) throw DataLossError("bad record");
            return x;
          });
    });
    input.initialize();
    while (true) input.get_next();
  });
  EXPECT_EQ(all[1].code, ErrorCode::data_loss);
  for (const size_t w : {0, 2}) {
    EXPECT_EQ(all[w].code, ErrorCode::aborted);
    EXPECT_THAT(all[w].text, ::testing::HasSubstr("the input of worker 1 failed"));
    EXPECT_THAT(all[w].text, ::testing::HasSubstr("bad record"));
  }
}

// C209
TEST(WorkerInput, HasAPipelineForEachReplicaIfAskedTo) {
  const auto data = function(
      [](const InputContext& ctx) {
        EXPECT_EQ(ctx.num_input_pipelines(), 4);
        return Dataset::range(10 * ctx.input_pipeline_id(), 10 * ctx.input_pipeline_id() + 2)
            .batch(1);
      },
      {.experimental_replication_mode = InputReplicationMode::PER_REPLICA});
  EXPECT_EQ(dealt(2, 2, data), (Steps{{{0}, {10}, {20}, {30}}, {{1}, {11}, {21}, {31}}}));
}

// C221
TEST(WorkerInput, DealsOutFiles) {
  const Folder folder;
  std::vector<std::string> files;
  for (int i = 0; i < 5; ++i) {
    files.push_back(folder / fmt::format("{}.txt", i));
    std::ofstream(files.back()) << 10 * i << "\n" << 10 * i + 1 << "\n";
  }
  const Dataset numbers = Dataset::text_lines(files).map([](const std::vector<Tensor>& line) {
    return std::vector<Tensor>{Tensor::scalar<int64_t>(std::stoll(text(line[0])))};
  });
  EXPECT_EQ(dealt(2, 1, shared(numbers.batch(4), {.auto_shard_policy = AutoShardPolicy::FILE})),
            (Steps{{{0, 1}, {10, 11}}, {{20, 21}, {30, 31}}, {{40, 41}, {}}}));
  EXPECT_EQ(dealt(2, 1, shared(numbers.batch(5), {.auto_shard_policy = AutoShardPolicy::FILE})),
            (Steps{{{0, 1, 20}, {10, 11}}, {{21, 40, 41}, {30, 31}}}));
}

}  // namespace
}  // namespace tutti
