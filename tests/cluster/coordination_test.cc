// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <future>
#include <thread>

#include "cluster/coordination_cluster.h"
#include "cluster/coordination_support.h"
#include "cluster/heartbeats.h"
#include "support/expect.h"

#ifdef __SANITIZE_ADDRESS__
// c-ares, which gRPC brings, keeps a few bytes; and a connection that gRPC gives up meanwhile may
// outlive the test.
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares\nleak:libcrypto\n"; }
#endif

namespace tutti {
namespace {

using namespace std::chrono_literals;
using cluster::Coordination;
using cluster::Failure;
using cluster::HostPulse;
using cluster::Job;
using cluster::Service;
using testing::Child;
using testing::Cluster;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::job_of;
using testing::join;
using testing::kLong;
using testing::on_all;
using testing::serve;

// The failure that a connection reports, within two seconds after it is due.
class FailureListener {
 public:
  explicit FailureListener(Coordination& connection) {
    connection.on_failure([promise = promise_](const Failure& failure) {
      promise->set_value(failure);  // a second call would throw
    });
  }
  Failure failure(std::chrono::nanoseconds due = 0s) {
    auto future = promise_->get_future();
    if (future.wait_for(due + 2s) == std::future_status::ready) return future.get();
    ADD_FAILURE() << "heard of no failure";
    return {};
  }

