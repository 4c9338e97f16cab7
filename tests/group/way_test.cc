// SPDX-License-Identifier: Apache-2.0
// Reductions in a logarithmic number of rounds, and the choice of the way.
#include "group/plan/way.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "group/plan/doubling.h"

namespace tutti::group {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<size_t> leaves_of(const std::vector<Subtree>& subtrees) {
  std::vector<size_t> leaves;
  for (const Subtree& subtree : subtrees)
    for (size_t i = 0; i < subtree.leaves; ++i) leaves.push_back(subtree.first + i);
  return leaves;
}

std::vector<size_t> leaves_of(const std::vector<Subtree>& one, const std::vector<Subtree>& other) {
  std::vector<size_t> leaves = leaves_of(one);
  std::ranges::copy(leaves_of(other), std::back_inserter(leaves));
  std::ranges::sort(leaves);
  return leaves;
}

TEST(Doubling, BringsEveryLeafToEveryHostOnce) {
  for (const size_t per_host : {1u, 2u, 3u, 7u, 8u, 12u})
    for (int hosts = 2; hosts < 40; ++hosts) {
      std::vector<size_t> all(size_t(hosts) * per_host);
      for (size_t i = 0; i < all.size(); ++i) all[i] = i;
      for (int host = 0; host < hosts; ++host) {
        const Doubling plan = doubling_of(host, hosts, per_host);
        if (plan.gives_to >= 0) {
          EXPECT_EQ(doubling_of(plan.gives_to, hosts, per_host).takes_from, host);
          EXPECT_EQ(doubling_of(plan.gives_to, hosts, per_host).taken, plan.own);
          continue;
        }
        std::vector<size_t> known = leaves_of(plan.own, plan.taken);
        for (const Doubling::Round& round : plan.rounds) {
          EXPECT_EQ(leaves_of(round.mine), known) << host << " of " << hosts;
          known = leaves_of(round.mine, round.theirs);
        }
        EXPECT_EQ(known, all) << host << " of " << hosts;
      }
    }
}

TEST(Doubling, HasTheOtherSideOfEveryRound) {
  for (const int hosts : {4, 7, 16, 21})
    for (int host = 0; host < hosts; ++host) {
      const Doubling plan = doubling_of(host, hosts, 3);
      for (size_t i = 0; i < plan.rounds.size(); ++i) {
        const Doubling::Round other = doubling_of(plan.rounds[i].peer, hosts, 3).rounds[i];
        EXPECT_EQ(other.peer, host);
        EXPECT_EQ(other.theirs, plan.rounds[i].mine);
      }
    }
}

TEST(Doubling, SendsOneValueIfAllArePowersOfTwo) {
  for (const Doubling::Round& round : doubling_of(11, 64, 4).rounds) {
    EXPECT_THAT(round.mine, SizeIs(1));
    EXPECT_THAT(round.theirs, SizeIs(1));
  }
  EXPECT_THAT(doubling_of(1, 4, 1).rounds[1].mine, ElementsAre(Subtree{0, 2}));
}

TEST(Doubling, SendsNoMoreValuesThanItSays) {
  for (size_t per_host = 1; per_host < 32; ++per_host)
    for (int hosts = 2; hosts < 36; ++hosts)
      for (int host = 0; host < hosts; ++host) {
        const Doubling plan = doubling_of(host, hosts, per_host);
        size_t most = std::max(plan.own.size(), plan.taken.size());
        for (const auto& round : plan.rounds) most = std::max(most, round.mine.size());
        ASSERT_LE(most, most_values_of_doubling(size_t(hosts), per_host))
            << per_host << " leaves on each of " << hosts;
      }
}

WayOptions of(size_t hosts, size_t bytes) {
  return {.hosts = hosts,
          .leaves_per_host = 1,
          .bytes = bytes,
          .direct_values = 1,
          .wide = 1,
          .most = 1,
          .most_told = 32 << 10,
          .most_halved = 8 << 20,
          .sums_apart = true};
}

TEST(Way, OfFewHostsIsDirect) {
  for (const size_t hosts : {2u, 3u})
    for (const size_t bytes : {4u, 64u << 10, 64u << 20})
      EXPECT_EQ(choose_way(of(hosts, bytes)), Way::direct) << hosts << ' ' << bytes;
}

TEST(Sharing, IsDirectAmongFewRanksAndInRoundsAmongMany) {
  const auto in_rounds = [](size_t hosts, size_t ranks, size_t bytes) {
    return shares_in_rounds({hosts, ranks, bytes, bytes * ranks, 32 << 10});
  };
  EXPECT_FALSE(in_rounds(1, 8, 4));
  EXPECT_FALSE(in_rounds(2, 2, 4));
  EXPECT_FALSE(in_rounds(3, 3, 4));
  EXPECT_TRUE(in_rounds(2, 16, 4));
  EXPECT_TRUE(in_rounds(16, 16, 4));
  EXPECT_TRUE(in_rounds(17, 17, 4));
  EXPECT_TRUE(in_rounds(4096, 4096, 0));
  EXPECT_FALSE(in_rounds(64, 64, 4 << 10));  // more than fits a greeting
}

TEST(Way, OfManyHostsDependsOnTheSize) {
  for (const size_t hosts : {16u, 64u, 4096u}) {
    EXPECT_EQ(choose_way(of(hosts, 4)), Way::doubling);
    EXPECT_EQ(choose_way(of(hosts, 128 << 10)), Way::halving);
    EXPECT_EQ(choose_way(of(hosts, 64 << 20)), Way::direct);
  }
  EXPECT_EQ(choose_way(of(16, 1 << 20)), Way::direct);
  EXPECT_EQ(choose_way(of(512, 1 << 20)), Way::halving);
  EXPECT_EQ(choose_way(of(17, 4)), Way::doubling);
  EXPECT_EQ(choose_way(of(17, 128 << 10)), Way::direct);  // halving is for powers of two
}

TEST(Way, IsDirectIfTheHostsDoNotHoldOneRangeEach) {
  WayOptions options = of(16, 4);
  options.leaves_per_host = 0;
  EXPECT_EQ(choose_way(options), Way::direct);
}

TEST(Way, IsDirectIfSumsOfSomeLeavesCannotBeTold) {
  WayOptions options = of(16, 4);
  options.sums_apart = false;
  EXPECT_EQ(choose_way(options), Way::direct);
}

TEST(Shares, AreWorthTheirPhasesIfRanksAreManyOrTheDataIsLarge) {
  for (const size_t ranks : {2u, 4u, 8u, 16u, 64u}) {
    EXPECT_FALSE(is_summed_in_shares(ranks, 1 << 10)) << ranks;
    EXPECT_TRUE(is_summed_in_shares(ranks, 128 << 10)) << ranks;
    EXPECT_EQ(is_summed_in_shares(ranks, 16 << 10), ranks > 2) << ranks;
  }
}

}  // namespace
}  // namespace tutti::group
