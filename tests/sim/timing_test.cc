// SPDX-License-Identifier: Apache-2.0
// What collectives cost in a simulated world.
#include "sim/timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>

namespace tutti::sim {
namespace {

using group::Collective;
using std::chrono::microseconds;

constexpr Collective kOps[] = {
    Collective::all_reduce, Collective::reduce,         Collective::broadcast,
    Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all,
    Collective::gather,     Collective::scatter,        Collective::barrier};

// Without what happens in the memory of a host.
Costs network() {
  return {.latency = microseconds(10), .overhead = microseconds(1), .bandwidth = 12.5, .sum = 0};
}

double seconds(nanoseconds time) { return double(time.count()) / 1e9; }

TEST(Timing, OfASmallAllReduceIsOneMessageEachWay) {
  TimedJob job({.hosts = 2, .costs = network()});
  const Timing timing = job.time(Collective::all_reduce, 4);
  // A greeting of 128 bytes and a head of 16 go with the 4.
  EXPECT_EQ(timing.time, microseconds(12) + nanoseconds(int64_t(148 / 12.5)));
  EXPECT_EQ(timing.bytes, 4);
  EXPECT_EQ(timing.messages.mean, 1);
  EXPECT_EQ(timing.messages.most, 1);
  EXPECT_EQ(timing.sent.mean, 148);
  EXPECT_EQ(timing.connections, 1);
  EXPECT_GT(timing.reserved, 2 * (32 << 10));
}

TEST(Timing, OfASmallAllReduceIsThatOfItsRounds) {
  for (const int hosts : {3, 17, 64, 1000}) {
    SCOPED_TRACE(hosts);
    const int floor = std::bit_width(unsigned(hosts)) - 1;
    const int rounds = std::has_single_bit(unsigned(hosts)) ? floor : floor + 2;
    TimedJob job({.hosts = hosts, .costs = network()});
    EXPECT_LE(job.time(Collective::all_reduce, 4).time, rounds * microseconds(12) * 115 / 100);
    EXPECT_LE(job.time(Collective::all_reduce, 16 << 10).messages.most, rounds);
  }
}

TEST(Timing, OfALargeAllReduceIsThatOfItsBytes) {
  for (const int hosts : {3, 4, 8, 64}) {
    SCOPED_TRACE(hosts);
    TimedJob job({.hosts = hosts, .costs = network()});
    const double bytes = 64 << 20;
    const Timing timing = job.time(Collective::all_reduce, size_t(bytes));
    const double least = 2 * (hosts - 1) / double(hosts) * bytes;
    EXPECT_NEAR(timing.sent.most / least, 1, 0.01);
    const double ideal = least / 12.5e9;
    EXPECT_GT(seconds(timing.time) / ideal, 1);
    EXPECT_LT(seconds(timing.time) / ideal, 1.25);
  }
}

TEST(Timing, CountsWhatLeavesAHostOnce) {
  TimedJob job({.hosts = 4, .ranks_per_host = 2, .costs = network()});
  const Timing timing = job.time(Collective::all_gather, 8 << 20);
  // Each of its two ranks sends a megabyte to the three other hosts.
  EXPECT_NEAR(timing.sent.mean / (2 * 3 << 20), 1, 0.01);
  EXPECT_EQ(timing.bytes, 8 << 20);
}

TEST(Timing, AGatherIsBoundByTheLinkToItsRoot) {
  TimedJob job({.hosts = 8, .costs = network()});
  const Timing timing = job.time(Collective::gather, 64 << 20);
  const double ideal = 7 / 8. * (64 << 20) / 12.5e9;
  EXPECT_NEAR(seconds(timing.time) / ideal, 1, 0.05);
  EXPECT_LT(timing.sent.mean, timing.sent.most);
}

TEST(Timing, NamesEveryCollectiveOnAnyHosts) {
  for (const int hosts : {1, 2, 3})
    for (const int ranks : {1, 3}) {
      TimedJob job({.hosts = hosts, .ranks_per_host = ranks});
      for (const Collective op : kOps)
        for (const size_t bytes : {size_t(4), size_t(20) << 10, size_t(3) << 20}) {
          SCOPED_TRACE(std::string(group::name(op)) + " of " + std::to_string(bytes));
          const Timing timing = job.time(op, bytes);
          EXPECT_GE(timing.time, microseconds(hosts > 1 ? 12 : 0));
          EXPECT_EQ(timing.messages.mean > 0, hosts > 1);
        }
    }
}

TEST(Timing, DependsOnTheSeedAlone) {
  const auto time = [](uint64_t seed) {
    Costs costs = network();
    costs.jitter = microseconds(5);
    TimedJob job({.hosts = 5, .ranks_per_host = 2, .seed = seed, .costs = costs});
    return job.time(Collective::all_reduce, 1 << 20).time;
  };
  EXPECT_EQ(time(1), time(1));
  EXPECT_NE(time(1), time(2));
}

TEST(Timing, TakesLongerIfASwitchIsTooSmall) {
  const auto time = [](double oversubscribed) {
    Costs costs = network();
    costs.oversubscribed = oversubscribed;
    costs.hosts_per_switch = 4;
    TimedJob job({.hosts = 8, .costs = costs});
    return seconds(job.time(Collective::all_to_all, 64 << 20).time);
  };
  const double part = (8 << 20) / 12.5e9;
  const auto is_bound_by = [](double least) {
    return ::testing::AllOf(::testing::Ge(least), ::testing::Le(least * 1.2 + 1));
  };
  EXPECT_THAT(time(1) / part, is_bound_by(7));
  EXPECT_THAT(time(1.0001) / part, is_bound_by(7));  // a message waits only for those before it
  EXPECT_THAT(time(4) / part, is_bound_by(4 * 4));   // that leave a switch, as on one link
}

TEST(Timing, TakesLongerIfTheCachesOfOneMachineAreTooSmall) {
  const auto time = [](double cache) {
    Costs costs = network();
    costs.copy = 1;
    costs.cache = cache;
    costs.contention = 0.5;
    TimedJob job({.hosts = 3, .costs = costs});
    return seconds(job.time(Collective::all_to_all, 30 << 20).time);
  };
  const double fast = time(0);
  EXPECT_EQ(time(90 << 20), fast);                // all that three ranks have
  EXPECT_NEAR(time(45 << 20) / fast, 1.5, 0.01);  // two others slow down half of it
}

TEST(Timing, CountsTheCopiesOfTheSystem) {
  Costs costs = network();
  costs.copy = 1;  // slower than the network
  TimedJob job({.hosts = 2, .costs = costs});
  const double bytes = 16 << 20;
  EXPECT_NEAR(seconds(job.time(Collective::all_to_all, size_t(bytes)).time), bytes / 1e9, 0.002);
}

TEST(Timing, IsThatOfRank0IfAskedFor) {
  TimedJob all({.hosts = 6, .costs = network()});
  TimedJob one({.hosts = 6, .costs = network(), .as_bench = true});
  EXPECT_LE(one.time(Collective::reduce, 4).time, 2 * all.time(Collective::reduce, 4).time);
  EXPECT_GT(one.time(Collective::all_reduce, 4).time, microseconds(1));
}

long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(BareWorld, HoldsThirtyTwoThousandRanks) {
  constexpr int kRanks = 32768;
  const long before = peak_kib();
  World world({.costs = network(), .moves_data = false});
  int done = 0;
  std::vector<char> arrived(kRanks);
  for (int r = 0; r < kRanks; ++r) world.add_process(r / 8);
  for (int r = 0; r < kRanks; ++r)
    world.start(r, [&, r] {
      const int next = (r + 8) % kRanks;
      world.send(r, next, 64, [&, next] {
        arrived[size_t(next)] = 1;
        world.wake(&arrived[size_t(next)]);
      });
      while (!arrived[size_t(r)]) world.wait(&arrived[size_t(r)], World::Time::max());
      ++done;
    });
  world.run([&] { return done == kRanks; });
  EXPECT_EQ(done, kRanks);
  EXPECT_LT(peak_kib() - before, 2 << 20);
  EXPECT_GT(world.now() - world.start_time(), microseconds(12));
}

}  // namespace
}  // namespace tutti::sim
