// SPDX-License-Identifier: Apache-2.0
// The steps that have threads: the parallel map and prefetch.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::Ints;
using testing::squared;
using testing::value;
using testing::values;
using Components = Dataset::Components;

// Lets threads through once it is opened, and knows how many came.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++came_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return came_ >= count; });
  }
  int came() {
    std::lock_guard lock(mutex_);
    return came_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int came_ = 0;
};

TEST(ParallelMap, KeepsTheOrder) {
  for (int64_t n : {0, 1, 3, 4, 5, 1000})
    for (int threads : {2, 4, 7}) {
      const Dataset dataset = Dataset::range(n).map(squared, threads);
      EXPECT_EQ(values(dataset), values(Dataset::range(n).map(squared)));
      EXPECT_EQ(dataset.cardinality(), n);
    }
}

// The first call is held up until the other three have come, so that the last to finish is first.
TEST(ParallelMap, KeepsTheOrderOfCallsThatEndInAnother) {
  std::promise<void> others_came;
  std::atomic<int> others{0};
  const Dataset dataset = Dataset::range(20).map(
      [&, done = others_came.get_future().share()](const Components& element) {
        if (value(element) == 0)
          done.wait();
        else if (++others == 3)
          others_came.set_value();
        return element;
      },
      4);
  EXPECT_EQ(values(dataset), values(Dataset::range(20)));
}

TEST(ParallelMap, RunsAsManyCallsAsAskedForAndNoMore) {
  Gate gate;
  std::atomic<int> inside{0}, most{0};
  const Dataset dataset = Dataset::range(50).map(
      [&](const Components& element) {
        const int now = ++inside;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        gate.pass();
        --inside;
        return element;
      },
      3);
  DatasetIterator it = dataset.make_iterator();
  std::thread reader([&] { EXPECT_EQ(value(*it.next()), 0); });
  gate.wait_for(3);
  EXPECT_EQ(gate.came(), 3);
  gate.open();
  reader.join();
  for (int64_t i = 1; i < 50; ++i) EXPECT_EQ(value(*it.next()), i);
  EXPECT_FALSE(it.next());
  EXPECT_EQ(most, 3);
}

TEST(ParallelMap, ReadsNoFurtherAheadThanItsThreads) {
  std::atomic<int> read{0};
  const auto counted = [&](const Components& element) {
    ++read;
    return element;
  };
  DatasetIterator it = Dataset::range(100).map(counted).map(squared, 4).make_iterator();
  it.next();
  it.save();  // waits for the calls under way
  EXPECT_LE(read, 1 + 4 + 1);
}

TEST(ParallelMap, PassesOnWhatItsFunctionThrowsInOrder) {
  for (int threads : {1, 2, 4}) {
    SCOPED_TRACE(threads);
    DatasetIterator it = Dataset::range(100)
                             .map(
                                 [](const Components& element) {
                                   if (value(element) >= 5)
                                     throw UnavailableError("no " + std::to_string(value(element)));
                                   return element;
                                 },
                                 threads)
                             .make_iterator();
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(value(*it.next()), i);
    EXPECT_ERROR(UnavailableError, "no 5", it.next());
    EXPECT_FALSE(it.next());
    EXPECT_FALSE(it.next());
  }
}

struct NotAnException {};

TEST(ParallelMap, PassesOnWhatIsNoException) {
  for (int threads : {1, 4}) {
    DatasetIterator it =
        Dataset::range(9)
            .map([](const Components&) -> Components { throw NotAnException(); }, threads)
            .make_iterator();
    EXPECT_THROW(it.next(), NotAnException);
    EXPECT_FALSE(it.next());
  }
}

TEST(ParallelMap, PassesOnWhatItsInputThrows) {
  const auto broken = [](const Components& element) {
    if (value(element) == 7) throw std::logic_error("seven");
    return element;
  };
  DatasetIterator it = Dataset::range(20).map(broken).map(squared, 4).make_iterator();
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(value(*it.next()), i * i);
  EXPECT_ERROR(std::logic_error, "seven", it.next());
  EXPECT_FALSE(it.next());
}

