// SPDX-License-Identifier: Apache-2.0
// The gRPC server around JobState: one stream per rank, and one thread that keeps time.
#include <fmt/format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "cluster/grpc/acceptor.h"
#include "cluster/grpc/grpc_cluster.h"
#include "cluster/grpc/wire.h"
#include "cluster/job_state.h"

namespace tutti::cluster {

namespace {

using ServerStream = grpc::ServerBidiReactor<wire::ToService, wire::FromService>;

// A connection that says nothing, or has nothing to say any more, is closed after this.
constexpr int kStrangerTimeoutMs = 10'000;
constexpr std::chrono::seconds kReportInterval{1};
constexpr size_t kLargestReason = 200;

Hello hello_of(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kHelloKey);
  wire::Hello hello;
  if (found == metadata.end() ||
      !hello.ParseFromArray(found->second.data(), static_cast<int>(found->second.size())))
    throw UnauthenticatedError(
        "the call is not one of a worker of Tutti; only workers join a coordination service");
  return {hello.token(), hello.version(), hello.rank(), hello.ranks()};
}

grpc::StatusCode status_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::unauthenticated: return grpc::StatusCode::UNAUTHENTICATED;
    case ErrorCode::failed_precondition: return grpc::StatusCode::FAILED_PRECONDITION;
    case ErrorCode::invalid_argument: return grpc::StatusCode::INVALID_ARGUMENT;
    default: return grpc::StatusCode::INTERNAL;
  }
}

// Ends a call before any message of it is read.
class Refusal final : public ServerStream {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

class GrpcService final : public Service,
                          private wire::Coordinator::CallbackService,
                          private JobState::Outlet {
 public:
  GrpcService(const Job& job, const std::string& address)
      : state_(job, address, *this, Clock::now()), sessions_(job.addresses.size()) {
    listen(job, address);
    timekeeper_ = std::thread([this] { keep_time(); });
    if (job.on_refused)
      reporter_ = std::thread([this, report = job.on_refused] { report_refusals(report); });
  }

  ~GrpcService() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    timekeeper_.join();
    if (reporter_.joinable()) reporter_.join();
    acceptor_->stop();  // gRPC may not get connections while it shuts down
    server_->Shutdown(std::chrono::system_clock::now());
  }

  std::string address() const override { return address_; }

  bool wait_until_empty(std::chrono::nanoseconds timeout) override {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline_after(Clock::now(), timeout),
                               [&] { return state_.empty(); });
  }

  bool wait_until_quiet(std::chrono::nanoseconds timeout) override {
    std::unique_lock lock(mutex_);
    const auto deadline = deadline_after(Clock::now(), timeout);
    while (!state_.empty()) {
      const auto quiet = state_.quiet_at();
      const auto now = Clock::now();
      if (now >= quiet) return true;
      if (now >= deadline) return false;
      changed_.wait_until(lock, std::min(quiet, deadline));
    }
    return true;
  }

  std::optional<Failure> failure() const override {
    std::lock_guard lock(mutex_);
    return state_.first_failure();
  }

  int64_t refused() const override {
    std::lock_guard lock(mutex_);
    return refused_;
  }

 private:
  class Session;

  void listen(const Job& job, const std::string& address);
  void keep_time();
  void refuse(const std::string& host, std::string_view why);
  void report_refusals(const std::function<void(const std::string&)>& report);

  ServerStream* Join(grpc::CallbackServerContext* context) override;
  void send(int rank, FromService message) override;
  void drop(int rank) override;

  mutable std::mutex mutex_;  // guards all below, and what the sessions hold
  std::condition_variable changed_;
  JobState state_;
  std::vector<Session*> sessions_;  // by rank; they end themselves
  JobState::Time alarm_ = JobState::Time::max();
  int64_t refused_ = 0;
  Refusals unreported_;
  bool stopping_ = false;

  std::string address_;
  std::thread timekeeper_, reporter_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> external_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;  // ends first: it hands connections to the others
};

// A rank's stream. There is always one read under way, until the stream is over.
class GrpcService::Session final : public ServerStream {
 public:
  Session(GrpcService& service, grpc::CallbackServerContext& context, int rank)
      : service_(service), context_(context), rank_(rank) {
    StartRead(&in_);
  }

