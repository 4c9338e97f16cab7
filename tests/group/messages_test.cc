// SPDX-License-Identifier: Apache-2.0
// Send and recv.
#include <atomic>
#include <numeric>

#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;

class Messages : public Ranks {
 protected:
  int next(const Group& group) const { return (group.rank() + 1) % n; }
  int previous(const Group& group) const { return (group.rank() + n - 1) % n; }
};
INSTANTIATE_TEST_SUITE_P(, Messages, ranks({2, 3, 4, 7}), name_of_ranks);

// Even ranks send first, so that no rank waits without end if a send waits to be received.
TEST_P(Messages, OfAnySizeArriveWhole) {
  const size_t packet = size_t(64) << 10;
  on_ranks(groups, [&](const Group& group) {
    for (const size_t bytes : {size_t(0), size_t(1), size_t(100), packet - 1, packet, packet + 1,
                               2 * packet, 2 * packet + 1, 3 * packet, 40 * packet + 17}) {
      const std::vector<std::byte> mine = pattern(group.rank(), bytes);
      Buffer in(int64_t(bytes), DType::uint8, mine), out(int64_t(bytes), DType::uint8);
      const auto send = [&] { group.send(in.tensor(), next(group), 0, kLong); };
      if (group.rank() % 2 == 0) send();
      group.recv(out.tensor(), previous(group), 0, kLong);
      if (group.rank() % 2 == 1) send();
      ASSERT_TRUE(out.is(pattern(previous(group), bytes))) << bytes;
    }
  });
}

TEST_P(Messages, WithOneTagKeepTheirOrderAndOthersMayOvertake) {
  on_ranks(groups, [&](const Group& group) {
    // Everything fits into what may be on its way or is set aside.
    if (group.rank() == 0)
      for (int i = 0; i < 300; ++i) group.send(std::vector{i}, 1, i % 3, kLong);
    if (group.rank() == 1)
      for (const int tag : {2, 0, 1})
        for (int i = tag; i < 300; i += 3) {
          std::vector<int> got(1);
          group.recv(got, 0, tag, kLong);
          ASSERT_EQ(got[0], i);
        }
    group.barrier(kLong);
  });
}

TEST_P(Messages, SetAsideMayBeLargeAndEmptyAndOfAnyDtype) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<float> large(100'000);
    std::iota(large.begin(), large.end(), 0.f);
    const std::vector<int8_t> empty;
    const std::vector<double> last{7};
    if (group.rank() == 0) {
      group.send(large, 1, -5, kLong);
      group.send(empty, 1, 6, kLong);
      group.send(last, 1, int64_t(1) << 40, kLong);
    }
    if (group.rank() == 1) {
      std::vector<double> third(1);
      std::vector<int8_t> second;
      std::vector<float> first(100'000);
      group.recv(third, 0, int64_t(1) << 40, kLong);
      group.recv(second, 0, 6, kLong);
      group.recv(first, 0, -5, kLong);
      EXPECT_EQ(third, last);
      EXPECT_EQ(first, large);
    }
    group.barrier(kLong);
  });
}

TEST_P(Messages, ComeFromAllToOne) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<int> value(20'000, group.rank());
    if (group.rank() > 0) return group.send(value, 0, 0, kLong);
    for (int r = n - 1; r > 0; --r) {
      group.recv(value, r, 0, kLong);
      EXPECT_THAT(value, ::testing::Each(r));
    }
  });
}

