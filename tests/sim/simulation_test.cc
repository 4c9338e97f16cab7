// SPDX-License-Identifier: Apache-2.0
// Ranks that are killed, stopped and cut off on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/simulation.h>
#include <tutti/tutti.h>

#include <numeric>

#include "base/idle_cores.h"
#include "base/world.h"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

const CommunicationOptions kThreeSeconds{.timeout = 3s};

// Sums of growing vectors, each checked.
void sum_often(const Group& group, int times) {
  const int n = group.size();
  for (int i = 0; i < times; ++i) {
    std::vector<float> data(size_t(100 * (i + 1)), float(group.rank() + 1));
    group.all_reduce(data, ReduceOp::SUM, kThreeSeconds);
    for (const float value : data) ASSERT_EQ(value, float(n * (n + 1) / 2));
  }
}

TEST(Simulation, RunsAProgramAsEveryRank) {
  for (const int hosts : {1, 2, 4}) {
    Simulation ranks = Group::simulated(4, {.hosts = hosts});
    std::vector<int> seen;
    for (const auto& outcome : ranks.run([&](const Group& group) {
           sum_often(group, 20);
           EXPECT_EQ(group.local_size(), 4 / hosts);
           seen.push_back(group.rank());
         }))
      EXPECT_TRUE(outcome.ok()) << outcome.error;
    EXPECT_THAT(seen, ::testing::UnorderedElementsAre(0, 1, 2, 3));
  }
}

