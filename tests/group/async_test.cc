// SPDX-License-Identifier: Apache-2.0
// Operations in the background.
#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;

class Async : public Ranks {};
TUTTI_ON_RANKS(Async);

TEST_P(Async, OperationsAreThoseOfTheSameName) {
  on_ranks(groups, [&](const Group& group) {
    const int me = group.rank();
    for (const size_t count : {3, 40'000}) {
      std::vector<int> sum(count, me), root(count, me), all(count * size_t(n)), each(count, me);
      std::vector<int> parts(count * size_t(n), me), turned(parts.size()), share(count);
      const std::vector<Tensor> list{Tensor::full({int64_t(count)}, 1, DType::float64),
                                     Tensor::full({2}, 1, DType::int8)};
      std::vector<Work> work{group.all_reduce_async(sum, ReduceOp::SUM, kLong),
                             group.broadcast_async(root, n - 1, kLong),
                             group.all_gather_async(each, all, kLong),
                             group.reduce_scatter_async(parts, share, ReduceOp::SUM, kLong),
                             group.all_to_all_async(parts, turned, kLong),
                             group.all_reduce_async(list, ReduceOp::SUM, kLong)};
      for (Work& one : work) one.wait();
      EXPECT_THAT(sum, ::testing::Each(n * (n - 1) / 2));
      EXPECT_THAT(share, ::testing::Each(n * (n - 1) / 2));
      EXPECT_THAT(root, ::testing::Each(n - 1));
      for (int r = 0; r < n; ++r) {
        EXPECT_EQ(all[size_t(r + 1) * count - 1], r);
        EXPECT_EQ(turned[size_t(r) * count], r);
      }
      EXPECT_EQ(list[0].to_vector<double>()[count - 1], n);
      EXPECT_EQ(list[1].to_vector<int8_t>()[1], n);
    }
  });
}

TEST_P(Async, ManyMayBeUnderWayAndMixedWithOthers) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<std::vector<int>> data;
    for (int i = 0; i < 300; ++i) data.emplace_back(i % 50 == 0 ? 20'000 : 4, i);
    std::vector<Work> work;
    for (size_t i = 0; i < data.size(); ++i) {
      if (i % 7 == 3)
        group.all_reduce(data[i], ReduceOp::SUM, kLong);  // waits for its turn
      else
        work.push_back(group.all_reduce_async(data[i], ReduceOp::SUM, kLong));
      if (i % 100 == 99) {
        EXPECT_EQ(group.split(0, 0).size(), n);
      }
    }
    for (size_t i = work.size(); i-- > 0;) work[i].wait();
    for (size_t i = 0; i < data.size(); ++i) ASSERT_THAT(data[i], ::testing::Each(n * int(i)));
  });
}

// C260
TEST_P(Async, OperationsOnOneBufferFormAChain) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<int64_t> data(5, 1);
    std::vector<Work> chain;
    for (int i = 0; i < 10; ++i)
      chain.push_back(group.all_reduce_async(data, ReduceOp::SUM, kLong));
    group.all_reduce(data, ReduceOp::MAX, kLong);
    for (const Work& work : chain) EXPECT_TRUE(work.done());
    int64_t expected = 1;
    for (int i = 0; i < 10; ++i) expected *= n;
    EXPECT_THAT(data, ::testing::Each(expected));
  });
}

TEST_P(Async, WaitMayBeCalledAgainAndOnCopies) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<float> data(3, 1);
    Work work = group.all_reduce_async(data, ReduceOp::SUM, kLong);
    Work copy = work;
    std::thread([&] { copy.wait(); }).join();
    work.wait();
    work.wait();
    EXPECT_TRUE(work.done());
    EXPECT_TRUE(copy.done());
    EXPECT_EQ(data[0], float(n));
  });
}