  void send(wire::FromService message) { out_.push(std::move(message)); }
  void cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    bool over = !ok || in_.has_goodbye();
    try {
      hear(ok);
    } catch (const std::exception&) {
      context_.TryCancel();  // out of memory: the next read fails
    }
    if (!over) return StartRead(&in_);
    std::lock_guard lock(service_.mutex_);
    service_.sessions_[rank_] = nullptr;
    over_ = true;
    if (out_.idle()) Finish(grpc::Status::OK);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(service_.mutex_);
    out_.written(ok);
    if (over_ && out_.idle()) Finish(grpc::Status::OK);
  }

  void OnDone() override { delete this; }

 private:
  void hear(bool ok) {
    std::lock_guard lock(service_.mutex_);
    if (service_.stopping_) return;
    if (ok)
      service_.state_.handle(rank_, from_wire(std::move(in_)), Clock::now());
    else
      service_.state_.closed(rank_);
    if (service_.state_.empty() || service_.state_.next_tick() < service_.alarm_)
      service_.changed_.notify_all();
  }

  GrpcService& service_;
  grpc::CallbackServerContext& context_;
  const int rank_;
  wire::ToService in_;
  Outbox<wire::FromService> out_{[this](const wire::FromService* message) { StartWrite(message); }};
  bool over_ = false;
};

void GrpcService::listen(const Job& job, const std::string& address) {
  acceptor_ = std::make_unique<Acceptor>(job, address);
  address_ = fmt::format("{}:{}", address.substr(0, address.rfind(':')), acceptor_->port());
  grpc::ServerBuilder builder;
  external_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      server_credentials(job));
  builder.RegisterService(this);
  builder.SetMaxReceiveMessageSize(kLargestMessage);
  builder.SetMaxSendMessageSize(kLargestMessage);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kUnderWay);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kLargestHello));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kStrangerTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kStrangerTimeoutMs);
  server_ = builder.BuildAndStart();
  if (!server_)
    throw InternalError(fmt::format("cannot serve on {}: gRPC did not start its server", address));
  acceptor_->start(
      [this](int fd) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.fd = fd;
        external_->HandleNewConnection(&connection);
      },
      [this](const std::string& host) {
        std::lock_guard lock(mutex_);
        refuse(host, kWrongToken);
      });
}

void GrpcService::keep_time() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    state_.tick(Clock::now());
    if (state_.empty()) changed_.notify_all();
    alarm_ = state_.next_tick();
    changed_.wait_until(lock, alarm_);
  }
}

// Needs the mutex.
void GrpcService::refuse(const std::string& host, std::string_view why) {
  ++refused_;
  why = why.substr(0, why.find(';'));  // the rest is advice to the worker
  std::string refused = fmt::format("{} ({})", host, why.substr(0, kLargestReason));
  for (char& c : refused)  // it goes to a log, and the worker has chosen a part of it
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  state_.refused(refused);
  unreported_.add(refused);
  changed_.notify_all();
}

void GrpcService::report_refusals(const std::function<void(const std::string&)>& report) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !unreported_.empty(); });
    if (unreported_.empty()) return;
    const std::string text = std::exchange(unreported_, {}).text();
    lock.unlock();
    report(text);
    lock.lock();
    changed_.wait_for(lock, kReportInterval, [&] { return stopping_; });
  }
}

ServerStream* GrpcService::Join(grpc::CallbackServerContext* context) {
  std::lock_guard lock(mutex_);
  try {
    const Hello hello = hello_of(*context);
    state_.admit(hello, Clock::now());
    auto* const session = new Session(*this, *context, hello.rank);
    sessions_[hello.rank] = session;
    acceptor_->joined(context->peer());
    state_.welcome(hello.rank);
    return session;
  } catch (const Error& error) {
    refuse(host_of(context->peer()), error.what());
    return new Refusal(grpc::Status(status_code(error.code()), error.what()));
  } catch (const std::exception& error) {
    return new Refusal(grpc::Status(grpc::StatusCode::INTERNAL, error.what()));
  }
}

void GrpcService::send(int rank, FromService message) {
  if (Session* const session = sessions_[rank]) session->send(to_wire(message));
}

void GrpcService::drop(int rank) {
  if (Session* const session = sessions_[rank]) session->cancel();
}

}  // namespace

std::unique_ptr<Service> serve(const Job& job, const std::string& address) {
  check(job);
  return std::make_unique<GrpcService>(job, address);
}

}  // namespace tutti::cluster
