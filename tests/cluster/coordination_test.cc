// SPDX-License-Identifier: Apache-2.0
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "cluster/coordination_module.h"
#include "cluster/coordination_support.h"
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
using cluster::Job;
using cluster::Service;
using testing::Child;
using testing::cluster_module;
using testing::error_of;
using ::testing::HasSubstr;
using testing::job_of;

constexpr auto kLong = 20s;  // for what should take no time

std::unique_ptr<Service> serve(const Job& job, const std::string& address = "127.0.0.1:0") {
  return cluster_module().serve(job, address);
}

std::unique_ptr<Coordination> join(const Job& job, const std::string& service, int rank,
                                   std::chrono::nanoseconds timeout = kLong) {
  return cluster_module().join(job, service, rank, timeout);
}

// A job with its service and the connections of its first `here` ranks.
struct Cluster {
  explicit Cluster(int ranks, int here = -1, Job the_job = {})
      : job(the_job.addresses.empty() ? job_of(ranks) : std::move(the_job)), service(serve(job)) {
    for (int rank = 0; rank < (here < 0 ? ranks : here); ++rank)
      connections.push_back(join(job, service->address(), rank));
  }
  Coordination& operator[](int rank) { return *connections[rank]; }
  int size() const { return static_cast<int>(connections.size()); }

  Job job;
  std::unique_ptr<Service> service;
  std::vector<std::unique_ptr<Coordination>> connections;
};

