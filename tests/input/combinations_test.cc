// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::batches;
using testing::Ints;
using testing::squared;
using testing::value;
using testing::values;
using Components = Dataset::Components;

TEST(Repeat, RunsItsInputAgain) {
  EXPECT_EQ(values(Dataset::range(2).repeat(3)), (Ints{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(values(Dataset::range(2).repeat(1)), (Ints{0, 1}));
  EXPECT_EQ(values(Dataset::range(2).repeat(0)), Ints{});
  EXPECT_EQ(values(Dataset::range(0).repeat(3)), Ints{});
  EXPECT_EQ(batches(Dataset::range(3).repeat(2).batch(4)),
            (std::vector<Ints>{{0, 1, 2, 0}, {1, 2}}));
  EXPECT_EQ(batches(Dataset::range(3).batch(2).repeat(2)),
            (std::vector<Ints>{{0, 1}, {2}, {0, 1}, {2}}));
}

TEST(Repeat, OfNothingWithoutALimitEnds) {
  const auto none = [](const Components&) { return false; };
  EXPECT_EQ(values(Dataset::range(0).repeat()), Ints{});
  EXPECT_EQ(values(Dataset::range(5).filter(none).repeat()), Ints{});
  EXPECT_EQ(values(Dataset::range(5).filter(none).repeat().repeat()), Ints{});
}

TEST(Repeat, PassesOverEmptyRepetitionsWhenCounted) {
  const Dataset dataset = Dataset::range(4).shuffle(4, 1).take(1).filter(
      [](const Components& element) { return value(element) == 3; });
  EXPECT_GT(values(dataset.repeat(100)).size(), 5u);
}

TEST(Repeat, KnowsItsCardinality) {
  const Dataset n = Dataset::range(10);
  const Dataset unknown = n.filter([](const Components&) { return true; });
  EXPECT_EQ(n.repeat(3).cardinality(), 30);
  EXPECT_EQ(n.repeat().cardinality(), Dataset::infinite);
  EXPECT_EQ(n.repeat().repeat(2).cardinality(), Dataset::infinite);
  EXPECT_EQ(n.repeat().repeat(0).cardinality(), 0);
  EXPECT_EQ(Dataset::range(0).repeat().cardinality(), 0);
  EXPECT_EQ(unknown.repeat(2).cardinality(), Dataset::unknown);
  EXPECT_EQ(unknown.repeat().cardinality(), Dataset::infinite);
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(n.repeat(most).cardinality(), most);
  EXPECT_EQ(n.repeat(-1).cardinality(), Dataset::infinite);
  EXPECT_EQ(values(Dataset::range(2).repeat(-1).take(5)), (Ints{0, 1, 0, 1, 0}));
  EXPECT_ERROR(InvalidArgumentError, "repeat: count is -2, expected -1 or more", n.repeat(-2));
}

TEST(Zip, PutsComponentsSideBySide) {  // C194
  const Dataset n = Dataset::range(4);
  const Dataset zipped = Dataset::zip({n, n.map(squared), Dataset::zip({n, n.skip(1)})});
  int64_t i = 0;
  for (const Components& element : zipped) {
    ASSERT_EQ(element.size(), 4u);
    EXPECT_EQ(element[0].item<int64_t>(), i);
    EXPECT_EQ(element[1].item<int64_t>(), i * i);
    EXPECT_EQ(element[3].item<int64_t>(), i + 1);
    ++i;
  }
  EXPECT_EQ(i, 3);
}

TEST(Zip, IsAsLongAsTheShortest) {
  const Dataset n = Dataset::range(4), unknown = n.filter([](const Components&) { return true; });
  EXPECT_EQ(values(Dataset::zip({n.repeat(), n.take(2)})), (Ints{0, 1}));
  EXPECT_EQ(values(Dataset::zip({n, Dataset::range(0)})), Ints{});
  EXPECT_EQ(values(Dataset::zip({n})), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(Dataset::zip({n.repeat(), n.take(2), n}).cardinality(), 2);
  EXPECT_EQ(Dataset::zip({n.repeat(), n.repeat()}).cardinality(), Dataset::infinite);
  EXPECT_EQ(Dataset::zip({n, unknown}).cardinality(), Dataset::unknown);
  EXPECT_EQ(Dataset::zip({unknown, Dataset::range(0)}).cardinality(), 0);
  EXPECT_ERROR(InvalidArgumentError, "zip: there are no datasets", Dataset::zip({}));
}

TEST(Concatenate, RunsOneAfterTheOther) {
  const Dataset n = Dataset::range(2), none = Dataset::range(0);
  EXPECT_EQ(values(n.concatenate(Dataset::range(5, 7))), (Ints{0, 1, 5, 6}));
  EXPECT_EQ(values(none.concatenate(n).concatenate(none)), (Ints{0, 1}));
  EXPECT_EQ(values(none.concatenate(none)), Ints{});
  EXPECT_EQ(n.concatenate(n).cardinality(), 4);
  EXPECT_EQ(n.concatenate(n.repeat()).cardinality(), Dataset::infinite);
  EXPECT_EQ(n.concatenate(n.filter([](const Components&) { return true; })).cardinality(),
            Dataset::unknown);
}

TEST(Concatenate, RefusesOtherDtypes) {
  const Dataset n = Dataset::range(2), floats = Dataset::from_tensors({Tensor::scalar(1.5f)});
  EXPECT_ERROR(InvalidArgumentError,
               "concatenate: got dtypes [int64] and [float32], expected the same",
               n.concatenate(floats));
  EXPECT_ERROR(InvalidArgumentError, "[int64] and [int64, int64]",
               n.concatenate(Dataset::zip({n, n})));
  // Only running tells what a function makes.
  const auto same = [](const Components& element) { return element; };
  const Dataset both = n.map(same).concatenate(floats.map(same));
  DatasetIterator it = both.make_iterator();
  EXPECT_EQ(value(*it.next()), 0);
  EXPECT_EQ(value(*it.next()), 1);
  EXPECT_ERROR(InvalidArgumentError, "concatenate: got dtypes [int64] and [float32]",
               both.make_iterator(it.save()).next());
  EXPECT_ERROR(InvalidArgumentError, "concatenate: got dtypes [int64] and [float32]", it.next());
}

TEST(Enumerate, PutsANumberInFront) {
  Ints seen;
  for (const Components& element : Dataset::range(10, 13).enumerate(5)) {
    ASSERT_EQ(element.size(), 2u);
    seen.push_back(value(element));
    seen.push_back(element[1].item<int64_t>());
  }
  EXPECT_EQ(seen, (Ints{5, 10, 6, 11, 7, 12}));
  EXPECT_EQ(Dataset::range(3).enumerate().cardinality(), 3);
}

Dataset constant(int64_t number) { return Dataset::from_tensors({Tensor::scalar(number)}); }

TEST(SampleFromDatasets, DrawsByWeight) {
  const Dataset mixed = Dataset::sample_from_datasets(
      {constant(0).repeat(), constant(1).repeat(), constant(2).repeat()}, {0.5, 0, 1.5}, 7);
  const Ints drawn = values(mixed.take(4000));
  EXPECT_EQ(std::ranges::count(drawn, 1), 0);
  EXPECT_NEAR(double(std::ranges::count(drawn, 0)), 1000, 150);
  EXPECT_EQ(values(mixed.take(4000)), drawn);  // with one seed the same
  EXPECT_EQ(mixed.cardinality(), Dataset::infinite);
  const Dataset other = Dataset::sample_from_datasets(
      {constant(0).repeat(), constant(1).repeat(), constant(2).repeat()}, {0.5, 0, 1.5}, 8);
  EXPECT_NE(values(other.take(4000)), drawn);
}

TEST(SampleFromDatasets, GoesOnWithThoseThatAreLeftOrStops) {
  const std::vector<Dataset> both{Dataset::range(3), Dataset::range(10, 20)};
  const Dataset all = Dataset::sample_from_datasets(both, {}, 1);
  Ints drawn = values(all);
  EXPECT_EQ(all.cardinality(), 13);
  std::stable_partition(drawn.begin(), drawn.end(), [](int64_t x) { return x < 10; });
  EXPECT_EQ(drawn, (Ints{0, 1, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}));
  const Dataset some = Dataset::sample_from_datasets(both, {1, 1e-9}, 1, true);
  EXPECT_EQ(values(some), (Ints{0, 1, 2}));
  EXPECT_EQ(some.cardinality(), Dataset::unknown);
}

TEST(SampleFromDatasets, DrawsAnewInEachRunIfToldTo) {
  for (const bool anew : {false, true}) {
    const Dataset mixed = Dataset::sample_from_datasets(
        {constant(0).repeat(32), constant(1).repeat(32)}, {}, 3, false, anew);
    const Ints twice = values(mixed.repeat(2));
    EXPECT_EQ(Ints(twice.begin(), twice.begin() + 64) == Ints(twice.begin() + 64, twice.end()),
              !anew);
  }
}

TEST(SampleFromDatasets, ChecksItsArguments) {
  const Dataset n = Dataset::range(2);
  EXPECT_ERROR(InvalidArgumentError, "0 datasets", Dataset::sample_from_datasets({}, {}, 1));
  EXPECT_ERROR(InvalidArgumentError, "2 datasets and 1 weights",
               Dataset::sample_from_datasets({n, n}, {1}, 1));
  EXPECT_ERROR(InvalidArgumentError, "weight 1 is -1",
               Dataset::sample_from_datasets({n, n}, {1, -1}, 1));
  EXPECT_ERROR(InvalidArgumentError, "all weights are 0",
               Dataset::sample_from_datasets({n, n}, {0, 0}, 1));
  EXPECT_ERROR(InvalidArgumentError, "sample_from_datasets: got dtypes",
               Dataset::sample_from_datasets({n, Dataset::zip({n, n})}, {}, 1));
}

// C199
TEST(Cache, RunsItsInputOnce) {
  std::atomic<int> calls{0};
  const Dataset cached =
      Dataset::range(4)
          .map([&](const Components& element) {
            return Components{Tensor::scalar<int64_t>(100 * calls++ + value(element))};
          })
          .cache();
  EXPECT_EQ(values(cached.repeat(3)), (Ints{0, 101, 202, 303, 0, 101, 202, 303, 0, 101, 202, 303}));
  EXPECT_EQ(values(cached), (Ints{0, 101, 202, 303}));
  EXPECT_EQ(calls, 4);
}

TEST(Cache, IsFilledByACompleteRunOnly) {
  std::atomic<int> calls{0};
  const Dataset cached = Dataset::range(3)
                             .map([&](const Components& element) {
                               ++calls;
                               return element;
                             })
                             .cache();
  EXPECT_EQ(values(cached.take(2)), (Ints{0, 1}));
  EXPECT_EQ(values(cached.take(3)), (Ints{0, 1, 2}));
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(values(cached), (Ints{0, 1, 2}));
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(values(cached.take(2)), (Ints{0, 1}));
  EXPECT_EQ(calls, 8);
}

TEST(Cache, IsNotFilledByAFailedRun) {
  bool fail = true;
  const Dataset cached = Dataset::range(3)
                             .map([&](const Components& element) {
                               if (fail && value(element) == 2) throw UnavailableError("not now");
                               return element;
                             })
                             .cache();
  EXPECT_ERROR(UnavailableError, "not now", values(cached));
  fail = false;
  EXPECT_EQ(values(cached), (Ints{0, 1, 2}));
}

TEST(Cache, KeepsNothingAsNothing) {
  EXPECT_EQ(values(Dataset::range(0).cache().repeat(2)), Ints{});
}

TEST(Cache, ServesSeveralRunsAtOnce) {
  const Dataset cached = Dataset::range(200).shuffle(200, 3).cache();
  std::vector<Ints> seen(4);
  std::vector<std::thread> threads;
  for (Ints& own : seen) threads.emplace_back([&] { own = values(cached.repeat(3)); });
  for (std::thread& thread : threads) thread.join();
  const Ints expected = values(cached.repeat(3));
  for (const Ints& own : seen) EXPECT_EQ(own, expected);
}

}  // namespace
}  // namespace tutti