// One thread of a rank sends, another receives, a third is in collectives.
TEST_P(Messages, GoBesideCollectives) {
  on_ranks(groups, [&](const Group& group) {
    on_threads(3, [&](size_t job) {
      for (int i = 0; i < 300; ++i) {
        std::vector<int> data(i % 7 == 0 ? 40'000 : 3, i);
        if (job == 0) group.send(data, next(group), i, kLong);
        if (job == 1) group.recv(data, previous(group), i, kLong);
        if (job == 2) group.all_reduce(data, ReduceOp::MAX, kLong);
        ASSERT_EQ(std::ranges::count(data, i), std::ssize(data));
      }
    });
  });
}

TEST_P(Messages, OfTensorsAndSpansAreTheSame) {
  on_ranks(groups, [&](const Group& group) {
    if (group.rank() == 0) group.send(Tensor::full({2, 3}, 4, DType::float32), 1, 0, kLong);
    if (group.rank() == 1) {
      std::vector<float> got(6);
      group.recv(got, 0, 0, kLong);
      EXPECT_THAT(got, ::testing::Each(4));
    }
  });
}

TEST(Message, OfARankThatLeftIsStillReceived) {
  Groups groups = Group::in_process(2);
  groups[0].send(std::vector{1, 2}, 1, 3, kLong);
  groups[0].send(std::vector{3}, 1, 4, kLong);
  groups.erase(groups.begin());
  std::vector<int> one(1), two(2);
  groups[0].recv(one, 0, 4, kLong);
  groups[0].recv(two, 0, 3, kLong);
  EXPECT_EQ(one[0], 3);
  EXPECT_EQ(two, (std::vector{1, 2}));
  const Caught error = caught([&] { groups[0].recv(one, 0, 4, kLong); });
  EXPECT_EQ(error.code, ErrorCode::unavailable);
  EXPECT_THAT(error.text, ::testing::HasSubstr("rank 0 has left the group"));
}

TEST(Message, ThatNoRankTakesIsAnErrorOfTheSender) {
  const Groups groups = Group::in_process(2);
  const Caught error = caught([&] { groups[0].send(std::vector<float>(100'000), 1, 0, kSoon); });
  EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
  EXPECT_THAT(error.text, ::testing::HasSubstr("send"));
  EXPECT_THAT(error.text, ::testing::HasSubstr("float32[100000], to rank 1"));
  EXPECT_THAT(error.text, ::testing::HasSubstr("waited 0.2 s for rank 1"));
  EXPECT_EQ(caught([&] { groups[1].barrier(kLong); }).code, ErrorCode::deadline_exceeded);
}

TEST(Message, ThatNoRankSendsIsAnErrorOfTheReceiver) {
  const Groups groups = Group::in_process(3);
  groups[2].send(std::vector{1}, 0, 0, kLong);  // from another rank
  groups[1].send(std::vector{1}, 0, 1, kLong);  // with another tag
  std::vector<int> out(1);
  const Caught error = caught([&] { groups[0].recv(out, 1, 0, kSoon); });
  EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
  EXPECT_THAT(error.text, ::testing::HasSubstr("recv"));
  EXPECT_THAT(error.text, ::testing::HasSubstr("int32[1], from rank 1"));
  EXPECT_THAT(error.text, ::testing::HasSubstr("waited 0.2 s for rank 1"));
}

// The errors and the record number a message alike: the third recv of this rank is #3.
TEST(Message, IsNumberedAsInTheRecord) {
  const Groups groups = Group::in_process(2);
  std::vector<int> out(1);
  for (int i = 0; i < 2; ++i) {
    groups[1].send(out, 0, 0, kLong);
    groups[0].recv(out, 1, 0, kLong);
  }
  const Caught error = caught([&] { groups[0].recv(out, 1, 0, kSoon); });
  EXPECT_THAT(error.text, ::testing::StartsWith("recv #3 (int32[1], from rank 1)"));
  EXPECT_THAT(error.text, ::testing::HasSubstr("#3 recv(int32[1], from rank 1) (not done)"));
}

TEST(Message, OfAnotherSizeOrDtypeIsAnErrorOfBoth) {
  for (const bool early : {false, true})
    for (const bool other_dtype : {false, true}) {
      const Groups groups = Group::in_process(2);
      std::vector<float> three(3);
      std::vector<int32_t> as_many(3);
      std::vector<float> two(2);
      groups[0].send(three, 1, 8, kLong);
      if (early) {  // set aside before it is looked at
        groups[0].send(two, 1, 9, kLong);
        groups[1].recv(two, 0, 9, kLong);
      }
      const Caught error = caught([&] {
        other_dtype ? groups[1].recv(as_many, 0, 8, kLong) : groups[1].recv(two, 0, 8, kLong);
      });
      EXPECT_EQ(error.code, ErrorCode::invalid_argument);
      EXPECT_THAT(error.text, ::testing::HasSubstr("rank 0 sent float32[3] with tag 8"));
      EXPECT_THAT(error.text, ::testing::HasSubstr(other_dtype ? "rank 1 expects int32[3]"
                                                               : "rank 1 expects float32[2]"));
      const Caught later = caught([&] { groups[0].barrier(kLong); });
      EXPECT_EQ(later.code, ErrorCode::invalid_argument);
      EXPECT_THAT(later.text, ::testing::HasSubstr("rank 0 sent float32[3]"));
    }
}

}  // namespace
}  // namespace tutti
