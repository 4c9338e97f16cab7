// SPDX-License-Identifier: Apache-2.0
// The coordination service among strangers, and with TLS.
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "cluster/coordination_cluster.h"
#include "cluster/coordination_support.h"
#include "support/expect.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using cluster::Failure;
using cluster::Job;
using cluster::Service;
using testing::Child;
using testing::Cluster;
using testing::error_of;
using ::testing::HasSubstr;
using testing::job_of;
using testing::join;
using testing::kLong;
using testing::on_all;
using testing::serve;

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

TEST(Service, IsEmptyBeforeARankJoins) { EXPECT_TRUE(serve(job_of(2))->wait_until_empty(0s)); }

TEST(Service, IsQuietIfTheRanksThatAreHereAreSilent) {
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

TEST(Service, IsNotQuietWhileARankIsHeard) {
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
