// SPDX-License-Identifier: Apache-2.0
// Groups made of groups, and several groups at once.
#include <atomic>
#include <numeric>

#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;

std::vector<int> gathered(const Group& group, int value) {
  return group.all_gather_uneven(std::vector{value}, kLong);
}

class Split : public Ranks {};
TUTTI_ON_RANKS(Split);

TEST_P(Split, PutsTheSameColorsTogether) {
  on_ranks(groups, [&](const Group& group) {
    const int color = group.rank() % 2;
    const Group part = group.split(color, 0);
    std::vector<int> expected;
    for (int r = color; r < n; r += 2) expected.push_back(r);
    EXPECT_EQ(part.size(), int(expected.size()));
    EXPECT_EQ(part.rank(), group.rank() / 2);
    EXPECT_EQ(part.backend(), group.backend());
    EXPECT_EQ(gathered(part, group.rank()), expected);
    // The whole group goes on as before.
    EXPECT_EQ(gathered(group, 1), std::vector<int>(size_t(n), 1));
  });
}

TEST(LocalRank, CountsTheRanksOfTheGroupOnTheSameHost) {
  on_ranks(Group::in_process(3), [](const Group& group) {
    EXPECT_EQ(group.local_rank(), group.rank());
    EXPECT_EQ(group.local_size(), 3);
  });
  // Hosts 0 0 0 1 1 1 1; of the odd ranks 0 1 1, in reverse order.
  on_ranks(on_hosts(7, [](int rank) { return rank / 3 ? 1 : 0; }), [](const Group& group) {
    const int rank = group.rank();
    EXPECT_EQ(group.local_rank(), rank < 3 ? rank : rank - 3);
    EXPECT_EQ(group.local_size(), rank < 3 ? 3 : 4);
    const Group part = group.split(rank % 2, -rank);
    if (rank % 2 == 0) return;
    EXPECT_EQ(part.local_rank(), rank == 3 ? 1 : 0);
    EXPECT_EQ(part.local_size(), rank == 1 ? 1 : 2);
  });
}