 private:
  std::shared_ptr<std::promise<Failure>> promise_ = std::make_shared<std::promise<Failure>>();
};

std::chrono::nanoseconds time_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::steady_clock::now() - start;
}

class CoordinationOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(CoordinationOfRanks, ExchangesTheValuesOfAllRanks) {
  Cluster cluster(GetParam());
  std::vector<std::string> expected;
  for (int rank = 0; rank < cluster.size(); ++rank)
    expected.push_back(std::string(size_t(rank), '\0') + std::to_string(rank) + "\xff");
  on_all(cluster.size(), [&](int rank) {
    EXPECT_EQ(cluster[rank].exchange("a", expected[rank], kLong), expected);
    EXPECT_EQ(cluster[rank].exchange("barrier", "", kLong),
              std::vector<std::string>(cluster.size()));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CoordinationOfRanks, ::testing::Range(1, 9));

TEST(Coordination, ExchangesAThousandTimesInARow) {
  Cluster cluster(3);
  on_all(3, [&](int rank) {
    for (int i = 0; i < 1000; ++i) {
      const std::string number = std::to_string(i);
      ASSERT_EQ(cluster[rank].exchange(number, std::to_string(rank) + number, kLong),
                (std::vector<std::string>{"0" + number, "1" + number, "2" + number}));
    }
  });
}

TEST(Coordination, ExchangesUnderDifferentNamesAtOnce) {
  Cluster cluster(3);
  on_all(3 * 4, [&](int i) {
    const int rank = i % 3, first = i / 3;
    for (int j = 0; j < 50; ++j) {
      const std::string name = std::to_string(j) + "of" + std::to_string(first);
      const auto values = cluster[rank].exchange(name, name, kLong);
      ASSERT_EQ(values, std::vector<std::string>(3, name));
    }
  });
}

TEST(Coordination, ExchangesUpTo64MiB) {
  Cluster cluster(2);
  const std::string half(32 << 20, 'x'), more(half.size() + 1, 'x');
  on_all(2, [&](int rank) {
    const auto values = cluster[rank].exchange("half", half, kLong);
    EXPECT_TRUE(values.size() == 2 && values[0] == half && values[1] == half);
    EXPECT_ERROR(ResourceExhaustedError, "at most 64 MiB",
                 cluster[rank].exchange("more", rank == 0 ? half : more, kLong));
  });
  EXPECT_ERROR(ResourceExhaustedError, "exchange \"much\": a value of 67108865 bytes",
               cluster[0].exchange("much", std::string((64 << 20) + 1, 'x'), kLong));
  EXPECT_ERROR(InvalidArgumentError, "a name of 1025 bytes",
               cluster[0].exchange(std::string(1025, 'x'), "", kLong));
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
}

TEST(Coordination, NamesTheRanksThatDidNotComeToAnExchange) {
  Cluster cluster(4, 3);
  const std::string expected =
      "waited 1 s at \"start\" for rank 1 (127.0.0.1:5001), rank 3 (127.0.0.1:5003, has not "
      "joined)";
  on_all(2, [&](int i) {
    EXPECT_ERROR(DeadlineExceededError, expected,
                 cluster[2 * i].exchange("start", "", i == 0 ? 1s : 20s));
  });
  // A late rank gets the same error.
  EXPECT_ERROR(DeadlineExceededError, expected, cluster[1].exchange("start", "", kLong));
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
}

TEST(Coordination, UsesANameOnce) {
  Cluster cluster(1);
  cluster[0].exchange("a", "", kLong);
  EXPECT_ERROR(FailedPreconditionError,
               "exchange \"a\": rank 0 (127.0.0.1:5000) has come to it before; a name is used once",
               cluster[0].exchange("a", "", kLong));
}

TEST(Coordination, TakesAGoodbyeForNoFailure) {
  Cluster cluster(3);
  FailureListener listener(cluster[0]);
  EXPECT_FALSE(cluster.service->wait_until_empty(0s));
  auto waiting = std::async(std::launch::async, [&] {
    return error_of<UnavailableError>([&] { cluster[0].exchange("under way", "", kLong); });
  });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  cluster.connections[2].reset();
  const std::string left = "rank 2 (127.0.0.1:5002) has left the job";
  EXPECT_THAT(waiting.get(), HasSubstr("exchange \"under way\": " + left));
  EXPECT_ERROR(UnavailableError, left, cluster[1].exchange("later", "", kLong));

  cluster.connections[1].reset();
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
  cluster.connections[0].reset();
  EXPECT_TRUE(cluster.service->wait_until_empty(kLong));
}

TEST(Coordination, TellsAllRanksThatARankDied) {
  Cluster cluster(3, 2);
  Child worker({"join", cluster.service->address(), "2", "3", "20"});
  ASSERT_EQ(worker.line(), "joined");
  FailureListener listeners[] = {FailureListener(cluster[0]), FailureListener(cluster[1])};
  auto waiting = std::async(std::launch::async, [&] {
    return error_of<UnavailableError>([&] { cluster[0].exchange("a", "", kLong); });
  });
  worker.send_signal(SIGKILL);
  const std::string lost =
      "rank 2 (127.0.0.1:5002) is lost: its connection to the coordination service closed";
  for (FailureListener& listener : listeners) {
    const Failure failure = listener.failure();
    EXPECT_EQ(failure.rank, 2);
    EXPECT_EQ(failure.code, ErrorCode::unavailable);
    EXPECT_EQ(failure.text, lost);
  }
  EXPECT_EQ(waiting.get(), lost);
  EXPECT_ERROR(UnavailableError, lost, cluster[1].exchange("b", "", kLong));
  cluster.connections.clear();
  EXPECT_TRUE(cluster.service->wait_until_empty(kLong));
}

TEST(Coordination, PublishesAnAbortBeforeTheDeathThatFollows) {
  Cluster cluster(2, 1);
  Child worker({"join", cluster.service->address(), "1", "2", "20"});
  ASSERT_EQ(worker.line(), "joined");
  FailureListener listener(cluster[0]);
  worker.say("abort\ndie");
  const Failure failure = listener.failure();
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.code, ErrorCode::data_loss);
  EXPECT_EQ(failure.text, "the worker says so");
  EXPECT_ERROR(DataLossError, "the worker says so", cluster[0].exchange("a", "", kLong));
}

TEST(Coordination, KeepsTheFirstOfSeveralAborts) {
  Cluster cluster(4);
  std::vector<std::optional<Failure>> after(4);
  on_all(4, [&](int rank) {
    cluster[rank].abort({rank, ErrorCode::aborted, "rank " + std::to_string(rank) + " gave up"});
    after[rank] = cluster[rank].failure();
  });
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(after[rank]);
    EXPECT_EQ(after[rank]->text, after[0]->text);
  }
  cluster[0].abort({0, ErrorCode::internal, "too late"});
  EXPECT_EQ(cluster[0].failure()->text, after[0]->text);
}

TEST(Coordination, AReportedFailureIsKnownToTheServiceAlone) {
  Cluster cluster(3);
  EXPECT_FALSE(cluster.service->failure());
  cluster[1].report({2, ErrorCode::deadline_exceeded, "waited for rank 2"});
  cluster[1].report({0, ErrorCode::internal, "later"});
  // The service has all that came before.
  on_all(3, [&](int rank) { cluster[rank].exchange("said", "", kLong); });
  ASSERT_TRUE(cluster.service->failure());
  EXPECT_EQ(cluster.service->failure()->rank, 2);
  EXPECT_EQ(cluster.service->failure()->code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(cluster.service->failure()->text, "waited for rank 2");
  on_all(3, [&](int rank) { cluster[rank].exchange("on", "", kLong); });  // the job goes on
  EXPECT_FALSE(cluster[2].failure());
}

TEST(Coordination, CallsAHandlerThatComesAfterTheFailure) {
  Cluster cluster(1);
  cluster[0].abort({0, ErrorCode::aborted, "enough"});
  int calls = 0;
  cluster[0].on_failure([&](const Failure& failure) { calls += failure.text == "enough"; });
  EXPECT_EQ(calls, 1);
  EXPECT_ERROR(FailedPreconditionError, "has a handler already",
               cluster[0].on_failure([](const Failure&) {}));
}

TEST(Coordination, TellsALateJoinerOfTheFailure) {
  Cluster cluster(2, 1);
  cluster[0].abort({0, ErrorCode::aborted, "enough"});
  const auto late = join(cluster.job, cluster.service->address(), 1);
  EXPECT_EQ(FailureListener(*late).failure().text, "enough");
}

TEST(Coordination, NoticesThatTheServiceIsGone) {
  Cluster cluster(3);
  std::vector<FailureListener> listeners;
  for (int rank = 0; rank < 3; ++rank) listeners.emplace_back(cluster[rank]);
  const std::string gone =
      "the coordination service at " + cluster.service->address() + " is gone: ";
  auto waiting = std::async(std::launch::async, [&] {
    return error_of<UnavailableError>([&] { cluster[0].exchange("a", "", kLong); });
  });
  EXPECT_LT(time_of([&] { cluster.service.reset(); }), 1s);
  for (FailureListener& listener : listeners) {
    const Failure failure = listener.failure();
    EXPECT_EQ(failure.rank, -1);
    EXPECT_EQ(failure.code, ErrorCode::unavailable);
    EXPECT_THAT(failure.text, HasSubstr(gone + "its connection closed"));
  }
  EXPECT_THAT(waiting.get(), HasSubstr(gone));
  EXPECT_ERROR(UnavailableError, gone, cluster[1].exchange("b", "", kLong));
}

TEST(Coordination, NoticesThatTheServiceWasKilled) {
  Child service({"serve", "2"});
  const std::string address = service.line();
  const auto connection = join(job_of(2), address, 0);
  FailureListener listener(*connection);
  service.send_signal(SIGKILL);
  EXPECT_THAT(listener.failure().text, HasSubstr(address + " is gone: its connection closed"));
}

TEST(Coordination, NoticesASilentService) {
  Child service({"serve", "2"});
  Job job = job_of(2);
  job.heartbeat_timeout = 1500ms;
  const std::string address = service.line();
  auto connection = join(job, address, 0);
  FailureListener listener(*connection);
  service.send_signal(SIGSTOP);
  EXPECT_THAT(listener.failure(job.heartbeat_timeout).text,
              HasSubstr(address + " is gone: nothing heard from it for 1.5 s"));
  EXPECT_LT(time_of([&] { connection.reset(); }), 1s);
}

TEST(Coordination, NoticesASilentRank) {
  Job job = job_of(2);
  job.heartbeat_timeout = 1500ms;
  Cluster cluster(2, 1, job);
  Child worker({"join", cluster.service->address(), "1", "2", "20"});
  ASSERT_EQ(worker.line(), "joined");
  FailureListener listener(cluster[0]);
  worker.send_signal(SIGSTOP);
  const Failure failure = listener.failure(job.heartbeat_timeout);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.text,
            "rank 1 (127.0.0.1:5001) is lost: the coordination service has not heard from it for "
            "1.5 s");
  worker.send_signal(SIGCONT);
  worker.say("failure");
  EXPECT_EQ(worker.line(), failure.text);
}

TEST(Coordination, IdleRanksStay) {
  Job job = job_of(2);
  job.heartbeat_timeout = 800ms;
  Cluster cluster(2, 2, job);
  // The other does not come: a wait of several heartbeat timeouts.
  EXPECT_ERROR(DeadlineExceededError, "waited 2.5 s", cluster[0].exchange("alone", "", 2500ms));
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
  EXPECT_EQ(cluster[1].failure(), std::nullopt);
}

// Shared by the ranks of a host, of which the first speaks.
std::vector<std::shared_ptr<HostPulse>> pulses_of(int ranks) {
  const auto memory = std::make_shared<std::vector<int64_t>>(HostPulse::bytes(ranks) / 8);
  std::vector<std::shared_ptr<HostPulse>> pulses;
  for (int rank = 0; rank < ranks; ++rank)
    pulses.push_back(std::make_shared<HostPulse>(std::shared_ptr<void>(memory, memory->data()),
                                                 ranks, rank, rank == 0));
  return pulses;
}

TEST(HostPulse, ShowsWhichRanksLive) {
  const auto pulses = pulses_of(4);
  const HostPulse::Time start{1h};
  EXPECT_THAT(pulses[0]->living(start), IsEmpty());
  for (const int rank : {0, 1, 3}) pulses[rank]->beat(start + rank * 1s);
  EXPECT_THAT(pulses[0]->living(start), ElementsAre(1, 3));
  EXPECT_THAT(pulses[0]->living(start + 2s), ElementsAre(3));
  EXPECT_EQ(pulses[2]->service_heard(start), HostPulse::Time());
  pulses[0]->hear_service(start);
  EXPECT_EQ(pulses[2]->service_heard(start + 1s), start);
}

// Two ranks of a host, of which the first speaks.
class Heartbeats : public ::testing::Test {
 protected:
  Heartbeats() {
    speaker.share(pulses[0]);
    other.share(pulses[1]);
  }