// Runs body(rank) on a thread per rank.
template <class Body>
void on_all(int ranks, const Body& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

// The failure that a connection reports, within two seconds after it is due.
class Ear {
 public:
  explicit Ear(Coordination& connection) {
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

TEST_P(CoordinationOfRanks, ExchangesEverybodysValue) {
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

TEST(Coordination, NamesThoseWhoDidNotComeToAnExchange) {
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
  Ear ear(cluster[0]);
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

TEST(Coordination, TellsEveryoneThatARankDied) {
  Cluster cluster(3, 2);
  Child worker({"join", cluster.service->address(), "2", "3", "20"});
  ASSERT_EQ(worker.line(), "joined");
  Ear ears[] = {Ear(cluster[0]), Ear(cluster[1])};
  auto waiting = std::async(std::launch::async, [&] {
    return error_of<UnavailableError>([&] { cluster[0].exchange("a", "", kLong); });
  });
  worker.send_signal(SIGKILL);
  const std::string lost =
      "rank 2 (127.0.0.1:5002) is lost: its connection to the coordination service closed";
  for (Ear& ear : ears) {
    const Failure failure = ear.failure();
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
  Ear ear(cluster[0]);
  worker.say("abort\ndie");
  const Failure failure = ear.failure();
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
  EXPECT_EQ(Ear(*late).failure().text, "enough");
}

TEST(Coordination, NoticesThatTheServiceIsGone) {
  Cluster cluster(3);
  std::vector<Ear> ears;
  for (int rank = 0; rank < 3; ++rank) ears.emplace_back(cluster[rank]);
  const std::string gone =
      "the coordination service at " + cluster.service->address() + " is gone: ";
  auto waiting = std::async(std::launch::async, [&] {
    return error_of<UnavailableError>([&] { cluster[0].exchange("a", "", kLong); });
  });
  EXPECT_LT(time_of([&] { cluster.service.reset(); }), 1s);
  for (Ear& ear : ears) {
    const Failure failure = ear.failure();
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
  Ear ear(*connection);
  service.send_signal(SIGKILL);
  EXPECT_THAT(ear.failure().text, HasSubstr(address + " is gone: its connection closed"));
}

TEST(Coordination, NoticesASilentService) {
  Child service({"serve", "2"});
  Job job = job_of(2);
  job.heartbeat_timeout = 1500ms;
  const std::string address = service.line();
  auto connection = join(job, address, 0);
  Ear ear(*connection);
  service.send_signal(SIGSTOP);
  EXPECT_THAT(ear.failure(job.heartbeat_timeout).text,
              HasSubstr(address + " is gone: nothing heard from it for 1.5 s"));
  EXPECT_LT(time_of([&] { connection.reset(); }), 1s);
}

TEST(Coordination, NoticesASilentRank) {
  Job job = job_of(2);
  job.heartbeat_timeout = 1500ms;
  Cluster cluster(2, 1, job);
  Child worker({"join", cluster.service->address(), "1", "2", "20"});
  ASSERT_EQ(worker.line(), "joined");
  Ear ear(cluster[0]);
  worker.send_signal(SIGSTOP);
  const Failure failure = ear.failure(job.heartbeat_timeout);
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
  EXPECT_EQ(Ear(cluster[0]).failure().rank, 2);
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

TEST(Service, NeedsAFreeAddressOfThisMachine) {
  const auto service = serve(job_of(1));
  const std::string in_use = service->address();
  EXPECT_ERROR(UnavailableError,
               "cannot listen on " + in_use +
                   ": the address is in use by another process, or is not one of this machine's; "
                   "choose another port",
               serve(job_of(1), in_use));
  EXPECT_ERROR(UnavailableError, "cannot listen on 203.0.113.7:0",
               serve(job_of(1), "203.0.113.7:0"));
  EXPECT_ERROR(UnavailableError, "cannot listen on nonsense", serve(job_of(1), "nonsense:x"));
  EXPECT_NE(join(job_of(1), in_use, 0), nullptr);
}

TEST(Service, NeedsASoundJob) {
  EXPECT_ERROR(InvalidArgumentError, "at least one address", serve({}));
  Job job = job_of(1);
  job.heartbeat_timeout = 0s;
  EXPECT_ERROR(InvalidArgumentError, "a heartbeat timeout of 0 s", serve(job));
}

TEST(Service, IsEmptyBeforeAnybodyJoins) { EXPECT_TRUE(serve(job_of(2))->wait_until_empty(0s)); }

TEST(Service, IsQuietWhereThoseWhoAreHereAreSilent) {
  Job job = job_of(2);
  job.heartbeat_interval = 200ms;
  Cluster cluster(2, 0, job);
  Child worker({"join", cluster.service->address(), "1", "2", "20"});
  ASSERT_EQ(worker.line(), "joined");
  worker.send_signal(SIGSTOP);
  EXPECT_TRUE(cluster.service->wait_until_quiet(kLong));
  EXPECT_FALSE(cluster.service->wait_until_empty(0s));
  worker.send_signal(SIGKILL);
  EXPECT_TRUE(cluster.service->wait_until_empty(kLong));
}

TEST(Service, IsNotQuietWhileSomebodyIsHeard) {
  Cluster cluster(2);
  EXPECT_FALSE(cluster.service->wait_until_quiet(100ms));
  cluster.connections.clear();
  EXPECT_TRUE(cluster.service->wait_until_quiet(kLong));
}

TEST(Service, LeavesNoThreadBehind) {
  const auto cycle = [] {
    Cluster cluster(3);
    on_all(3, [&](int rank) { cluster[rank].exchange("a", "", kLong); });
  };
  cycle();  // gRPC starts threads of its own
  const int before = testing::threads_of_this_process();
  for (int i = 0; i < 5; ++i) cycle();
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (testing::threads_of_this_process() > before && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_LE(testing::threads_of_this_process(), before);
}

// What a worker with the token "sesame" asks for by HTTP CONNECT: the HMAC with SHA-256 of "tutti:
// join the coordination service".
constexpr char kPass[] = "tutti-4885a542b567577e9a811e45c5b3f40bfea6dc65b30499dfa7e0fcd73a352deb";

// Calls the service's method without being of the job; without a pass, as any client of gRPC does.
class StrangerCall {
 public:
  StrangerCall(const std::string& address, const std::string& hello,
               const std::string& method = "/tutti.cluster.wire.Coordinator/Join",
               const std::string& pass = kPass)
      : stub_(channel(address, pass)) {
    if (!hello.empty()) context_.AddMetadata("tutti-hello-bin", hello);
    context_.set_deadline(std::chrono::system_clock::now() + kLong);
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    next();
  }
  ~StrangerCall() {
    queue_.Shutdown();
    void* tag;
    for (bool ok; queue_.Next(&tag, &ok);) {
    }
  }

  void write(const std::string& bytes) {
    grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    next();
  }
  grpc::Status end() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    next();
    return status;
  }

 private:
  static std::shared_ptr<grpc::Channel> channel(const std::string& address,
                                                const std::string& pass) {
    grpc::ChannelArguments arguments;
    if (!pass.empty()) arguments.SetString("grpc.http_connect_server", pass);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  void next() {
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

TEST(Service, RefusesStrangers) {
  Cluster cluster(2, 1);
  const std::string address = cluster.service->address();
  const std::string garbage("\xff\xfe\x00garbage", 10);
  for (const std::string& hello : {std::string(), garbage, std::string("\x0a\x01x", 3)})
    EXPECT_EQ(StrangerCall(address, hello).end().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(cluster.service->refused(), 3);
  for (const std::string method : {"/tutti.cluster.wire.Coordinator/Join", "/other/Method"}) {
    const grpc::Status status = StrangerCall(address, "", method, "").end();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  }
  EXPECT_EQ(StrangerCall(address, "", "/other/Method").end().error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  // Metadata beyond the limit does not even reach the method.
  EXPECT_FALSE(StrangerCall(address, std::string(1 << 20, 'x')).end().ok());
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
  EXPECT_NE(join(cluster.job, address, 1), nullptr);
}

TEST(Service, StoresNothingForStrangers) {
  Child service({"serve", "1"});
  const std::string address = service.line();
  join(job_of(1), address, 0);  // so that gRPC has allocated what it needs
  const size_t before = testing::peak_kib(service.pid());
  for (const size_t mib : {1, 60, 200})
    for (const std::string pass : {kPass, ""}) {
      StrangerCall call(address, "", "/tutti.cluster.wire.Coordinator/Join", pass);
      call.write(std::string(mib << 20, 'x'));
      EXPECT_EQ(call.end().error_code(),
                pass.empty() ? grpc::StatusCode::UNAVAILABLE : grpc::StatusCode::UNAUTHENTICATED);
    }
  service.say("refused");
  EXPECT_EQ(service.line(), "3");
  EXPECT_LT(testing::peak_kib(service.pid()), before + (16 << 10));
}

TEST(Service, IsNotDisturbedByGarbage) {
  Cluster cluster(2);
  const std::string address = cluster.service->address();
  std::atomic<bool> over = false;
  std::jthread strangers([&] {
    uint32_t random = 1;
    const auto noise = [&](size_t size) {
      std::string bytes(size, '\0');
      for (char& byte : bytes)
        byte = static_cast<char>((random = random * 1664525 + 1013904223) >> 24);
      return bytes;
    };
    const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    std::vector<std::unique_ptr<testing::RawSocket>> silent;
    while (!over) {
      if (silent.size() < 100) silent.push_back(std::make_unique<testing::RawSocket>(address));
      testing::RawSocket(address).send_bytes(noise(5000));
      testing::RawSocket(address).send_bytes("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
      testing::RawSocket(address).send_bytes(preface + noise(5000));
      // SETTINGS, then a frame that claims 16 MiB.
      testing::RawSocket(address).send_bytes(
          preface + std::string("\0\0\0\4\0\0\0\0\0\xff\xff\xff\0\0\0\0\0\1", 18) + noise(5000));
    }
  });
  on_all(2, [&](int rank) {
    for (int i = 0; i < 500; ++i)
      ASSERT_EQ(cluster[rank].exchange(std::to_string(i), "x", kLong).size(), 2u);
  });
  over = true;
  strangers.join();
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
  EXPECT_EQ(cluster.service->refused(), 0);  // nothing of it reached a method
}

TEST(Service, ListensOnNamesAndOnBothKindsOfAddresses) {
  for (const std::string host : {"127.0.0.1", "localhost", "[::1]", "0.0.0.0", "[::]"}) {
    if (host.starts_with('[') && !testing::has_ipv6()) continue;
    const Job job = job_of(1);
    const auto service = serve(job, host + ":0");
    const std::string address = service->address();
    EXPECT_THAT(address, ::testing::StartsWith(host + ":"));
    EXPECT_ERROR(UnavailableError, "cannot listen on " + address, serve(job, address));
    const auto rank = join(job, address, 0);
    EXPECT_EQ(rank->exchange("a", "x", kLong), std::vector<std::string>{"x"});
  }
}

// Sockets of this process that it has two descriptors of.
int duplicated_sockets() {
  std::map<std::string, int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone);
    if (target.starts_with("socket:")) ++descriptors[target];
  }
  return int(std::ranges::count_if(descriptors, [](const auto& d) { return d.second > 1; }));
}

bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

TEST(Service, TellsOfTheWorkersThatItRefuses) {
  struct Report {
    std::string text;
    std::chrono::steady_clock::time_point time;
  };
  std::mutex mutex;
  std::vector<Report> reports;
  Job job = job_of(3);
  job.on_refused = [&](const std::string& text) {
    std::lock_guard lock(mutex);
    reports.push_back({text, std::chrono::steady_clock::now()});
  };
  Cluster cluster(3, 2, job);
  const std::string address = cluster.service->address();
  Job token = job, version = job;
  token.token = "open";
  version.version = "0.0.9\n";
  EXPECT_ERROR(UnauthenticatedError, "wrong token", join(token, address, 2));
  EXPECT_ERROR(FailedPreconditionError, "version 0.0.9", join(version, address, 2));
  EXPECT_ERROR(FailedPreconditionError, "a job of 4 ranks", join(job_of(4), address, 2));
  for (int i = 0; i < 10; ++i)
    EXPECT_ERROR(FailedPreconditionError, "joined before", join(job, address, 1));
  const std::string all[] = {
      "127.0.0.1 (wrong token)",
      "127.0.0.1 (the worker runs version 0.0.9? of Tutti and the service 1.2.3)",
      "127.0.0.1 (rank 2 belongs to a job of 4 ranks and the service to one of 3)",
      "127.0.0.1 (rank 1 (127.0.0.1:5001) has joined before)"};
  const auto told = [&](const std::string& refused) {
    std::lock_guard lock(mutex);
    return std::ranges::any_of(
        reports, [&](const Report& r) { return r.text.find(refused) != r.text.npos; });
  };
  std::string meanwhile = "127.0.0.1:5002, has not joined); refused meanwhile: " + all[0];
  for (size_t i = 1; i < std::size(all); ++i) meanwhile += ", " + all[i];
  for (const std::string& refused : all)
    EXPECT_TRUE(comes_true([&] { return told(refused); })) << refused;
  EXPECT_ERROR(DeadlineExceededError, meanwhile, cluster[0].exchange("start", "", 50ms));
  std::lock_guard lock(mutex);
  for (size_t i = 0; i < reports.size(); ++i) {
    EXPECT_THAT(reports[i].text, ::testing::Not(HasSubstr("open")));
    EXPECT_THAT(reports[i].text, ::testing::Not(HasSubstr("sesame")));
    if (i > 0) {
      EXPECT_GE(reports[i].time - reports[i - 1].time, 1s);
    }
  }
}

// The service can cut a connection by a second descriptor of it, until it has joined.
TEST(Service, LetsGoOfTheConnectionThatJoins) {
  for (const std::string host : {"127.0.0.1", "localhost", "[::1]", "[::]"}) {
    if (host.starts_with('[') && !testing::has_ipv6()) continue;
    const Job job = job_of(1);
    const auto service = serve(job, host + ":0");
    const int before = duplicated_sockets();
    std::optional<testing::RawSocket> stranger;
    if (host != "[::1]") {  // with a pass, but it never joins
      stranger.emplace(service->address());
      stranger->send_bytes("CONNECT " + std::string(kPass) + " HTTP/1.0\r\n\r\n");
      EXPECT_TRUE(comes_true([&] { return duplicated_sockets() == before + 1; })) << host;
    }
    const auto rank = join(job, service->address(), 0);
    EXPECT_TRUE(comes_true([&] { return duplicated_sockets() == before + stranger.has_value(); }))
        << host;
    stranger.reset();
    EXPECT_TRUE(comes_true([&] { return duplicated_sockets() == before; })) << host;
  }
}

int descriptors_of_this_process() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return int(std::distance(begin(files), end(files)));
}

// Connections that say `words` and then nothing cost a bounded number of descriptors, and a rank
// comes in all the same.
void expect_bounded(const Job& job, const std::string& words) {
  const auto service = serve(job);
  const auto first = join(job, service->address(), 0);
  const int before = descriptors_of_this_process();
  std::vector<std::unique_ptr<testing::RawSocket>> silent;
  for (int i = 0; i < 600; ++i) {
    silent.push_back(std::make_unique<testing::RawSocket>(service->address()));
    silent.back()->send_bytes(words);
  }
  const auto second = join(job, service->address(), 1);
  EXPECT_LE(descriptors_of_this_process() - before - int(silent.size()), 300);
  EXPECT_EQ(first->failure(), std::nullopt);
  auto heard = std::async(std::launch::async, [&] { return second->exchange("a", "2", kLong); });
  first->exchange("a", "1", kLong);
  EXPECT_EQ(heard.get(), (std::vector<std::string>{"1", "2"}));
}

TEST(Service, HoldsFewConnectionsThatDoNotJoin) {
  for (const std::string& words :
       {std::string(), std::string("CONNECT tutti-"),
        "CONNECT " + std::string(kPass) + " HTTP/1.0\r\n\r\n",
        "CONNECT " + std::string(kPass) + " HTTP/1.0\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"})
    expect_bounded(job_of(2), words);
}

TEST(Service, AFloodFromOneHostCostsConnectionsOfThatHostOnly) {
  const auto service = serve(job_of(1));
  testing::RawSocket slow(service->address(), INADDR_LOOPBACK + 1);
  slow.send_bytes("CONNECT ");
  testing::RawSocket oldest(service->address());
  std::vector<std::unique_ptr<testing::RawSocket>> flood;
  for (int i = 0; i < 600; ++i)
    flood.push_back(std::make_unique<testing::RawSocket>(service->address()));
  EXPECT_EQ(oldest.receive(), "");
  slow.send_bytes(std::string(kPass) + " HTTP/1.0\r\n\r\n");
  EXPECT_THAT(slow.receive(), ::testing::StartsWith("HTTP/1.1 200"));
}

class Tls : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { files_ = new testing::Certificates; }
  static void TearDownTestSuite() { delete files_; }

  static Job job_with(const std::string& certificate, const std::string& key,
                      const std::string& authority) {
    Job job = job_of(2);
    job.certificate = *files_ / certificate;
    job.key = *files_ / key;
    job.authority = *files_ / authority;
    return job;
  }
  static Job job() { return job_with("a.pem", "a.key", "ca.pem"); }

  static inline testing::Certificates* files_ = nullptr;
};

TEST_F(Tls, Exchanges) {
  Cluster cluster(2, 2, job());
  on_all(2, [&](int rank) {
    EXPECT_EQ(cluster[rank].exchange("a", "x", kLong), (std::vector<std::string>{"x", "x"}));
  });
}

TEST_F(Tls, RefusesOtherAuthoritiesAndPlainText) {
  Cluster cluster(2, 1, job());
  const std::string address = cluster.service->address();
  for (const std::string whose : {"", "other-"})
    EXPECT_ERROR(UnauthenticatedError,
                 "certificate is not from the authority " + (*files_ / "other-ca.pem"),
                 join(job_with(whose + "a.pem", whose + "a.key", "other-ca.pem"), address, 1));
  // Workers that the service does not trust are not told why.
  for (const Job& stranger : {job_with("other-a.pem", "other-a.key", "ca.pem"), job_of(2)})
    EXPECT_ERROR(DeadlineExceededError, "no coordination service at " + address,
                 join(stranger, address, 1, 500ms));
  EXPECT_EQ(cluster[0].failure(), std::nullopt);
  EXPECT_NE(join(job(), address, 1), nullptr);
}

TEST_F(Tls, HoldsFewConnectionsThatDoNotFinishTheHandshake) {
  for (const std::string words : {"", "CONNECT tutti-tls HTTP/1.0\r\n\r\n"})
    expect_bounded(job(), words);
}

TEST_F(Tls, NeedsTheTokenToo) {
  Cluster cluster(2, 1, job());
  Job wrong = job();
  wrong.token = "open";
  EXPECT_ERROR(UnauthenticatedError, "as rank 1: wrong token",
               join(wrong, cluster.service->address(), 1));
  EXPECT_EQ(cluster.service->refused(), 1);
}

TEST_F(Tls, RefusesACertificateOfAnotherAddress) {
  const auto service = serve(job(), "127.0.0.2:0");
  EXPECT_ERROR(UnauthenticatedError, "the service's certificate is for another address",
               join(job(), service->address(), 0));
}

TEST_F(Tls, RefusesAPlainTextService) {
  const auto service = serve(job_of(2));
  EXPECT_ERROR(DeadlineExceededError, "no coordination service",
               join(job(), service->address(), 0, 500ms));
}

TEST_F(Tls, NamesTheFileThatIsWrong) {
  const std::string missing = *files_ / "missing.pem", folder = *files_ / ".";
  for (const auto& use : {std::function([](const Job& job) { serve(job); }),
                          std::function([](const Job& job) { join(job, "127.0.0.1:1", 0, 1s); })}) {
    EXPECT_ERROR(NotFoundError, "cannot read the certificate " + missing,
                 use(job_with("missing.pem", "a.key", "ca.pem")));
    EXPECT_ERROR(NotFoundError, "cannot read the key " + missing,
                 use(job_with("a.pem", "missing.pem", "ca.pem")));
    EXPECT_ERROR(InvalidArgumentError, folder + " is not a certificate in PEM format",
                 use(job_with("a.pem", "a.key", ".")));
    EXPECT_ERROR(InvalidArgumentError, "san is not one in PEM format",
                 use(job_with("san", "a.key", "ca.pem")));
    EXPECT_ERROR(InvalidArgumentError, "a.key is not a certificate in PEM format",
                 use(job_with("a.pem", "a.key", "a.key")));
    EXPECT_ERROR(InvalidArgumentError, "belongs to another certificate than " + (*files_ / "a.pem"),
                 use(job_with("a.pem", "other-a.key", "ca.pem")));
    Job half = job();
    half.certificate.clear();
    EXPECT_ERROR(InvalidArgumentError, "the job has no certificate", use(half));
  }
}

}  // namespace
}  // namespace tutti
