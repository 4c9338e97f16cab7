// SPDX-License-Identifier: Apache-2.0
// Which rank the coordination service gives up, and when; in made-up time.
#include "cluster/job_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;
using cluster::Job;
using cluster::JobState;
using ::testing::HasSubstr;

// A service at the first rank's address, with heartbeats every second and a timeout of 10 s.
class Service : private JobState::Outlet {
 public:
  explicit Service(std::vector<std::string> addresses, bool chief_serves = false)
      : job_{.addresses = addresses, .version = "1", .chief_serves = chief_serves},
        now_(std::chrono::steady_clock::now()),
        state_(job_, addresses[0], *this, now_) {
    for (size_t rank = 0; rank < addresses.size(); ++rank)
      state_.admit({"", "1", int(rank), int(addresses.size())}, now_);
  }

  // Time passes, second by second, in which these ranks are heard.
  void run(int seconds, const std::vector<int>& heard) {
    for (int i = 0; i < seconds && failure_.empty(); ++i) {
      now_ += 1s;
      for (const int rank : heard) state_.handle(rank, {}, now_);
      state_.tick(now_);
    }
  }
  // The same, in which the first rank speaks for others.
  void run_with_speaker(int seconds, const std::vector<int>& living) {
    for (int i = 0; i < seconds && failure_.empty(); ++i) {
      now_ += 1s;
      state_.handle(0, {.body = cluster::Heartbeat{living}}, now_);
      heartbeats.clear();
      state_.tick(now_);
    }
  }
  void heartbeat(int rank) { state_.handle(rank, {}, now_); }
  void leave(int rank) { state_.handle(rank, {.body = cluster::Goodbye{}}, now_); }
  std::map<int, int> heartbeats;  // sent to each rank
  // Time passes in which the service itself is suspended.
  void suspend(std::chrono::seconds time) {
    now_ += time;
    state_.tick(now_);
  }
  void report(int rank, int culprit, ErrorCode code = ErrorCode::deadline_exceeded) {
    state_.handle(rank, {.body = cluster::Report{{culprit, code, ""}}}, now_);
  }
  int blamed() const { return state_.first_failure()->rank; }
  void exchange(int rank, std::chrono::nanoseconds timeout) {
    state_.handle(rank, {.body = cluster::Exchange{"a", "", timeout}}, now_);
  }

  void share(int rank, const std::string& name, const std::string& host) {
    const std::string text = std::to_string(rank);
    state_.handle(rank, {.body = cluster::Exchange{name, text, 5s, {host, "place of " + text}}},
                  now_);
  }
  // What each rank was answered last: values, or the place of them.
  std::map<int, std::string> answers;

  const std::string& failure() const { return failure_; }
  const std::string& error() const { return error_; }

 private:
  void send(int rank, cluster::FromService message) override {
    if (std::holds_alternative<cluster::Heartbeat>(message)) ++heartbeats[rank];
    if (const auto* failure = std::get_if<cluster::Failure>(&message)) failure_ = failure->text;
    if (const auto* reply = std::get_if<cluster::Reply>(&message)) {
      error_ = reply->error ? reply->error->text : "";
      answers[rank] = reply->place;
      if (reply->values)
        for (const std::string& value : *reply->values) answers[rank] += value;
    }
  }
  void drop(int) override {}

  const Job job_;
  JobState::Time now_;
  JobState state_;
  std::string failure_, error_;
};

