// SPDX-License-Identifier: Apache-2.0
// Fault schedules: what each rank of a simulated job sees must be what docs/failures.md promises.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>

#include "sim/campaign.h"
#include "sim/trial.h"

namespace tutti::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;  // twenty times as slow
#else
constexpr bool kSanitized = false;
#endif
constexpr int kHang = kSanitized ? 300 : 60;  // seconds, on a busy machine

bool is_long() {
  const char* const text = std::getenv("TUTTI_LONG_TESTS");
  return !kSanitized && text && *text && std::strcmp(text, "0") != 0 &&
         std::strcmp(text, "OFF") != 0;
}

std::string text_of(const std::vector<Finding>& findings, const char* more = "") {
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("again: tutti simulate --faults --seeds {0}:{0}{1} --trace\n", finding.seed,
                        more);
    for (const std::string& violation : finding.violations) text += "  " + violation + "\n";
  }
  return text;
}

int cores() { return std::max(1, int(std::thread::hardware_concurrency())); }

TEST(FaultSchedules, KeepTheFailureContract) {
  const std::vector<Finding> findings =
      run({.first = 0, .last = is_long() ? 19'999u : 499u, .jobs = cores(), .seconds = kHang});
  EXPECT_THAT(findings, IsEmpty()) << text_of(findings);
}

TEST(FaultSchedules, HaveTheBitsOfOneProcessInAnyLayout) {
  const std::vector<Finding> findings = run({.first = 0,
                                             .last = is_long() ? 1'999u : 99u,
                                             .jobs = cores(),
                                             .faults = false,
                                             .seconds = kHang});
  EXPECT_THAT(findings, IsEmpty()) << text_of(findings, " --none");
}

// Schedules that failed once. They stand for the same faults as long as drawing stays the same.
class FoundSchedules : public ::testing::TestWithParam<uint64_t> {};

TEST_P(FoundSchedules, KeepTheFailureContract) {
  const Schedule schedule = draw(GetParam());
  EXPECT_THAT(run(schedule).violations, IsEmpty()) << schedule.to_string();
}

// A rank that settles a mismatch did not hear that the group had failed.
INSTANTIATE_TEST_SUITE_P(LateNews, FoundSchedules, ::testing::Values(244, 1105, 1137, 1464));
// Ranks took one that had left for the culprit, and not the one that it left for.
INSTANTIATE_TEST_SUITE_P(MaskedReason, FoundSchedules,
                         ::testing::Values(179, 683, 804, 2091, 2270, 2337, 61010));
// Ranks took one that had left for dead.
INSTANTIATE_TEST_SUITE_P(TakenForDead, FoundSchedules,
                         ::testing::Values(103, 658, 741, 761, 10031));
// Ranks accused one that waited itself; those on a host that could not send accused the others.
INSTANTIATE_TEST_SUITE_P(WrongCulprit, FoundSchedules,
                         ::testing::Values(3477, 3778, 7610, 8307, 9404, 9549, 21928, 25397));
// A rank that had left made no progress, so that ranks that connected to it did not hear that.
INSTANTIATE_TEST_SUITE_P(ConnectedTooLate, FoundSchedules,
                         ::testing::Values(170, 2012, 2044, 12682, 19837, 19968));
// Ranks on a host that could not send took the probes of others for replies, and accused them.
INSTANTIATE_TEST_SUITE_P(HeardButNotHearing, FoundSchedules, ::testing::Values(45785));

TEST(FaultSchedules, SuspectTheOwnNetworkWhileAGroupIsMade) {
  const Schedule schedule{
      .seed = 1,
      .hosts = {0, 1, 2},
      .timeout = std::chrono::seconds(5),
      .heartbeat_timeout = std::chrono::seconds(3),
      .operations = {{.kind = Operation::Kind::barrier}, {.kind = Operation::Kind::duplicate}},
      .faults = {{.kind = Fault::Kind::deafen, .host = 1, .operation = 1, .trigger = 1}}};
  const Trial trial = run(schedule);
  EXPECT_THAT(trial.violations, IsEmpty());
  EXPECT_THAT(trial.ranks[1].error, HasSubstr("the network of its own host is cut off"));
}

TEST(FaultSchedules, OfTheSameSeedHaveTheSameTrace) {
  std::set<uint64_t> hashes;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Trial one = run(draw(seed)), other = run(draw(seed), true);
    EXPECT_EQ(one.hash, other.hash) << "seed " << seed;
    EXPECT_EQ(one.time, other.time) << "seed " << seed;
    EXPECT_EQ(other.trace, run(draw(seed), true).trace) << "seed " << seed;
    hashes.insert(one.hash);
  }
  EXPECT_EQ(hashes.size(), 40u);
}

TEST(FaultSchedules, AreOfEveryKind) {
  std::set<Fault::Kind> faults;
  std::set<Operation::Kind> operations;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Schedule schedule = draw(seed);
    for (const Fault& fault : schedule.faults) faults.insert(fault.kind);
    for (const Operation& operation : schedule.operations) operations.insert(operation.kind);
  }
  EXPECT_EQ(faults.size(), size_t(Fault::Kind::compute) + 1);
  EXPECT_EQ(operations.size(), size_t(Operation::Kind::duplicate) + 1);
}

TEST(FaultSchedules, AreJudgedByWhatWasInjected) {
  Schedule schedule{.seed = 1,
                    .hosts = {0, 0, 1},
                    .timeout = std::chrono::seconds(3),
                    .heartbeat_timeout = std::chrono::seconds(10),
                    .operations = std::vector<Operation>(3)};
  EXPECT_THAT(run(schedule).violations, IsEmpty());
  schedule.faults = {{.kind = Fault::Kind::kill, .rank = 2, .operation = 0, .trigger = 2}};
  Trial trial = run(schedule);
  EXPECT_THAT(trial.violations, IsEmpty());
  ASSERT_FALSE(trial.ranks[0].calls.empty());
  EXPECT_EQ(trial.ranks[0].calls.back().code, ErrorCode::unavailable);
  // The same errors are wrong if another rank was killed.
  trial.schedule.faults[0].rank = 1;
  EXPECT_FALSE(judge(trial).empty());
}

}  // namespace
}  // namespace tutti::sim
