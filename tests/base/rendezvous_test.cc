// SPDX-License-Identifier: Apache-2.0
#include "base/rendezvous.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/world.h"
#include "support/expect.h"

namespace tutti::base {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Rendezvous::Timeouts kForever{0s, 0s};
constexpr Rendezvous::Timeouts kSayThatIWait{0s, 1ms};
const auto kNothing = [] {};

// What became of one call.
struct Outcome {
  std::optional<ErrorCode> code;  // none: it returned
  std::string text;
};

Outcome outcome_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}

// A waiter is logged while the rendezvous is locked: a thread that has seen the line and then calls
// the rendezvous finds the participant waiting.
class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() {
    set_log_sink([this](LogLevel, std::string_view text) {
      std::lock_guard lock(mutex_);
      messages_.emplace_back(text);
      heard_.notify_all();
    });
  }
  ~RendezvousTest() override { set_log_sink(nullptr); }

  void await_waiters(size_t count) {
    std::unique_lock lock(mutex_);
    heard_.wait(lock, [&] { return messages_.size() >= count; });
  }

  // Lets the participants from 1 on wait; once they do, `event` happens. Returns their outcomes.
  static constexpr int kWaiters = 3;
  std::vector<Outcome> outcomes_of_waiters(Rendezvous& point, const std::function<void()>& event) {
    std::vector<Outcome> outcomes(kWaiters);
    std::vector<std::thread> threads;
    for (int i = 0; i < kWaiters; ++i)
      threads.emplace_back([&, i] {
        outcomes[size_t(i)] =
            outcome_of([&] { point.meet(i + 1, "merge", kSayThatIWait, kNothing); });
      });
    await_waiters(kWaiters);
    event();
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  std::mutex mutex_;
  std::condition_variable heard_;
  std::vector<std::string> messages_;
};

class RendezvousOf : public ::testing::TestWithParam<int> {};