TEST_P(Split, OrdersByKeyThenByRank) {
  on_ranks(groups, [&](const Group& group) {
    const Group reversed = group.split(-7, -group.rank());
    EXPECT_EQ(reversed.rank(), n - 1 - group.rank());
    std::vector<int> expected(static_cast<size_t>(n));
    std::iota(expected.rbegin(), expected.rend(), 0);
    EXPECT_EQ(gathered(reversed, group.rank()), expected);
    const Group same = reversed.split(1 << 30, 5);  // equal keys: the order stays
    EXPECT_EQ(same.rank(), reversed.rank());
    const Group back = same.split(0, group.rank());
    EXPECT_EQ(back.rank(), group.rank());
    // Sums follow the order of the new group, on every path.
    for (const int64_t count : {9, 50'000}) {
      const Sample sample(DType::float32, ReduceOp::SUM, count, n);
      Buffer buffer(count, DType::float32, sample.inputs[size_t(reversed.rank())]);
      const Tensor window = same.empty({count}, DType::float32);
      std::memcpy(window.data(), buffer.data(), window.num_bytes());
      reversed.all_reduce(buffer.tensor(), ReduceOp::SUM, kLong);
      EXPECT_TRUE(buffer.is(sample.expected));
      same.all_reduce(window, ReduceOp::SUM, kLong);
      EXPECT_TRUE(same_bits(DType::float32, window.data(), sample.expected.data(), size_t(count)));
    }
  });
}

TEST_P(Split, GivesEachAGroupOfItsOwn) {
  on_ranks(groups, [&](const Group& group) {
    const Group alone = group.split(group.rank(), 0);
    EXPECT_EQ(alone.size(), 1);
    std::vector<float> data{float(group.rank())};
    alone.all_reduce(data, ReduceOp::SUM, kLong);
    EXPECT_EQ(data[0], float(group.rank()));
  });
}

TEST_P(Split, WorksOnPartsOfParts) {
  on_ranks(groups, [&](const Group& group) {
    Group part = group;
    std::vector<int> members(static_cast<size_t>(n));
    std::iota(members.begin(), members.end(), 0);
    while (part.size() > 1) {  // the upper half turns around
      const int half = part.size() / 2;
      const bool upper = part.rank() >= half;
      std::vector<int> next(members.begin() + (upper ? half : 0),
                            upper ? members.end() : members.begin() + half);
      if (upper) std::ranges::reverse(next);
      part = part.split(upper, upper ? -part.rank() : part.rank());
      members = next;
      ASSERT_EQ(gathered(part, group.rank()), members);
      std::vector<int> data(30'000, group.rank());
      part.all_reduce(data, ReduceOp::MAX, kLong);
      ASSERT_THAT(data, ::testing::Each(*std::ranges::max_element(members)));
    }
  });
}

TEST_P(Split, PartsMayBeDroppedInAnyOrder) {
  on_ranks(groups, [&](const Group& group) {
    std::optional<Group> kept;
    for (int round = 0; round < 30; ++round) {
      Group part = group.split(0, round % 2 ? -group.rank() : 0);
      const Group other = group.split(group.rank() % 2, 0);
      std::vector<int> data(round % 5 == 0 ? 30'000 : 4, 1);
      part.all_reduce(data, ReduceOp::SUM, kLong);
      ASSERT_THAT(data, ::testing::Each(n));
      if (kept) {
        std::vector<int> more{1};
        kept->all_reduce(more, ReduceOp::SUM, kLong);
        ASSERT_EQ(more[0], n);
      }
      if (round % 3 == group.rank() % 3) kept.reset();  // at different times on different ranks
      kept = part;
    }
  });
}

TEST(Parts, OutliveTheWhole) {
  Groups groups = Group::in_process(4), parts(groups);
  on_threads(4, [&](size_t r) {
    parts[r] = groups[r].split(int(r) % 2, 0);
    groups[r] = parts[r];  // the whole is left
  });
  on_ranks(parts, [&](const Group& part) {
    std::vector<int> data(40'000, 1);
    part.all_reduce(data, ReduceOp::SUM, kLong);
    EXPECT_THAT(data, ::testing::Each(2));
    const Group whole = part.split(0, 0);
    EXPECT_EQ(whole.size(), 2);
  });
}

TEST(Parts, ARankThatDoesNotSplitIsNamedInTheError) {
  const Groups groups = Group::in_process(2);
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    if (group.rank() == 0) (void)group.split(0, 0);
    std::vector<float> data(3);
    if (group.rank() == 1) group.all_reduce(data, ReduceOp::SUM, kLong);
  });
  expect_everywhere(errors, ErrorCode::invalid_argument,
                    {"rank 0", "rank 1 calls all_reduce(float32[3], SUM)"});
}

// A group fails alone.
TEST(Parts, FailAlone) {
  const Groups groups = Group::in_process(4);
  on_ranks(groups, [&](const Group& group) {
    const Group part = group.split(group.rank() % 2, 0), sibling = group.split(0, 0);
    std::vector<float> data{1};
    if (group.rank() % 2 == 0) {
      const Caught error = caught([&] {
        part.rank() == 0 ? part.barrier(kLong) : part.all_reduce(data, ReduceOp::SUM, kLong);
      });
      EXPECT_EQ(error.code, ErrorCode::invalid_argument) << error.text;
    } else {
      part.all_reduce(data, ReduceOp::SUM, kLong);
      EXPECT_EQ(data[0], 2);
    }
    std::vector<float> all{1}, others{1};
    group.all_reduce(all, ReduceOp::SUM, kLong);
    sibling.all_reduce(others, ReduceOp::SUM, kLong);
    EXPECT_EQ(all[0], 4);
    EXPECT_EQ(others[0], 4);
    // A part can be made anew.
    const Group again = group.split(group.rank() % 2, 0);
    again.barrier(kLong);
  });
}

// A failed whole does not reach its parts either.
TEST(Parts, DoNotFailWithTheWhole) {
  const Groups groups = Group::in_process(2);
  on_ranks(groups, [&](const Group& group) {
    const Group part = group.split(0, 0);
    EXPECT_TRUE(caught([&] {
                  group.broadcast(std::vector<int>(size_t(group.rank() + 1)), 0, kLong);
                }).code);
    std::vector<int> data{1};
    part.all_reduce(data, ReduceOp::SUM, kLong);
    EXPECT_EQ(data[0], 2);
  });
}

// Two threads of each rank, each with a group of its own, never wait for each other.
TEST(Groups, ServeTwoThreadsPerRankAtOnce) {
  for (const World& world : kWorlds) {
    const Groups first = world.make(4);
    Groups second(first);
    on_ranks(first, [&](const Group& group) {
      second[size_t(group.rank())] = group.split(0, -group.rank());
    });
    const int rounds = TUTTI_TEST_SANITIZED ? 200 : 500;
    on_threads(8, [&](size_t i) {
      const Group& group = (i % 2 ? second : first)[i / 2];
      for (int round = 0; round < rounds; ++round) {
        // In different orders on the two.
        std::vector<int> data((round * (i % 2 ? 3 : 5)) % 7 == 0 ? 20'000 : 5, round);
        group.all_reduce(data, ReduceOp::SUM, kLong);
        ASSERT_EQ(std::ranges::count(data, 4 * round), std::ssize(data));
        if (round % 16 == 0) group.barrier(kLong);
      }
    });
  }
}

// Separate groups of one process know nothing of each other.
TEST(Groups, OfOneProcessAreIndependent) {
  std::vector<Groups> all;
  for (const int n : {1, 2, 3}) all.push_back(Group::in_process(n));
  on_threads(all.size(), [&](size_t i) {
    on_ranks(all[i], [&](const Group& group) {
      for (int round = 0; round < 300; ++round) {
        std::vector<int64_t> data(10, int64_t(i));
        group.all_reduce(data, ReduceOp::SUM, kLong);
        ASSERT_EQ(data[9], int64_t(i) * group.size());
      }
    });
  });
}

// Threads may share one rank's handle, or copies of it, if all ranks see the same order.
TEST(Groups, MayBeUsedByOneThreadAfterAnother) {
  const Groups groups = Group::in_process(3);
  on_ranks(groups, [&](const Group& group) {
    for (int i = 0; i < 20; ++i) {
      std::thread([copy = group, i] {
        std::vector<int> data{i};
        copy.all_reduce(data, ReduceOp::SUM, kLong);
        EXPECT_EQ(data[0], 3 * i);
      }).join();
    }
  });
}

}  // namespace
}  // namespace tutti