TEST(ParallelMap, RunsInParallelPerIterator) {
  const Dataset dataset = Dataset::range(300).map(squared, 3);
  const Ints expected = values(Dataset::range(300).map(squared));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_EQ(values(dataset), expected); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ParallelMap, MayBeDestroyedWhileItsFunctionWaits) {
  Gate gate;
  std::thread releaser;
  {
    DatasetIterator it = Dataset::range(50)
                             .map(
                                 [&](const Components& element) {
                                   if (value(element) > 0) gate.pass();
                                   return element;
                                 },
                                 4)
                             .make_iterator();
    EXPECT_EQ(value(*it.next()), 0);
    gate.wait_for(3);
    releaser = std::thread([&] { gate.open(); });
  }
  releaser.join();
  EXPECT_LE(gate.came(), 5);
}

TEST(ReadAhead, MayBeDestroyedBeforeItHasBegunAndAfterItsEnd) {
  const Dataset dataset = Dataset::range(3).map(squared, 3).prefetch(2);
  { DatasetIterator it = dataset.make_iterator(); }
  DatasetIterator it = dataset.make_iterator();
  while (it.next()) {
  }
}

TEST(ReadAhead, OfAnEndlessInputMayBeDestroyedAnytime) {
  const Dataset dataset = Dataset::range(5)
                              .repeat()
                              .map(squared, 4)
                              .batch(2)
                              .prefetch(3)
                              .map([](const Components& element) { return element; }, 2)
                              .prefetch(1);
  for (int steps : {1, 2, 3, 10, 50}) {
    DatasetIterator it = dataset.make_iterator();
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(it.next());
  }
}

// After these, nothing passes the filter any more: the threads search without end.
TEST(ReadAhead, GivesUpAnEndlessSearchWhenItIsDestroyed) {
  const auto below_three = [count = std::make_shared<std::atomic<int>>(0)](const Components&) {
    return (*count)++ < 3;
  };
  {
    DatasetIterator it = Dataset::range(5)
                             .repeat()
                             .filter(below_three)
                             .prefetch(8)
                             .map(squared, 3)
                             .prefetch(2)
                             .make_iterator();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(it.next());
  }
  // Here it is a step of the pipeline that throws away its run.
  const auto always_three = [](const Components& element) { return value(element) < 3; };
  EXPECT_EQ(values(Dataset::range(1, int64_t{1} << 62)
                       .filter(always_three)
                       .prefetch(8)
                       .map(squared, 2)
                       .take(2)
                       .repeat(2)),
            (Ints{1, 4, 1, 4}));
}

TEST(Prefetch, ChangesNothing) {
  for (int64_t n : {0, 1, 2, 3, 100})
    for (int64_t buffer : {0, 1, 2, 1000}) {
      const Dataset dataset = Dataset::range(n).prefetch(buffer);
      EXPECT_EQ(values(dataset), values(Dataset::range(n)));
      EXPECT_EQ(dataset.cardinality(), n);
    }
  EXPECT_ERROR(InvalidArgumentError, "prefetch: buffer_size is -1, expected 0 or more",
               Dataset::range(1).prefetch(-1));
}

TEST(Prefetch, ReadsAheadAsFarAsItsBuffer) {
  Gate gate;
  gate.open();
  DatasetIterator it = Dataset::range(100)
                           .map([&](const Components& element) {
                             gate.pass();
                             return element;
                           })
                           .prefetch(4)
                           .make_iterator();
  EXPECT_EQ(value(*it.next()), 0);
  gate.wait_for(5);
  EXPECT_EQ(value(*it.next()), 1);
  gate.wait_for(6);
  it.save();
  EXPECT_EQ(gate.came(), 6);
}

TEST(Prefetch, PassesOnWhatItsInputThrowsInOrder) {
  const Dataset dataset = Dataset::from_generator([] {
    return [i = int64_t{0}]() mutable -> std::optional<Components> {
      if (i == 3) throw UnavailableError("out of elements");
      return Components{Tensor::scalar(i++)};
    };
  });
  DatasetIterator it = dataset.prefetch(10).prefetch(1).make_iterator();
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(value(*it.next()), i);
  EXPECT_ERROR(UnavailableError, "out of elements", it.next());
  EXPECT_FALSE(it.next());
}

TEST(Prefetch, PassesOnWhatAnInterleavedDatasetThrows) {
  const auto broken = [](const Components& element) {
    return Dataset::from_tensors(element).map([](const Components& e) {
      if (value(e) == 2) throw UnavailableError("two");
      return e;
    });
  };
  DatasetIterator it = Dataset::range(5).interleave(broken, 2).prefetch(2).make_iterator();
  EXPECT_EQ(value(*it.next()), 0);
  EXPECT_EQ(value(*it.next()), 1);
  EXPECT_ERROR(UnavailableError, "two", it.next());
}

}  // namespace
}  // namespace tutti