  const Job job = job_of(2);
  const std::vector<std::shared_ptr<HostPulse>> pulses = pulses_of(2);
  const HostPulse::Time start{1h};
  cluster::Heartbeats speaker{job, start}, other{job, start};
};

TEST_F(Heartbeats, AreLeftToTheSpeakerWhileItHearsTheService) {
  EXPECT_TRUE(other.due(start));  // the speaker has heard nothing yet
  other.hear(start);
  auto now = start;
  for (; now < start + 10s; now += 1s) {
    EXPECT_THAT(speaker.due(now)->living, ElementsAre(1));
    speaker.hear(now);
    if (now > start && now >= other.next()) {
      EXPECT_FALSE(other.due(now));
    }
    EXPECT_EQ(other.silence(now), 0s);
  }
  speaker.due(now);
  speaker.hear(now);
  EXPECT_TRUE(other.due(now));  // a connection is used now and then
  other.hear(now);
  EXPECT_FALSE(other.due(now + 100ms));
  EXPECT_TRUE(other.due(now + 5s));  // the speaker is late
  EXPECT_THAT(speaker.due(now + 7s)->living, ElementsAre(1));
  EXPECT_THAT(speaker.due(now + 9s)->living, IsEmpty());
}

TEST_F(Heartbeats, FindThatOnlyTheirOwnConnectionIsBroken) {
  int sent = 0;
  auto now = start;
  for (; other.silence(now) < job.heartbeat_timeout && now < start + 60s; now += 500ms) {
    if (now >= speaker.next()) speaker.due(now);
    speaker.hear(now);
    if (now >= other.next()) sent += other.due(now).has_value();
  }
  EXPECT_GE(now - start, job.heartbeat_timeout);
  EXPECT_LE(now - start, 45s);
  EXPECT_GE(sent, 8);
  EXPECT_TRUE(other.speaker_hears(now));
  EXPECT_FALSE(speaker.speaker_hears(now));
  other.hear(now);
  EXPECT_EQ(other.silence(now), 0s);
  EXPECT_FALSE(other.speaker_hears(now + 30s));
}

TEST_F(Heartbeats, OfALateSpeakerNameAllRanksThatHaveBeatenSinceItsLast) {
  speaker.due(start + 1s);
  pulses[1]->beat(start + 1100ms);
  EXPECT_THAT(speaker.due(start + 4s)->living, ElementsAre(1));
  EXPECT_THAT(speaker.due(start + 6s)->living, IsEmpty());
}

TEST_F(Heartbeats, AreSentByAllRanksWhileTheSpeakerOnlyHears) {
  speaker.due(start);
  EXPECT_TRUE(other.due(start));
  for (auto now = start; now < start + 3s; now += 100ms) {  // its thread has no core
    speaker.hear(now);
    other.hear(now);
  }
  EXPECT_TRUE(other.due(start + 3s));
}

TEST_F(Heartbeats, OfASpeakerThatIsFasterAreHeard) {
  pulses[0]->hear_service(start + 100s + 1ms);  // after this rank has read its clock
  EXPECT_EQ(other.silence(start + 100s), 0s);
  other.due(start + 100s);
  EXPECT_EQ(other.silence(start + 100s), 0s);
}

TEST(Coordination, RanksStayWhoseSpeakerSendsTheirHeartbeats) {
  Job job = job_of(3);
  job.heartbeat_timeout = 800ms;
  Cluster cluster(3, 3, job);
  const auto pulses = pulses_of(3);
  for (int rank = 0; rank < 3; ++rank) cluster[rank].share_heartbeats(pulses[rank]);
  EXPECT_ERROR(DeadlineExceededError, "waited 2.5 s", cluster[0].exchange("alone", "", 2500ms));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(cluster[rank].failure(), std::nullopt);
    EXPECT_EQ(cluster[rank].silence(), 0s);
  }
  cluster.connections[0].reset();  // now each sends its own
  const auto end = std::chrono::steady_clock::now() + 2500ms;
  while (std::chrono::steady_clock::now() < end) {
    for (const int rank : {1, 2}) ASSERT_EQ(cluster[rank].failure(), std::nullopt);
    std::this_thread::sleep_for(10ms);
  }
}