TEST_P(Async, KeepsTensorsAliveThatTheCallerHasDropped) {
  on_ranks(groups, [&](const Group& group) {
    Work work =
        group.all_reduce_async(Tensor::full({50'000}, 1, DType::float32), ReduceOp::SUM, kLong);
    Work list = group.all_reduce_async(std::vector{Tensor::full({50'000}, 1, DType::float32)},
                                       ReduceOp::SUM, kLong);
    list.wait();
    EXPECT_TRUE(work.done());
  });
}

TEST(Work, StandsForNothingByItself) {
  Work none;
  EXPECT_EQ(caught([&] { none.wait(); }).code, ErrorCode::failed_precondition);
  EXPECT_EQ(caught([&] { (void)none.done(); }).code, ErrorCode::failed_precondition);
}

TEST(Work, IsNotDoneBeforeTheOthersCome) {
  const Groups groups = Group::in_process(2);
  std::vector<int> a{1}, b{1};
  Work first = groups[0].all_reduce_async(a, ReduceOp::SUM, kLong);
  EXPECT_FALSE(first.done());
  Work second = groups[1].all_reduce_async(b, ReduceOp::SUM, kLong);
  first.wait();
  second.wait();
  EXPECT_EQ(a[0] + b[0], 4);
}

TEST(Background, ErrorsReachWaitEveryTime) {
  const Groups groups = Group::in_process(2);
  std::vector<float> data(3), next(3);
  Work late = groups[0].all_reduce_async(data, ReduceOp::SUM, kSoon);
  Work later = groups[0].all_reduce_async(next, ReduceOp::SUM, kLong);
  Work copy = late;
  for (Work* work : {&late, &copy, &late, &later, &later}) {
    const Caught error = caught([&] { work->wait(); });
    EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
    EXPECT_THAT(error.text,
                ::testing::HasSubstr("all_reduce #1 (float32[3], SUM): waited 0.2 s for rank 1"));
    EXPECT_TRUE(work->done());
  }
  EXPECT_EQ(caught([&] { groups[0].barrier(kLong); }).code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(caught([&] { groups[1].all_reduce_async(data, ReduceOp::SUM).wait(); }).code,
            ErrorCode::deadline_exceeded);
}

TEST(Background, ArgumentsAreCheckedAtOnce) {
  const Groups groups = Group::in_process(1);
  std::vector<int32_t> data(3);
  std::vector<float> other(3);
  EXPECT_EQ(caught([&] { groups[0].all_reduce_async(data, ReduceOp::MEAN); }).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(caught([&] { groups[0].broadcast_async(data, 1); }).code, ErrorCode::invalid_argument);
  EXPECT_EQ(caught([&] { groups[0].all_gather_async(data, other); }).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(caught([&] {
              groups[0].all_reduce_async(data, ReduceOp::SUM, {.timeout = milliseconds(-1)});
            }).code,
            ErrorCode::invalid_argument);
}

TEST(Background, DroppedWorkGoesOn) {
  const Groups groups = Group::in_process(2);
  on_ranks(groups, [](const Group& group) {
    std::vector<int> data(3, 1);
    group.all_reduce_async(data, ReduceOp::SUM, kLong);
    group.barrier(kLong);
    EXPECT_EQ(data[0], 2);
  });
}

// Work begins by itself, whether a core is idle or not, and if no rank waits for it.
TEST(Background, WorkEndsWithoutAWait) {
  const Groups groups = Group::in_process(3);
  on_ranks(groups, [](const Group& group) {
    std::vector<int> data(3, 1);
    const Work work = group.all_reduce_async(data, ReduceOp::SUM, kLong);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!work.done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_TRUE(work.done());
    EXPECT_EQ(data[0], 3);
  });
}

// Each waits for the operation that the other has put behind another one.
TEST(Background, GroupsMayBeWaitedForInAnyOrder) {
  const Groups some = Group::in_process(2), others = Group::in_process(2);
  on_threads(2, [&](size_t r) {
    std::vector<int> a(3, 1), b(3, 1);
    Work first = some[r].all_reduce_async(a, ReduceOp::SUM, kLong);
    Work second = others[r].all_reduce_async(b, ReduceOp::SUM, kLong);
    if (r == 0) {
      first.wait();
      second.wait();
    } else {
      second.wait();
      first.wait();
    }
    EXPECT_EQ(a[2] + b[2], 4);
  });
}

// A rank that leaves with work under way tells the others, and its own work ends.
TEST(Background, LeavingEndsOutstandingWork) {
  Groups groups = Group::in_process(2);
  std::vector<float> a(3), b(3), c(3);
  Work running = groups[0].all_reduce_async(a, ReduceOp::SUM, kLong);
  Work queued = groups[0].all_reduce_async(b, ReduceOp::SUM, kLong);
  groups.erase(groups.begin());
  // The first may have begun or not.
  const Caught first = caught([&] { running.wait(); }), second = caught([&] { queued.wait(); });
  EXPECT_TRUE(first.code == ErrorCode::aborted || first.code == ErrorCode::cancelled) << first.text;
  EXPECT_EQ(second.code, ErrorCode::cancelled) << second.text;
  const Caught other = caught([&] { groups[0].all_reduce(c, ReduceOp::SUM, kLong); });
  EXPECT_EQ(other.code, ErrorCode::aborted);
  EXPECT_THAT(other.text, ::testing::HasSubstr("rank 0 left the group"));
}

TEST(Background, LeavingAfterWaitDisturbsNoRank) {
  for (int round = 0; round < 100; ++round) {
    Groups groups = Group::in_process(2);
    on_threads(2, [&](size_t r) {
      std::vector<int> data(3, 1);
      groups[r].all_reduce_async(data, ReduceOp::SUM, kLong).wait();
      EXPECT_EQ(data[0], 2);
      const Group last = std::move(groups[r]);
    });
  }
}

// A rank that leaves while another still works on its memory gets it back untouched afterwards.
TEST(Background, LeavingDoesNotGiveBackMemoryInUse) {
  for (int round = 0; round < (TUTTI_TEST_SANITIZED ? 30 : 100); ++round) {
    Groups groups = Group::in_process(2);
    on_threads(2, [&](size_t r) {
      std::vector<float> data(400'000, 1);
      if (r == 1) {
        caught([&] { groups[1].all_reduce(data, ReduceOp::SUM, kLong); });
        return;
      }
      Work work = groups[0].all_reduce_async(data, ReduceOp::SUM, kLong);
      for (int i = 0; i < round * 20; ++i) std::this_thread::yield();
      { const Group last = std::move(groups[0]); }
      // From here on it is ours, whether the operation succeeded or not.
      const Caught error = caught([&] { work.wait(); });
      std::ranges::fill(data, 5.f);
      for (int i = 0; i < 2000; ++i) std::this_thread::yield();
      if (error.code) {
        EXPECT_THAT(data, ::testing::Each(5.f)) << "round " << round;
      }
    });
  }
}

}  // namespace
}  // namespace tutti