// The state is not atomic on purpose: the meetings alone order what the participants do with it.
TEST_P(RendezvousOf, MeetsManyTimesAndRunsTheActionOncePerMeeting) {
  const int n = GetParam(), rounds = 500;
  Rendezvous point(n, "replica");
  std::vector<int> slots(size_t(n), 0);
  int actions = 0;
  std::vector<int> errors(size_t(n), 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) {
        slots[size_t(i)] = round + 1;
        point.meet(i, "step", kForever, [&] {
          if (std::accumulate(slots.begin(), slots.end(), 0) != n * (round + 1))
            ++errors[size_t(i)];
          ++actions;
        });
        // The next meeting cannot be complete without this participant.
        if (actions != round + 1) ++errors[size_t(i)];
        point.meet(i, "read", kForever, kNothing);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(actions, rounds);
  EXPECT_THAT(errors, ::testing::Each(0));
}

INSTANTIATE_TEST_SUITE_P(Participants, RendezvousOf, ::testing::Values(1, 2, 3, 4, 7));

TEST_F(RendezvousTest, AFailureReachesThreadsThatWaitAndThreadsThatCome) {
  Rendezvous point(kWaiters + 1, "replica");
  for (const Outcome& outcome :
       outcomes_of_waiters(point, [&] { point.fail(0, "out of memory"); })) {
    EXPECT_EQ(outcome.code, ErrorCode::aborted);
    EXPECT_EQ(outcome.text, "merge: replica 0 failed: out of memory");
  }
  for (int i = 0; i <= kWaiters; ++i)
    EXPECT_ERROR(AbortedError, "later: replica 0 failed: out of memory",
                 point.meet(i, "later", kForever, kNothing));
}

TEST_F(RendezvousTest, ThreadsThatComeAfterAFailureGetItAtOnce) {
  Rendezvous point(2, "rank");
  point.fail(1, "disk full");
  EXPECT_ERROR(AbortedError, "sum: rank 1 failed: disk full",
               point.meet(0, "sum", kForever, kNothing));
}

TEST_F(RendezvousTest, AnAbortReachesAllThreadsWithItsOwnCode) {
  Rendezvous point(kWaiters + 1, "replica");
  for (const Outcome& outcome : outcomes_of_waiters(
           point, [&] { point.abort(ErrorCode::invalid_argument, "they disagree"); })) {
    EXPECT_EQ(outcome.code, ErrorCode::invalid_argument);
    EXPECT_EQ(outcome.text, "merge: they disagree");
  }
  EXPECT_ERROR(InvalidArgumentError, "later: they disagree",
               point.meet(0, "later", kForever, kNothing));
}

TEST_F(RendezvousTest, TheFirstFailureStays) {
  Rendezvous point(3, "replica");
  point.fail(2, "first");
  point.fail(1, "second");
  point.leave(1);
  EXPECT_ERROR(AbortedError, "replica 2 failed: first", point.meet(0, "x", kForever, kNothing));
}

TEST_F(RendezvousTest, LeavingWhileOthersWaitIsTheirError) {
  Rendezvous point(kWaiters + 1, "replica");
  for (const Outcome& outcome : outcomes_of_waiters(point, [&] { point.leave(0); })) {
    EXPECT_EQ(outcome.code, ErrorCode::failed_precondition);
    EXPECT_THAT(outcome.text, AllOf(HasSubstr("merge: replica 0 returned"),
                                    Not(HasSubstr("replica 1")), Not(HasSubstr("replica 3"))));
  }
}

TEST_F(RendezvousTest, ComingAfterAThreadLeftIsAnError) {
  Rendezvous point(3, "replica");
  point.leave(2);
  for (const int i : {0, 1})
    EXPECT_ERROR(FailedPreconditionError, "merge: replica 2 returned",
                 point.meet(i, "merge", kForever, kNothing));
}

TEST_F(RendezvousTest, AllThatLeftAreNamed) {
  Rendezvous point(4, "replica");
  point.leave(1);
  point.leave(3);
  EXPECT_ERROR(FailedPreconditionError, "replica 1, replica 3 returned",
               point.meet(0, "merge", kForever, kNothing));
}

TEST_F(RendezvousTest, LeavingWhenNoThreadComesAgainIsNoError) {
  Rendezvous point(2, "replica");
  std::thread other([&] {
    point.meet(1, "merge", kForever, kNothing);
    point.leave(1);
  });
  EXPECT_NO_THROW(point.meet(0, "merge", kForever, kNothing));
  point.leave(0);
  other.join();
}

TEST_F(RendezvousTest, ADeadlineNamesTheMissingAndIsTheLatecomersErrorToo) {
  Rendezvous point(4, "replica");
  std::thread other([&] {
    EXPECT_THAT(outcome_of([&] { point.meet(2, "merge", kSayThatIWait, kNothing); }).text,
                AllOf(HasSubstr("merge: "), HasSubstr("replica 1, replica 3")));
  });
  await_waiters(1);
  EXPECT_THAT(testing::error_of<DeadlineExceededError>([&] {
                point.meet(0, "merge", {10ms, 0s}, kNothing);
              }),
              AllOf(HasSubstr("merge: waited 0.01 s for replica 1, replica 3"),
                    Not(HasSubstr("replica 2"))));
  other.join();
  for (const int late : {1, 3})
    EXPECT_ERROR(DeadlineExceededError, "late: ", point.meet(late, "late", kForever, kNothing));
}

TEST_F(RendezvousTest, TheLongestTimeoutThereIsDoesNotExpire) {
  Rendezvous point(2, "replica");
  Outcome outcome;
  std::thread waiter([&] {
    outcome = outcome_of([&] {
      point.meet(0, "merge", {std::chrono::nanoseconds::max(), 1ms}, kNothing);
    });
  });
  await_waiters(1);
  point.fail(1, "on purpose");
  waiter.join();
  EXPECT_EQ(outcome.code, ErrorCode::aborted) << outcome.text;
}

TEST_F(RendezvousTest, TheTimeoutDoesNotCoverTheAction) {
  Rendezvous point(2, "replica");
  Outcome outcome;
  std::thread waiter([&] {
    outcome = outcome_of([&] { point.meet(0, "merge", {1s, 1ms}, kNothing); });
  });
  await_waiters(1);
  const auto until = Clock::now() + 1200ms;
  point.meet(1, "merge", kForever, [&] {
    while (Clock::now() < until) std::this_thread::yield();
  });
  waiter.join();
  EXPECT_FALSE(outcome.code) << outcome.text;
}

TEST_F(RendezvousTest, AnActionThatThrowsIsTheRunnersOwnAndAbortsTheOthers) {
  struct MyError : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  Rendezvous point(kWaiters + 1, "replica");
  bool original = false;
  for (const Outcome& outcome : outcomes_of_waiters(point, [&] {
         try {
           point.meet(0, "merge", kForever, [] { throw MyError("shapes differ"); });
         } catch (const MyError& e) {
           original = std::string(e.what()) == "shapes differ";
         }
       })) {
    EXPECT_EQ(outcome.code, ErrorCode::aborted);
    EXPECT_EQ(outcome.text, "merge: replica 0 failed: shapes differ");
  }
  EXPECT_TRUE(original);
}

TEST_F(RendezvousTest, AnActionMayThrowAnything) {
  Rendezvous point(kWaiters + 1, "replica");
  for (const Outcome& outcome : outcomes_of_waiters(
           point, [&] { EXPECT_THROW(point.meet(0, "merge", kForever, [] { throw 7; }), int); })) {
    EXPECT_EQ(outcome.code, ErrorCode::aborted);
    EXPECT_THAT(outcome.text, HasSubstr("replica 0 failed"));
  }
}

TEST_F(RendezvousTest, ResetMakesItUsableAgain) {
  Rendezvous point(2, "replica");
  const std::function<void()> breakages[] = {
      [&] { point.fail(1, "x"); }, [&] { point.leave(1); },
      [&] {
        EXPECT_TRUE(outcome_of([&] { point.meet(0, "x", {1ms, 0s}, kNothing); }).code);
      }};
  for (const auto& break_it : breakages) {
    break_it();
    EXPECT_TRUE(outcome_of([&] { point.meet(0, "x", {1ms, 0s}, kNothing); }).code);
    point.reset();
    std::thread other([&] { point.meet(1, "again", kForever, kNothing); });
    int actions = 0;
    EXPECT_NO_THROW(point.meet(0, "again", {60s, 0s}, [&] { ++actions; }));
    other.join();
    EXPECT_LE(actions, 1);
  }
}

TEST_F(RendezvousTest, WarnsOfALongWaitAndGoesOn) {
  Rendezvous point(3, "replica");
  std::vector<std::thread> threads;
  threads.emplace_back([&] { point.meet(0, "merge", kSayThatIWait, kNothing); });
  await_waiters(1);
  EXPECT_THAT(messages_[0], "merge: replica 0 has waited 0.001 s for replica 1, replica 2");
  threads.emplace_back([&] { point.meet(1, "merge", kForever, kNothing); });
  EXPECT_NO_THROW(point.meet(2, "merge", kForever, kNothing));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(messages_.size(), 1u);
}

// In each round one participant goes wrong, in one of four ways, at some meeting. All others must
// complete the meetings before that one and none after, and get the reason.
TEST_F(RendezvousTest, SurvivesAThousandRoundsOfRandomFailure) {
  enum Fault { none, fails, leaves, action_throws };
  constexpr int n = 4, meetings = 4;
  std::mt19937 random(7);
  Rendezvous point(n, "replica");
  for (int round = 0; round < 1000; ++round) {
    const Fault fault = Fault(random() % 4);
    const int victim = int(random() % n), at = int(random() % meetings);
    int completed[n] = {};
    std::optional<Outcome> ends[n];
    const auto participant = [&](int id) {
      for (int m = 0; m < meetings; ++m) {
        if (m == at && id == victim && fault == fails) return point.fail(id, "on purpose");
        if (m == at && id == victim && fault == leaves) return point.leave(id);
        const Outcome outcome = outcome_of([&] {
          point.meet(id, "hammer", kForever, [&] {
            if (m == at && fault == action_throws) throw CancelledError("on purpose");
          });
        });
        if (outcome.code) {
          ends[id] = outcome;
          return;
        }
        ++completed[id];
      }
    };
    std::vector<std::thread> threads;
    for (int id = 1; id < n; ++id) threads.emplace_back(participant, id);
    participant(0);
    for (std::thread& thread : threads) thread.join();
    point.reset();

    int cancelled = 0;
    for (int id = 0; id < n; ++id) {
      SCOPED_TRACE(::testing::Message()
                   << "round " << round << ", fault " << fault << ", id " << id);
      ASSERT_EQ(completed[id], fault == none ? meetings : at);
      if (fault == none || (id == victim && fault != action_throws)) {
        ASSERT_FALSE(ends[id]);
        continue;
      }
      ASSERT_TRUE(ends[id]);
      if (ends[id]->code == ErrorCode::cancelled) {
        ++cancelled;
        continue;
      }
      ASSERT_EQ(ends[id]->code,
                fault == leaves ? ErrorCode::failed_precondition : ErrorCode::aborted);
      if (fault != action_throws) {
        ASSERT_THAT(ends[id]->text, HasSubstr("replica " + std::to_string(victim)));
      }
    }
    ASSERT_EQ(cancelled, fault == action_throws ? 1 : 0) << round;
  }
}

}  // namespace
}  // namespace tutti::base