TEST(Coordination, AGoodbyeNeitherWaitsForAStoppedServiceNorIsLost) {
  Child service({"serve", "2"});
  const std::string address = service.line();
  const auto stays = join(job_of(2), address, 0);
  auto leaves = join(job_of(2), address, 1);
  service.send_signal(SIGSTOP);
  EXPECT_LT(time_of([&] { leaves.reset(); }), 1s);
  service.send_signal(SIGCONT);
  EXPECT_ERROR(UnavailableError, "rank 1 (127.0.0.1:5001) has left the job",
               stays->exchange("a", "", kLong));
}

TEST(Join, WaitsForTheService) {
  const Job job = job_of(1);
  const std::string address = serve(job)->address();  // free again
  auto joined = std::async(std::launch::async, [&] { return join(job, address, 0); });
  EXPECT_EQ(joined.wait_for(300ms), std::future_status::timeout);
  const auto service = serve(job, address);
  EXPECT_EQ(joined.get()->exchange("a", "x", kLong), std::vector<std::string>{"x"});
}

TEST(Join, SaysThatThereIsNoService) {
  const std::string address = serve(job_of(1))->address();
  EXPECT_ERROR(DeadlineExceededError,
               "no coordination service at " + address +
                   " after 0.3 s: is the chief running, and can this host reach it?",
               join(job_of(1), address, 0, 300ms));
}

