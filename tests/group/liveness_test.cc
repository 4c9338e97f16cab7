// SPDX-License-Identifier: Apache-2.0
// Deadlines, the latch of the first failure, and what is known of peers.
#include "group/liveness/liveness.h"

#include <thread>

#include "support/expect.h"

namespace tutti::group {
namespace {

using namespace std::chrono_literals;

// Ranks of a job, as a test says they are.
struct JobPeers : PeerMonitor {
  std::string address(int rank) const override { return "host:" + std::to_string(5000 + rank); }
  int job_rank(int rank) const override { return rank; }
  std::string loss(int rank) const override { return rank == lost ? "has died" : ""; }
  std::optional<cluster::Failure> failure() const override { return of_job; }
  const std::atomic<bool>* alarm() const override { return &set; }
  std::string isolation() const override { return isolated; }
  bool crowded() const override { return true; }
  bool separate_processes() const override { return true; }

  int lost = -1;
  std::optional<cluster::Failure> of_job;
  std::string isolated;
  std::atomic<bool> set{true};
};

class LivenessTest : public ::testing::Test {
 protected:
  LivenessTest() : latch(memory), liveness(peers, latch, nullptr) {}

  void check_losses(const std::function<bool(int)>& left) {
    for (const int r : {1, 2})
      liveness.check_loss(
          "op", r, [&] { return left(r); }, [&] { return uint64_t(r); });
  }

