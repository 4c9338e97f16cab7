// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "support/expect.h"

namespace tutti::base {
namespace {

// Runs one loop and says whether each chunk ran exactly once.
bool each_chunk_once(ThreadPool& pool, int64_t chunks) {
  const auto counts = std::make_unique<std::atomic<int>[]>(size_t(chunks) + 1);
  pool.for_each(chunks, [&](int64_t i) { counts[size_t(i)].fetch_add(1); });
  for (int64_t i = 0; i < chunks; ++i)
    if (counts[size_t(i)] != 1) return false;
  return counts[size_t(chunks)] == 0;
}

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, RunsEachChunkOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int round = 0; round < 50; ++round)
    for (const int64_t chunks : {0, 1, 2, 3, 7, 64, 1000})
      ASSERT_TRUE(each_chunk_once(pool, chunks)) << chunks << " chunks, round " << round;
}

TEST_P(ThreadPoolTest, SharesItselfBetweenLoopsOfSeveralThreads) {
  ThreadPool pool(GetParam());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&, t] {
      for (int round = 0; round < 100; ++round)
        if (!each_chunk_once(pool, 10 * t + round % 7)) ++wrong;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(ThreadPoolTest, RunsLoopsInsideLoops) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ran = 0;
    pool.for_each(9, [&](int64_t) {
      pool.for_each(5, [&](int64_t) { pool.for_each(3, [&](int64_t) { ++ran; }); });
    });
    ASSERT_EQ(ran, 9 * 5 * 3);
  }
}

// Each chunk waits until all have begun, which only as many threads at once can bring about.
TEST_P(ThreadPoolTest, RunsAsManyChunksAtOnceAsItHasThreads) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> begun = 0;
    pool.for_each(GetParam(), [&](int64_t) {
      ++begun;
      while (begun < GetParam()) std::this_thread::yield();
    });
    ASSERT_EQ(begun, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 7));

TEST(ThreadPool, ResizesBetweenLoops) {
  ThreadPool pool(1);
  for (const int threads : {5, 2, 7, 1, 3}) {
    pool.resize(threads);
    EXPECT_EQ(pool.threads(), threads);
    EXPECT_TRUE(each_chunk_once(pool, 100));
  }
}

TEST(ThreadPool, SharedIsOneWithAtLeastTheCaller) {
  EXPECT_EQ(&ThreadPool::shared(), &ThreadPool::shared());
  EXPECT_GE(ThreadPool::shared().threads(), 1);
  EXPECT_TRUE(each_chunk_once(ThreadPool::shared(), 100));
}

}  // namespace
}  // namespace tutti::base