TEST(Join, SaysSoOfAServerThatNeverAnswers) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(any);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&any), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&any), &size), 0);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(any.sin_port));
  EXPECT_ERROR(DeadlineExceededError, "no coordination service at " + address,
               join(job_of(1), address, 0, 300ms));
  close(listener);
}

TEST(Join, WritesNothingToStderr) {
  const std::string address = serve(job_of(1))->address();
  const Child worker({"join", address, "0", "1", "1"});
  EXPECT_THAT(worker.line(), HasSubstr("no coordination service at " + address + " after 1 s"));
  EXPECT_EQ(worker.line(), "");
}

TEST(Join, NeedsTheToken) {
  Cluster cluster(2, 1);
  for (const std::string token : {"", "Sesame", "sesame ", "sesam"}) {
    Job job = cluster.job;
    job.token = token;
    EXPECT_ERROR(UnauthenticatedError, "as rank 1: wrong token",
                 join(job, cluster.service->address(), 1));
  }
  EXPECT_GE(cluster.service->refused(), 4);  // gRPC may have tried again before it was stopped
  Job job = cluster.job;
  job.token.assign(4097, 'x');
  EXPECT_ERROR(InvalidArgumentError, "token has 4097 bytes",
               join(job, cluster.service->address(), 1));
  EXPECT_NE(join(cluster.job, cluster.service->address(), 1), nullptr);
}