TEST(Simulation, HasTheBitsOfOneProcess) {
  constexpr int kRanks = 6;
  const auto input = [](int rank) {
    std::vector<float> data(30'000);
    for (size_t i = 0; i < data.size(); ++i) data[i] = 1.f / float(size_t(rank) * 7 + i + 1);
    return data;
  };
  std::vector<float> expected = input(0);
  {
    const std::vector<Group> threads = Group::in_process(kRanks);
    std::vector<std::jthread> others;
    for (int r = 1; r < kRanks; ++r)
      others.emplace_back([&, r] {
        std::vector<float> data = input(r);
        threads[size_t(r)].all_reduce(data, ReduceOp::MEAN);
      });
    threads[0].all_reduce(expected, ReduceOp::MEAN);
  }
  for (const int hosts : {1, 2, 3, 6})
    Group::simulated(kRanks, {.hosts = hosts}).run([&](const Group& group) {
      std::vector<float> data = input(group.rank());
      group.all_reduce(data, ReduceOp::MEAN);
      EXPECT_EQ(data, expected) << hosts << " hosts";
    });
}

TEST(Simulation, OfOneSeedIsTheSameEveryTime) {
  const auto hash = [](uint64_t seed) {
    Simulation ranks = Group::simulated(5, {.hosts = 3, .seed = seed, .jitter = 100us});
    ranks.at(3ms, [&] { ranks.kill(2); });
    ranks.run([](const Group& group) { sum_often(group, 1000); });
    return ranks.trace_hash();
  };
  EXPECT_EQ(hash(1), hash(1));
  EXPECT_NE(hash(1), hash(2));
}

TEST(Simulation, TellsOfARankThatIsKilled) {
  for (const int hosts : {1, 2, 4}) {
    Simulation ranks = Group::simulated(4, {.hosts = hosts});
    const auto outcomes = ranks.run([&](const Group& group) {
      sum_often(group, 5);
      if (group.rank() == 2) ranks.kill(2);
      sum_often(group, 5);
    });
    EXPECT_LT(ranks.now(), 1s);
    for (const int rank : {0, 1, 3}) {
      EXPECT_EQ(outcomes[size_t(rank)].code, ErrorCode::unavailable);
      EXPECT_THAT(outcomes[size_t(rank)].error, HasSubstr("rank 2"));
    }
    EXPECT_TRUE(outcomes[2].killed);
  }
}

TEST(Simulation, TellsOfARankThatStaysSuspended) {
  Simulation ranks = Group::simulated(4, {.hosts = 2});
  ranks.at(3ms, [&] { ranks.suspend(1); });
  const auto outcomes = ranks.run([&](const Group& group) { sum_often(group, 1000); });
  EXPECT_LT(ranks.now(), 5s);
  for (const int rank : {0, 2, 3}) {
    EXPECT_EQ(outcomes[size_t(rank)].code, ErrorCode::deadline_exceeded);
    EXPECT_THAT(outcomes[size_t(rank)].error, HasSubstr("for rank 1"));
  }
  EXPECT_TRUE(outcomes[1].stuck);
  EXPECT_FALSE(outcomes[1].ok());
}

TEST(Simulation, HasAsManyHostsAsAskedFor) {
  Simulation ranks = Group::simulated(5, {.hosts = 4});
  std::vector<int> on_host;
  ranks.run([&](const Group& group) { on_host.push_back(group.local_size()); });
  EXPECT_THAT(on_host, ::testing::UnorderedElementsAre(2, 2, 1, 1, 1));
  EXPECT_NO_THROW(ranks.cut_off(3));
}

TEST(Simulation, KeepsItsPlansWhenItIsMoved) {
  const auto make = [] {
    Simulation ranks = Group::simulated(2);
    auto counted = std::make_shared<int>(0);
    ranks.at(1ms, [counted] { ++*counted; });
    return std::pair(std::move(ranks), counted);
  };
  auto [ranks, counted] = make();
  ranks.run([](const Group& group) { sum_often(group, 500); });
  EXPECT_EQ(*counted, 1);
}

TEST(Simulation, EndsARankThatThrowsAnything) {
  Simulation ranks = Group::simulated(2);
  const auto outcomes = ranks.run([](const Group& group) {
    if (group.rank() == 1) throw 1;
    group.barrier(kThreeSeconds);
  });
  EXPECT_EQ(outcomes[1].code, ErrorCode::internal);
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank 1"));
}

TEST(Simulation, GoesOnAfterAShortSuspension) {
  Simulation ranks = Group::simulated(4, {.hosts = 2});
  ranks.at(3ms, [&] { ranks.suspend(1); });
  ranks.at(2s, [&] { ranks.resume(1); });
  for (const auto& outcome : ranks.run([](const Group& group) { sum_often(group, 500); }))
    EXPECT_TRUE(outcome.ok()) << outcome.error;
  EXPECT_GT(ranks.now(), 2s);
}

TEST(Simulation, GoesOnWhenTheNetworkIsMended) {
  Simulation ranks = Group::simulated(4, {.hosts = 4});
  ranks.at(3ms, [&] { ranks.cut_off(2); });
  ranks.at(1s, [&] { ranks.mend(); });
  for (const auto& outcome : ranks.run([](const Group& group) { sum_often(group, 500); }))
    EXPECT_TRUE(outcome.ok()) << outcome.error;
}

TEST(Simulation, NamesTheHostThatIsCutOff) {
  Simulation ranks = Group::simulated(3, {.hosts = 3});
  ranks.at(3ms, [&] { ranks.cut_off(2); });
  for (const auto& outcome : ranks.run([](const Group& group) { sum_often(group, 1000); })) {
    EXPECT_FALSE(outcome.ok());
    EXPECT_THAT(outcome.error, HasSubstr("rank 2"));
  }
}

TEST(Simulation, EndsWithoutItsLauncher) {
  Simulation ranks = Group::simulated(4, {.hosts = 2});
  ranks.at(3ms, [&] { ranks.kill_launcher(); });
  for (const auto& outcome : ranks.run([](const Group& group) { sum_often(group, 1000); })) {
    EXPECT_EQ(outcome.code, ErrorCode::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("the coordination service at host0:4000 is gone"));
  }
}

TEST(Simulation, ReportsWhatARankThrows) {
  Simulation ranks = Group::simulated(3, {.hosts = 3});
  const auto outcomes = ranks.run([](const Group& group) {
    if (group.rank() == 1) throw OutOfRangeError("no more data");
    group.barrier(kThreeSeconds);
  });
  EXPECT_EQ(outcomes[1].code, ErrorCode::out_of_range);
  EXPECT_EQ(outcomes[1].error, "no more data");
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank 1"));
}

TEST(Simulation, HasGroupsOfItsOwnAndInTheBackground) {
  Simulation ranks = Group::simulated(6, {.hosts = 3});
  for (const auto& outcome : ranks.run([](const Group& group) {
         const Group another = Group::from_environment();
         EXPECT_EQ(another.size(), 6);
         const Group half = another.split(group.rank() % 2, group.rank());
         EXPECT_EQ(half.size(), 3);
         std::vector<double> data(100'000, 1), more(10, 2);
         Work work = group.all_reduce_async(data, ReduceOp::SUM);
         group.all_reduce(more, ReduceOp::SUM);  // after it
         half.all_reduce(more, ReduceOp::SUM);
         work.wait();
         EXPECT_EQ(data[0], 6);
         EXPECT_EQ(more[9], 36);
       }))
    EXPECT_TRUE(outcome.ok()) << outcome.error;
  EXPECT_FALSE(base::is_background_thread());  // it is the program's again
}

TEST(Simulation, IsSlowerWithASlowHost) {
  const auto time = [](double factor) {
    Simulation ranks = Group::simulated(4, {.hosts = 4});
    ranks.slow_down(3, factor);
    ranks.run([](const Group& group) { sum_often(group, 10); });
    return ranks.now();
  };
  EXPECT_GT(time(10), 3 * time(1));
}

TEST(Simulation, RefusesWhatItCannotBe) {
  EXPECT_THROW(Group::simulated(0), InvalidArgumentError);
  EXPECT_THROW(Group::simulated(2, {.hosts = 3}), InvalidArgumentError);
  EXPECT_THROW(Group::simulated(2, {.bandwidth = 0}), InvalidArgumentError);
  EXPECT_THROW(Group::simulated(2, {.latency = -1ns}), InvalidArgumentError);
  Simulation ranks = Group::simulated(1);
  ranks.run([](const Group&) {});
  EXPECT_THROW(ranks.run([](const Group&) {}), FailedPreconditionError);
  EXPECT_THROW(ranks.kill(1), InvalidArgumentError);
  EXPECT_THROW(ranks.cut_off(1), InvalidArgumentError);
  EXPECT_THROW(ranks.slow_down(0, 0), InvalidArgumentError);
}

}  // namespace
}  // namespace tutti::testing
