// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <mutex>

#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::Ints;
using testing::repeated_number;
using testing::value;
using testing::values;
using Components = Dataset::Components;

// The same by a queue that is filled up whenever the turn comes to an empty place.
Ints reference(const std::vector<Ints>& inputs, size_t cycle, size_t block) {
  std::vector<Ints> open(cycle);
  std::vector<bool> used(cycle, false);
  size_t next = 0;
  Ints result;
  for (size_t place = 0;; place = (place + 1) % cycle) {
    while (!used[place] && next < inputs.size()) {
      open[place] = inputs[next++];
      used[place] = true;
    }
    if (next == inputs.size() && std::find(used.begin(), used.end(), true) == used.end())
      return result;
    for (size_t i = 0; i < block && used[place]; ++i) {
      if (open[place].empty()) {
        used[place] = false;
      } else {
        result.push_back(open[place].front());
        open[place].erase(open[place].begin());
      }
    }
  }
}

TEST(Interleave, TakesBlocksInTurn) {
  const auto six = [](const Components& element) {
    return Dataset::from_tensors(element).repeat(6);
  };
  EXPECT_EQ(values(Dataset::range(1, 6).interleave(six, 2, 4)),
            (Ints{1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3,
                  3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5}));
}

TEST(Interleave, WithACycleOfOneIsAFlatMap) {
  EXPECT_EQ(values(Dataset::range(4).interleave(repeated_number, 1)), (Ints{1, 2, 2, 3, 3, 3}));
  EXPECT_EQ(values(Dataset::range(4).flat_map(repeated_number)), (Ints{1, 2, 2, 3, 3, 3}));
}

TEST(Interleave, AgreesWithAPlainModel) {
  for (int64_t n : {0, 1, 2, 5, 9})
    for (int64_t cycle : {1, 2, 3, 10})
      for (int64_t block : {1, 2, 5})
        for (int threads : {1, 2, 4}) {
          std::vector<Ints> inputs;
          for (int64_t i = 0; i < n; ++i) inputs.push_back(Ints(size_t(i * 3 % 5), i));
          const Dataset dataset = Dataset::range(n).interleave(
              [](const Components& element) {
                return Dataset::from_tensors(element).repeat(value(element) * 3 % 5);
              },
              cycle, block, threads);
          EXPECT_EQ(values(dataset), reference(inputs, size_t(cycle), size_t(block)))
              << n << " datasets, cycle " << cycle << ", block " << block << ", threads "
              << threads;
        }
}

TEST(Interleave, WithACycleFarTooLongStillEnds) {
  EXPECT_EQ(values(Dataset::range(3).interleave(repeated_number, int64_t{1} << 60)),
            (Ints{1, 2, 2}));
}

TEST(Interleave, OpensNoMoreThanItsCycle) {
  int opened = 0;
  const Dataset dataset = Dataset::range(100).interleave(
      [&](const Components& element) {
        ++opened;
        return Dataset::from_tensors(element).repeat();
      },
      3);
  EXPECT_EQ(values(dataset.take(7)), (Ints{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(opened, 3);
}

TEST(Interleave, PassesOnWhatItsFunctionAndItsDatasetsThrow) {
  const auto broken = [](const Components& element) {
    if (value(element) == 2) throw UnavailableError("no dataset 2");
    return Dataset::from_tensors(element).repeat(2);
  };
  DatasetIterator it = Dataset::range(4).interleave(broken, 1).make_iterator();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(it.next());
  EXPECT_ERROR(UnavailableError, "no dataset 2", it.next());
  EXPECT_FALSE(it.next());
  const auto throwing = [](const Components& element) {
    return Dataset::from_tensors(element).map(
        [](const Components&) -> Components { throw std::logic_error("inside"); });
  };
  EXPECT_ERROR(std::logic_error, "inside",
               Dataset::range(4).interleave(throwing, 2).make_iterator().next());
}

TEST(Interleave, ChecksItsArguments) {
  EXPECT_ERROR(InvalidArgumentError, "interleave: the function is empty",
               Dataset::range(1).interleave({}, 1));
  EXPECT_ERROR(InvalidArgumentError, "interleave: cycle_length is 0",
               Dataset::range(1).interleave(repeated_number, 0));
  EXPECT_ERROR(InvalidArgumentError, "interleave: block_length is 0",
               Dataset::range(1).interleave(repeated_number, 1, 0));
  EXPECT_ERROR(InvalidArgumentError, "interleave: num_parallel_calls is 0",
               Dataset::range(1).interleave(repeated_number, 1, 1, 0));
  EXPECT_ERROR(InvalidArgumentError, "flat_map: the function is empty",
               Dataset::range(1).flat_map({}));
  EXPECT_EQ(Dataset::range(3).interleave(repeated_number, 1).cardinality(), Dataset::unknown);
  EXPECT_EQ(Dataset::range(0).interleave(repeated_number, 1).cardinality(), 0);
}

// Each dataset waits until all have been asked: one after the other, none would give an element.
TEST(ParallelInterleave, ReadsItsDatasetsAtTheSameTime) {
  std::mutex mutex;
  std::condition_variable changed;
  int asked = 0;
  const auto waiting = [&](const Components& element) {
    return Dataset::from_tensors(element).map([&](const Components& e) {
      std::unique_lock lock(mutex);
      ++asked;
      changed.notify_all();
      EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return asked == 3; }));
      return e;
    });
  };
  EXPECT_EQ(values(Dataset::range(3).interleave(waiting, 3, 1, 3)), (Ints{0, 1, 2}));
}

TEST(ParallelInterleave, ThrowsWhenItsTurnComes) {
  const auto broken = [](const Components& element) {
    if (value(element) == 2) throw UnavailableError("no dataset 2");
    return Dataset::from_tensors(element).repeat(2);
  };
  DatasetIterator it = Dataset::range(4).interleave(broken, 4, 1, 2).make_iterator();
  EXPECT_EQ(value(*it.next()), 0);
  const std::string state = it.save();
  EXPECT_EQ(value(*it.next()), 1);
  EXPECT_ERROR(UnavailableError, "no dataset 2", it.next());
  EXPECT_FALSE(it.next());
  DatasetIterator restored = Dataset::range(4).interleave(broken, 4, 1, 2).make_iterator(state);
  EXPECT_EQ(value(*restored.next()), 1);
  EXPECT_ERROR(UnavailableError, "no dataset 2", restored.next());
}

}  // namespace
}  // namespace tutti