TEST(Join, TakesAnyBytesForAToken) {
  Job job = job_of(1);
  job.token = std::string("\0\xff\n", 3) + std::string(4000, '\x80');
  Cluster cluster(1, 1, job);
  EXPECT_EQ(cluster[0].exchange("a", "x", kLong).size(), 1u);
}

TEST(Join, NeedsTheSameJob) {
  Cluster cluster(2, 0);
  const std::string address = cluster.service->address();
  Job other = cluster.job;
  other.version = "0.0.9";
  EXPECT_ERROR(FailedPreconditionError,
               "the worker runs version 0.0.9 of Tutti and the service 1.2.3",
               join(other, address, 0));
  EXPECT_ERROR(FailedPreconditionError,
               "rank 0 belongs to a job of 3 ranks and the service to one of 2",
               join(job_of(3), address, 0));
  EXPECT_EQ(cluster.service->refused(), 2);
  EXPECT_ERROR(InvalidArgumentError, "as rank 2: the job has 2 ranks",
               join(cluster.job, address, 2));
  EXPECT_ERROR(InvalidArgumentError, "as rank -1", join(cluster.job, address, -1));
}

TEST(Join, RefusesARankThatHasJoinedBefore) {
  Cluster cluster(3, 2);
  const std::string address = cluster.service->address();
  const std::string before =
      "rank 1 (127.0.0.1:5001) has joined before; a restarted worker cannot rejoin: restart the "
      "whole job";
  EXPECT_ERROR(FailedPreconditionError, before, join(cluster.job, address, 1));  // lives
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
  cluster.connections[1].reset();
  EXPECT_ERROR(FailedPreconditionError, before, join(cluster.job, address, 1));  // left
  {
    const Child worker({"join", address, "2", "3", "20"});
    ASSERT_EQ(worker.line(), "joined");
  }
  EXPECT_EQ(FailureListener(cluster[0]).failure().rank, 2);
  EXPECT_ERROR(FailedPreconditionError, "rank 2 (127.0.0.1:5002) has joined before",
               join(cluster.job, address, 2));  // died
}

TEST(Join, HeedsNoProxy) {
  setenv("http_proxy", "http://127.0.0.1:9", 1);
  setenv("grpc_proxy", "http://127.0.0.1:9", 1);
  Cluster cluster(1);
  EXPECT_EQ(cluster[0].exchange("a", "x", kLong).size(), 1u);
  unsetenv("http_proxy");
  unsetenv("grpc_proxy");
}

}  // namespace
}  // namespace tutti