  SharedFailure memory{};
  FailureLatch latch;
  const std::shared_ptr<JobPeers> peers = std::make_shared<JobPeers>();
  const Liveness liveness;
};

using FailureLatchTest = LivenessTest;

TEST_F(FailureLatchTest, KeepsTheFirstFailure) {
  EXPECT_NO_THROW(latch.check());
  EXPECT_FALSE(latch.failure());
  latch.set({2, ErrorCode::unavailable, "first"});
  latch.set({1, ErrorCode::aborted, "second"});
  EXPECT_ERROR(UnavailableError, "first", latch.check());
  EXPECT_ERROR(UnavailableError, "first", latch.fail({1, ErrorCode::aborted, "third"}));
  EXPECT_EQ(latch.failure()->rank, 2);
}

TEST_F(FailureLatchTest, TellsOfTheFirstFailureOnce) {
  std::vector<std::string> told;
  latch.on_set([&](const FailureLatch::Event& event) { told.push_back(event.failure.text); });
  latch.set({2, ErrorCode::unavailable, "first"});
  latch.set({1, ErrorCode::aborted, "second"});
  EXPECT_EQ(told, std::vector<std::string>{"first"});
}

TEST_F(FailureLatchTest, CutsATextThatIsTooLong) {
  latch.set({-1, ErrorCode::unavailable, std::string(10'000, 'x')});
  EXPECT_EQ(testing::error_of<UnavailableError>([&] { latch.check(); }),
            std::string(sizeof(memory.text) - 1, 'x'));
}

TEST_F(FailureLatchTest, DoesNotWaitForARankThatDiedWhileItWrote) {
  memory.state = 1;
  EXPECT_ERROR(UnavailableError, "died before it had written the reason", latch.check());
  EXPECT_FALSE(latch.failure());
}

TEST(DeadlineTest, WarnsOnceAndExpiresAfterItsSlack) {
  Deadline deadline({.timeout = 1ns, .warn_after = 0ns});
  deadline.start();
  EXPECT_EQ(deadline.due(1h), Deadline::Due::nothing);
  EXPECT_EQ(deadline.due(), Deadline::Due::expiry);

  Deadline warning({.timeout = 1h, .warn_after = 1ns});
  warning.start();
  EXPECT_EQ(warning.due(), Deadline::Due::warning);
  warning.has_warned();
  EXPECT_EQ(warning.due(), Deadline::Due::nothing);

  Deadline never({.timeout = 0ns, .warn_after = 0ns});
  never.start();
  EXPECT_EQ(never.due(), Deadline::Due::nothing);
}

TEST_F(LivenessTest, NamesTheMissingRanksAtTheDeadline) {
  Deadline deadline({.timeout = 1ns, .warn_after = 0ns});
  deadline.start();
  const Description what{.kind = Collective::barrier};
  const auto none = [] { return LateRanks(); };
  EXPECT_NO_THROW(liveness.check_deadline(deadline, {}, what, 7, none, 0));
  const auto missing = [&] {
    return LateRanks{liveness.name(2) + "; " + liveness.progress(2, 6), 2};
  };
  EXPECT_ERROR(DeadlineExceededError,
               "barrier #7: waited 1e-09 s for rank 2 (host:5002); rank 2 is at #6",
               liveness.check_deadline(deadline, {}, what, 7, missing, 0));
  EXPECT_EQ(latch.failure()->rank, 2);
}

TEST_F(LivenessTest, SuspectsItselfIfItIsCutOff) {
  peers->isolated = "hears no other host";
  Deadline deadline({.timeout = 1ns, .warn_after = 0ns});
  deadline.start();
  EXPECT_ERROR(DeadlineExceededError,
               "barrier #7: rank 0 (host:5000) hears no other host; it waited 1e-09 s for rank 2",
               liveness.check_deadline(
                   deadline, {}, {.kind = Collective::barrier}, 7,
                   [] {
                     return LateRanks{"rank 2", 2};
                   },
                   0));
  EXPECT_EQ(latch.failure()->rank, 0);
}

TEST_F(LivenessTest, NamesALostRankUnlessItLeft) {
  peers->lost = 2;
  EXPECT_NO_THROW(check_losses([](int rank) { return rank == 2; }));
  EXPECT_ERROR(UnavailableError, "op: rank 2 (host:5002) has died; rank 2 is at #2",
               check_losses([](int) { return false; }));
  EXPECT_EQ(latch.failure()->rank, 2);
}

// What a rank said before it died explains its death.
TEST_F(LivenessTest, PrefersTheReasonThatALostRankGave) {
  peers->lost = 2;
  peers->of_job = {2, ErrorCode::aborted, "rank 2 failed: bad pixel"};
  EXPECT_NO_THROW(check_losses([](int) { return false; }));
  EXPECT_ERROR(AbortedError, "op: rank 2 failed: bad pixel", liveness.check_now("op"));
  EXPECT_EQ(latch.failure()->rank, 2);
}

TEST_F(LivenessTest, PumpsBeforeItLooks) {
  struct Incoming final : Pump {
    void pump() override { latch->set({-1, ErrorCode::unavailable, "came in just now"}); }
    FailureLatch* latch;
  };
  Incoming pump;
  pump.latch = &latch;
  const Liveness pumping(peers, latch, &pump);
  EXPECT_ERROR(UnavailableError, "came in just now", pumping.check_now("op"));
}

std::shared_ptr<const std::vector<int>> ranks_of(std::vector<int> ranks) {
  return std::make_shared<const std::vector<int>>(std::move(ranks));
}

TEST_F(LivenessTest, OfAGroupNamesRanksByTheirNumberInIt) {
  const GroupMonitor group(peers, ranks_of({0, 3, 5}));
  EXPECT_EQ(group.name(0), "rank 0 (host:5000)");
  EXPECT_EQ(group.name(2), "rank 2 (rank 5 of the job, host:5005)");
  const GroupMonitor on_host(peers, ranks_of({0, 3, 5}), {1, 2});
  EXPECT_EQ(on_host.name(0), "rank 1 (rank 3 of the job, host:5003)");
  EXPECT_EQ(on_host.job_rank(0), 3);
}

TEST_F(LivenessTest, OfAGroupIgnoresTheLossOfOtherRanks) {
  const GroupMonitor group(peers, ranks_of({0, 3}));
  peers->of_job = {5, ErrorCode::unavailable, "rank 5 is gone"};
  EXPECT_FALSE(group.failure());
  peers->of_job->rank = 3;
  EXPECT_TRUE(group.failure());
  peers->of_job->rank = -1;
  EXPECT_TRUE(group.failure());
}

}  // namespace
}  // namespace tutti::group
