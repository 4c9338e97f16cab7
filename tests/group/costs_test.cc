// SPDX-License-Identifier: Apache-2.0
// Groups go the way that their costs ask for, with the same bits, and say which.
#include <map>
#include <mutex>

#include "group/hosts.h"
#include "group/ranks.h"

namespace tutti {
namespace {

using namespace testing;
using group::Way;

constexpr int kRanks = 8;

struct Result {
  std::vector<float> sum;
  Way way;
  friend bool operator==(const Result&, const Result&) = default;
};

// The same on all ranks of as many hosts.
Result all_reduce(size_t count, const base::Costs& costs) {
  const auto groups = on_hosts(
      kRanks, [](int rank) { return rank; }, std::make_shared<TestNetwork>(), costs);
  std::mutex mutex;
  std::vector<Result> results;
  on_ranks(groups, [&](const Group& group) {
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = 1.f / float(i + 3 * size_t(group.rank()) + 1);
    group.all_reduce(data, ReduceOp::SUM, kLong);
    std::lock_guard lock(mutex);
    results.push_back({data, detail::GroupAccess::impl(group).backend().way()});
  });
  for (const Result& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

TEST(GroupCosts, AskForAnotherWayWithTheSameBits) {
  const Result small = all_reduce(10, {}), small_direct = all_reduce(10, {.message = 1});
  EXPECT_EQ(small.way, Way::doubling);
  EXPECT_EQ(small_direct.way, Way::whole);
  EXPECT_EQ(small.sum, small_direct.sum);
  const Result large = all_reduce(100'000, {.message = 1}),
               in_rounds = all_reduce(100'000, {.message = 1e6});
  EXPECT_EQ(large.way, Way::shares);
  EXPECT_EQ(in_rounds.way, Way::halving);
  EXPECT_EQ(large.sum, in_rounds.sum);
}

TEST(GroupCosts, DecideBetweenTheRanksOfAProcess) {
  for (const double phase : {0., 1e6}) {
    Groups groups;
    for (auto& backend : group::make_in_process(4, {.phase = phase}))
      groups.push_back(
          detail::GroupAccess::make(std::make_shared<detail::GroupImpl>(std::move(backend), 0)));
    on_ranks(groups, [&](const Group& group) {
      std::vector<float> data(4096, 1);
      group.all_reduce(data, ReduceOp::SUM, kLong);
      EXPECT_EQ(data.back(), 4);
      EXPECT_EQ(detail::GroupAccess::impl(group).backend().way(), phase ? Way::whole : Way::shares);
    });
  }
}

TEST(GroupWay, IsThatOfTheLastCollective) {
  const auto groups = on_hosts(kRanks, [](int rank) { return rank; });
  on_ranks(groups, [&](const Group& group) {
    const group::Backend& backend = detail::GroupAccess::impl(group).backend();
    const Way& way = backend.way();
    std::vector<float> few(kRanks, 1), many(kRanks * 10'000, 1), part(10'000), one(1);
    std::vector<float> all(part.size() * kRanks);
    EXPECT_EQ(way, Way::only);
    group.barrier(kLong);
    EXPECT_EQ(way, Way::rounds);
    group.broadcast(few, 1, kLong);
    EXPECT_EQ(way, Way::rounds);
    group.broadcast(many, 1, kLong);
    EXPECT_EQ(way, Way::relay);
    group.all_gather(part, all, kLong);
    EXPECT_EQ(way, Way::relay);
    group.gather(part, all, 1, kLong);
    EXPECT_EQ(way, Way::direct);
    group.scatter(all, part, 1, kLong);
    EXPECT_EQ(way, Way::direct);
    group.all_to_all(few, few, kLong);
    EXPECT_EQ(way, Way::handshake);
    group.reduce_scatter(many, part, ReduceOp::SUM, kLong);
    EXPECT_EQ(way, Way::direct);
    group.reduce_scatter(few, one, ReduceOp::SUM, kLong);
    EXPECT_EQ(way, Way::doubling);
  });
}

TEST(GroupWay, IsInTheRecordOfAnOperationThatFails) {
  const auto groups = on_hosts(kRanks, [](int rank) { return rank; });
  const auto errors = errors_on_ranks(groups, [](const Group& group) {
    std::vector<float> data(100, 1);
    group.barrier(kLong);
    if (group.rank() != 3)
      group.all_reduce(data, ReduceOp::SUM, {.timeout = std::chrono::milliseconds(200)});
  });
  EXPECT_THAT(errors[0].text,
              ::testing::HasSubstr("the last operations of rank 0: #1 barrier [rounds], #2 "
                                   "all_reduce(float32[100], SUM) [doubling] (not done)"));
}

}  // namespace
}  // namespace tutti
