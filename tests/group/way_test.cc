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
  for (const size_t hosts : {2u, 3u}) {
    EXPECT_EQ(choose_way(of(hosts, 0), {}), Way::whole);
    EXPECT_EQ(choose_way(of(hosts, 32 << 10), {}), Way::whole);
    EXPECT_EQ(choose_way(of(hosts, 256 << 10), {}), hosts == 2 ? Way::whole : Way::shares);
    EXPECT_EQ(choose_way(of(hosts, 64 << 20), {}), Way::shares);
  }
}

TEST(Way, OfManyHostsDependsOnTheSize) {
  for (const size_t hosts : {16u, 64u, 4096u}) {
    EXPECT_EQ(choose_way(of(hosts, 4), {}), Way::doubling);
    EXPECT_EQ(choose_way(of(hosts, 128 << 10), {}), Way::halving);
    EXPECT_EQ(choose_way(of(hosts, 64 << 20), {}), Way::shares);
  }
  EXPECT_EQ(choose_way(of(16, 1 << 20), {}), Way::shares);
  EXPECT_EQ(choose_way(of(512, 1 << 20), {}), Way::halving);
  EXPECT_EQ(choose_way(of(17, 4), {}), Way::doubling);
  EXPECT_EQ(choose_way(of(17, 128 << 10), {}), Way::shares);  // halving is for powers of two
}

TEST(Way, DependsOnTheCosts) {
  EXPECT_EQ(choose_way(of(16, 4), {.message = 100}), Way::whole);
  EXPECT_EQ(choose_way(of(16, 1 << 20), {.message = 50'000}), Way::halving);
  EXPECT_EQ(choose_way(of(16, 4), {.latency = 1e6}), Way::whole);
}

TEST(Way, IsDirectIfTheHostsDoNotHoldOneRangeEach) {
  WayOptions options = of(16, 4);
  options.leaves_per_host = 0;
  EXPECT_EQ(choose_way(options, {}), Way::whole);
}

TEST(Way, IsDirectIfSumsOfSomeLeavesCannotBeTold) {
  WayOptions options = of(16, 4);
  options.sums_apart = false;
  EXPECT_EQ(choose_way(options, {}), Way::whole);
}

TEST(WayOfParts, IsDirectAmongFewRanksAndInRoundsAmongMany) {
  const auto way = [](size_t hosts, size_t ranks, size_t bytes) {
    return choose_way_of_parts(
        {Collective::all_gather, hosts, ranks, bytes, bytes * ranks, 32 << 10}, {});
  };
  EXPECT_EQ(way(2, 2, 4), Way::handshake);
  EXPECT_EQ(way(3, 3, 4), Way::handshake);
  EXPECT_EQ(way(2, 16, 4), Way::rounds);
  EXPECT_EQ(way(16, 16, 4), Way::rounds);
  EXPECT_EQ(way(17, 17, 4), Way::rounds);
  EXPECT_EQ(way(4096, 4096, 0), Way::rounds);
  EXPECT_EQ(way(64, 64, 4 << 10), Way::handshake);  // more than fits a greeting
}

TEST(WayOfParts, DependsOnTheCostsAndTheCollective) {
  const auto way = [](Collective kind, size_t bytes, const Costs& costs = {}) {
    return choose_way_of_parts({kind, 16, 16, bytes, bytes * 16, 32 << 10}, costs);
  };
  EXPECT_EQ(way(Collective::barrier, 0), Way::rounds);
  EXPECT_EQ(way(Collective::barrier, 0, {.message = 100}), Way::handshake);
  EXPECT_EQ(way(Collective::all_to_all, 4), Way::handshake);
  EXPECT_EQ(way(Collective::broadcast, 1 << 20), Way::relay);
  EXPECT_EQ(way(Collective::all_gather, 1 << 20), Way::relay);
  for (const Collective kind : {Collective::gather, Collective::scatter, Collective::all_to_all,
                                Collective::reduce_scatter})
    EXPECT_EQ(way(kind, 1 << 20), Way::direct) << name(kind);
}

TEST(WayWithinAHost, IsInSharesIfRanksAreManyOrTheDataIsLarge) {
  const auto way = [](size_t ranks, size_t bytes, const Costs& costs = {}) {
    return bytes > most_whole_within_host(ranks, costs) ? Way::shares : Way::whole;
  };
  for (const size_t ranks : {2u, 4u, 8u, 16u, 64u}) {
    EXPECT_EQ(way(ranks, 1 << 10), Way::whole) << ranks;
    EXPECT_EQ(way(ranks, 128 << 10), Way::shares) << ranks;
    EXPECT_EQ(way(ranks, 16 << 10), ranks > 2 ? Way::shares : Way::whole) << ranks;
  }
  EXPECT_EQ(way(16, 16 << 10, {.phase = 1e6}), Way::whole);
  EXPECT_EQ(way(16, 1 << 10, {.phase = 0, .phase_per_rank = 0}), Way::shares);
}

// A large reduction has 8 blocks, unless they become smaller than its shards should be, or larger
// than there is room for.
TEST(Block, IsAnEighthWithinItsLimits) {
  EXPECT_EQ(choose_block({.hosts = 2, .bytes = 16 << 20, .room = 4 << 20}), size_t{2 << 20});
  EXPECT_EQ(choose_block({.hosts = 2, .bytes = 1 << 20, .room = 4 << 20}), size_t{512 << 10});
  EXPECT_EQ(choose_block({.hosts = 2, .bytes = 64 << 20, .room = 1 << 20}), size_t{1 << 20});
}

}  // namespace
}  // namespace tutti::group