const std::vector<std::string> kOneHost{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"};
const std::vector<std::string> kHosts{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"};

TEST(JobState, SendsValuesOncePerHost) {
  Service service({"a:1", "b:1", "a:2", "b:2", "c:1"});
  const auto all_share = [&](const std::string& name) {
    for (const int rank : {3, 2, 4, 1, 0})
      service.share(rank, name, rank == 4 ? "" : rank % 2 ? "b" : "a");
  };
  all_share("first");
  const std::map<int, std::string> expected{
      {0, "01234"}, {1, "01234"}, {2, "place of 0"}, {3, "place of 1"}, {4, "01234"}};
  EXPECT_EQ(service.answers, expected);
  service.share(3, "first", "");  // it cannot read there
  EXPECT_EQ(service.answers[3], "01234");
  service.share(3, "first", "");
  EXPECT_THAT(service.error(), HasSubstr("rank 3 (b:2) has come to it before"));
  all_share("second");
  EXPECT_EQ(service.answers, expected);
}

TEST(JobState, GivesUpARankThatTheOthersOutlast) {
  Service service(kOneHost);
  service.run(9, {0, 2});
  EXPECT_EQ(service.failure(), "");
  service.run(2, {0, 2});
  EXPECT_THAT(service.failure(), HasSubstr("rank 1 (127.0.0.1:2) is lost"));
}

TEST(JobState, HearsASpeakerForTheRanksOfItsHost) {
  Service service(kOneHost);
  service.run_with_speaker(30, {1, 2});
  EXPECT_EQ(service.failure(), "");
  EXPECT_EQ(service.heartbeats, (std::map<int, int>{{0, 1}}));
  service.heartbeat(2);  // it has missed its speaker, and gets a reply at once
  EXPECT_EQ(service.heartbeats, (std::map<int, int>{{0, 1}, {2, 1}}));
  service.run_with_speaker(1, {1});
  EXPECT_EQ(service.heartbeats, (std::map<int, int>{{0, 1}, {2, 1}}));
}

TEST(JobState, GivesUpARankThatItsSpeakerLeavesOut) {
  Service service(kOneHost);
  service.run_with_speaker(5, {1, 2});
  service.run_with_speaker(9, {2});
  EXPECT_EQ(service.failure(), "");
  service.run_with_speaker(2, {2});
  EXPECT_THAT(service.failure(), HasSubstr("rank 1 (127.0.0.1:2) is lost"));
}

TEST(JobState, SendsHeartbeatsToRanksWhoseSpeakerHasLeft) {
  Service service(kOneHost);
  service.run_with_speaker(2, {1, 2});
  service.leave(0);
  service.run(1, {1, 2});
  EXPECT_EQ(service.heartbeats.at(1), 1);
  EXPECT_EQ(service.heartbeats.at(2), 1);
}

TEST(JobState, IgnoresRanksInAHeartbeatThatAreNotHere) {
  Service service(kOneHost);
  service.leave(2);
  service.run_with_speaker(2, {-1, 0, 1, 2, 3});
  EXPECT_EQ(service.failure(), "");
  EXPECT_EQ(service.heartbeats, (std::map<int, int>{{0, 1}}));
}

TEST(JobState, AccusesNoRankWhileAllAreSilent) {
  Service service(kOneHost);
  service.run(5, {0, 1, 2});
  service.run(60, {});
  EXPECT_EQ(service.failure(), "");
  service.run(30, {0, 1, 2});
  EXPECT_EQ(service.failure(), "");
}

TEST(JobState, GivesTheOthersANewPeriodOnceARankIsBack) {
  Service service(kOneHost);
  service.run(60, {});
  service.run(8, {2});
  EXPECT_EQ(service.failure(), "");
  service.run(30, {0, 1, 2});
  EXPECT_EQ(service.failure(), "");
}

TEST(JobState, NamesARankThatDoesNotComeBackWithTheOthers) {
  Service service(kOneHost);
  service.run(60, {});
  service.run(11, {0, 2});
  EXPECT_THAT(service.failure(), HasSubstr("rank 1 (127.0.0.1:2) is lost"));
}

TEST(JobState, GivesANewPeriodAfterItsOwnSuspension) {
  Service service(kOneHost);
  service.run(5, {0, 1, 2});
  service.suspend(60s);
  EXPECT_EQ(service.failure(), "");
  service.run(8, {0, 2});
  EXPECT_EQ(service.failure(), "");
  service.run(3, {0, 2});
  EXPECT_THAT(service.failure(), HasSubstr("rank 1 (127.0.0.1:2) is lost"));
}

TEST(JobState, DoesNotCountASuspensionAgainstAnExchange) {
  Service service(kOneHost);
  service.exchange(0, 5s);
  service.suspend(60s);
  service.run(2, {0, 1, 2});
  EXPECT_EQ(service.error(), "");
  service.run(4, {0, 1, 2});
  EXPECT_THAT(service.error(), HasSubstr("waited 5 s at \"a\" for rank 1"));
}

TEST(JobState, SuspectsItsOwnHostIfItHearsNoOther) {
  Service service(kHosts, true);
  service.run(11, {0});
  EXPECT_EQ(service.failure(),
            "rank 0 (10.0.0.1:1) is lost: the coordination service has not heard from any other "
            "host for 10 s: the network of its own host (10.0.0.1) is cut off");
}

TEST(JobState, AccusesTheOneHostThatItDoesNotHear) {
  Service service(kHosts, true);
  service.run(11, {0, 1});
  EXPECT_THAT(service.failure(), HasSubstr("rank 2 (10.0.0.3:1) is lost"));
}

TEST(JobState, BlamesTheRankThatTheBlamedWaitedFor) {
  Service service(kOneHost);
  service.report(1, 0);
  EXPECT_EQ(service.blamed(), 0);
  service.report(0, 2);
  EXPECT_EQ(service.blamed(), 2);
  service.report(0, 1);  // only what it met first
  EXPECT_EQ(service.blamed(), 2);
}

TEST(JobState, BlamesOneOfThoseThatBlameEachOther) {
  Service service(kOneHost);
  service.report(1, 0);
  service.report(0, 1);
  EXPECT_THAT(service.blamed(), ::testing::AnyOf(0, 1));
}

TEST(JobState, BlamesTheDeadWhateverElseTheyWaitedFor) {
  Service service(kOneHost);
  service.report(1, 0, ErrorCode::unavailable);
  service.report(0, 2);
  EXPECT_EQ(service.blamed(), 0);
}

}  // namespace
}  // namespace tutti::testing
