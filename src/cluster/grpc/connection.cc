// SPDX-License-Identifier: Apache-2.0
// A rank's stream to the coordination service, and the thread that keeps it alive.
#include <fmt/format.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "base/running_time.h"
#include "cluster/grpc/acceptor.h"
#include "cluster/grpc/grpc_cluster.h"
#include "cluster/grpc/wire.h"
#include "cluster/heartbeats.h"

namespace tutti::cluster {

namespace {

using namespace std::chrono_literals;

constexpr auto kRetryInterval = 100ms;

class Connection final : public Coordination,
                         private grpc::ClientBidiReactor<wire::ToService, wire::FromService> {
 public:
  Connection(const Job& job, std::string service, int rank,
             const std::shared_ptr<grpc::Channel>& channel)
      : job_(job),
        service_(std::move(service)),
        rank_(rank),
        stub_(wire::Coordinator::NewStub(channel)),
        heartbeats_(job_, Clock::now()) {
    wire::Hello hello;
    hello.set_token(job.token);
    hello.set_version(job.version);
    hello.set_rank(rank);
    hello.set_ranks(static_cast<int>(job.addresses.size()));
    context_.AddMetadata(kHelloKey, hello.SerializeAsString());
    stub_->async()->Join(&context_, this);
    AddHold();  // until the last read: not only gRPC's callbacks start writes
    StartRead(&in_);
    StartCall();
  }

  ~Connection() override {
    {
      std::unique_lock lock(mutex_);
      closing_ = true;
      changed_.notify_all();
      if (welcomed_) {
        wire::ToService goodbye;
        goodbye.mutable_goodbye();
        send(std::move(goodbye));
        changed_.wait_for(lock, kLeaveTimeout, [&] { return end_.has_value(); });
      }
      if (!end_) context_.TryCancel();
      changed_.wait(lock, [&] { return end_.has_value(); });
    }
    if (watch_.joinable()) watch_.join();
  }

  // Waits for the service's welcome. Without one, `end` says how the stream ended; it is empty if
  // the stream is still open.
  struct Beginning {
    bool welcome;
    std::optional<grpc::Status> end;
  };
  Beginning begin(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return welcomed_ || end_; });
    if (welcomed_) watch_ = std::thread([this] { watch(); });
    return {welcomed_, end_};
  }

  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    std::chrono::nanoseconds timeout, Failure* why,
                                    Sharing* sharing) override {
    check_size("exchange", name, value);
    wire::ToService message;
    message.mutable_exchange()->set_name(name);
    message.mutable_exchange()->set_value(value);
    message.mutable_exchange()->set_timeout_ns(timeout.count());
    if (sharing) {
      message.mutable_exchange()->set_host(sharing->host);
      message.mutable_exchange()->set_place(sharing->place);
    }
    wire::Reply reply =
        call(std::move(message), fmt::format("exchange \"{}\"", name), timeout, why);
    if (sharing) sharing->place = reply.place();
    return {std::move_iterator(reply.mutable_values()->begin()),
            std::move_iterator(reply.mutable_values()->end())};
  }

  void abort(const Failure& failure) override {
    std::unique_lock lock(mutex_);
    if (failure_) return;
    wire::ToService message;
    *message.mutable_abort() = to_wire(failure);
    send(std::move(message));
    // The caller may be about to end the process, so this waits until the service has answered.
    changed_.wait_for(lock, kAbortTimeout, [&] { return failure_.has_value(); });
    fail(failure);
  }

  void report(const Failure& failure) override {
    wire::ToService message;
    *message.mutable_report() = to_wire(failure);
    std::lock_guard lock(mutex_);
    send(std::move(message));
  }

  std::optional<Failure> failure() const override {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  void share_heartbeats(std::shared_ptr<HostPulse> pulse) override {
    std::lock_guard lock(mutex_);
    heartbeats_.share(std::move(pulse));
  }

  std::chrono::nanoseconds silence() const override {
    std::lock_guard lock(mutex_);
    if (silent_) return std::chrono::nanoseconds::max();
    if (end_) return 0ns;
    const std::chrono::nanoseconds silence = heartbeats_.silence(Clock::now());
    return silence > silent_after(job_) ? silence : 0ns;
  }

  void on_failure(std::function<void(const Failure&)> heard) override {
    {
      std::lock_guard lock(mutex_);
      if (on_failure_set_)
        throw FailedPreconditionError("on_failure: this connection has a handler already");
      on_failure_set_ = true;
      if (!failure_) {
        on_failure_ = std::move(heard);
        return;
      }
    }
    heard(*failure_);  // once there, it never changes
  }

 private:
  static void check_size(const char* what, const std::string& name, const std::string& value) {
    if (name.size() > kLargestName)
      throw InvalidArgumentError(fmt::format("{}: a name of {} bytes; at most {} are taken", what,
                                             name.size(), kLargestName));
    if (value.size() > kLargestTotal)
      throw ResourceExhaustedError(fmt::format(
          "{} \"{}\": a value of {} bytes; at most {} are taken from all ranks together", what,
          name, value.size(), kLargestTotal));
  }

  wire::Reply call(wire::ToService message, const std::string& what,
                   std::chrono::nanoseconds timeout, Failure* why) {
    std::unique_lock lock(mutex_);
    const uint64_t id = ++last_id_;
    message.set_id(id);
    replies_[id];
    send(std::move(message));
    // The service watches the deadline, since it knows which ranks are missing.
    const auto answered = [&] { return replies_[id].has_value() || failure_; };
    base::RunningTime waited;
    while (!answered() && waited.elapsed() - job_.heartbeat_timeout < timeout)
      changed_.wait_for(lock, base::RunningTime::kLook, answered);
    const bool in_time = answered();
    std::optional<wire::Reply> reply = std::move(replies_.extract(id).mapped());
    if (!in_time)
      throw DeadlineExceededError(
          fmt::format("{}: the coordination service at {} did not answer", what, service_));
    const std::optional<Failure> error = !reply ? failure_
                                         : reply->has_error()
                                             ? std::optional(from_wire(reply->error()))
                                             : std::nullopt;
    if (error && why) *why = *error;
    if (error) throw_error(error->code, error->text);
    return std::move(*reply);
  }

  // These need the mutex.
  void send(wire::ToService message) {
    if (open_) out_.push(std::move(message));
  }
  void fail(const Failure& failure) {
    if (failure_) return;
    failure_ = failure;
    changed_.notify_all();
  }
  void fail_without_service(const std::string& why) { fail(lost_service(job_, service_, why)); }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      changed_.wait_until(lock, heartbeats_.next(),
                          [&] { return closing_ || (failure_ && on_failure_); });
      if (closing_) return;
      if (failure_ && on_failure_) {
        const auto heard = std::exchange(on_failure_, nullptr);
        lock.unlock();
        heard(*failure_);
        lock.lock();
        continue;
      }
      const auto now = Clock::now();
      if (now < heartbeats_.next()) continue;
      if (const auto heartbeat = heartbeats_.due(now)) {
        wire::ToService message;
        message.mutable_living()->Assign(heartbeat->living.begin(), heartbeat->living.end());
        send(std::move(message));
      }
      if (heartbeats_.silence(now) < job_.heartbeat_timeout) continue;
      if (failure_ || end_) continue;  // it failed for another reason
      if (heartbeats_.speaker_hears(now))
        fail(lost_connection(job_, service_, rank_));
      else
        fail_without_service(
            fmt::format("nothing heard from it for {}", in_seconds(job_.heartbeat_timeout)));
      silent_ = true;
      context_.TryCancel();
    }
  }

  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) {
      open_ = false;
      return RemoveHold();
    }
    try {
      hear();
    } catch (const std::exception&) {
      context_.TryCancel();  // out of memory: the next read fails
    }
    StartRead(&in_);
  }

  void hear() {
    heartbeats_.hear(Clock::now());
    welcomed_ = true;
    if (in_.has_failure()) fail(from_wire(in_.failure()));
    if (in_.has_reply())
      if (const auto found = replies_.find(in_.reply().id()); found != replies_.end())
        found->second = std::move(*in_.mutable_reply());
    changed_.notify_all();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    out_.written(ok && open_);
  }

  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    if (welcomed_ && !closing_)
      fail_without_service(fmt::format("its connection closed ({})", status.error_message()));
    end_ = status;
    changed_.notify_all();
  }

  const Job job_;
  const std::string service_;
  const int rank_;
  const std::unique_ptr<wire::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  wire::FromService in_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  Outbox<wire::ToService> out_{[this](const wire::ToService* message) { StartWrite(message); }};
  bool open_ = true;       // writes may be started
  bool welcomed_ = false;  // the service has let us in
  bool closing_ = false;
  bool silent_ = false;              // the service was declared lost for its silence
  std::optional<grpc::Status> end_;  // gRPC is done with us
  Heartbeats heartbeats_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::optional<wire::Reply>> replies_;  // to the calls under way
  std::optional<Failure> failure_;
  bool on_failure_set_ = false;
  std::function<void(const Failure&)> on_failure_;
  std::thread watch_;
};

std::shared_ptr<grpc::Channel> channel_to(const Job& job, const std::string& service) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kLargestMessage);
  arguments.SetMaxSendMessageSize(kLargestMessage);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kUnderWay);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // The name of gRPC's own argument for the server that a proxy is asked for.
  arguments.SetString("grpc.http_connect_server", pass_of(job));
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // Each rank has its own connection, even if several share a process.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A service that is not there yet may be there in a moment.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 1000);
  return grpc::CreateCustomChannel("dns:///" + service, channel_credentials(job), arguments);
}

// Throws if the service refused the rank, or if waiting for the service cannot help.
void throw_refusal(const grpc::Status& status, const std::string& service, int rank,
                   const std::string& authority) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    throw_error(code, fmt::format("join {} as rank {}: {}", service, rank, why));
  };
  const auto says = [&](const char* words) {
    return status.error_message().find(words) != std::string::npos;
  };
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
      return refuse(ErrorCode::unauthenticated, status.error_message());
    case grpc::StatusCode::FAILED_PRECONDITION:
      return refuse(ErrorCode::failed_precondition, status.error_message());
    case grpc::StatusCode::INVALID_ARGUMENT:
      return refuse(ErrorCode::invalid_argument, status.error_message());
    case grpc::StatusCode::UNAVAILABLE:
      // Waiting does not mend these; only gRPC's text tells them from a service that is not there.
      if (says("response code 403")) refuse(ErrorCode::unauthenticated, kWrongToken);
      if (says("certificate verify failed"))
        refuse(ErrorCode::unauthenticated,
               fmt::format("the service's certificate is not from the authority {}", authority));
      if (says("is not in peer certificate"))
        refuse(ErrorCode::unauthenticated,
               "the service's certificate is for another address; it needs this one as a "
               "subjectAltName");
      return;
    case grpc::StatusCode::UNIMPLEMENTED:
      return refuse(ErrorCode::failed_precondition,
                    "a server answers there, but it is not a coordination service of Tutti");
    default: return;
  }
}

}  // namespace

std::unique_ptr<Coordination> join(const Job& job, const std::string& service, int rank,
                                   std::chrono::nanoseconds timeout) {
  check(job);
  if (rank < 0 || rank >= static_cast<int>(job.addresses.size()))
    throw InvalidArgumentError(fmt::format("join {} as rank {}: the job has {} ranks", service,
                                           rank, job.addresses.size()));
  const Clock::time_point deadline = deadline_after(Clock::now(), timeout);
  const std::shared_ptr<grpc::Channel> channel = channel_to(job, service);
  std::string reason = "no answer";
  do {
    auto connection = std::make_unique<Connection>(job, service, rank, channel);
    const Connection::Beginning beginning = connection->begin(deadline);
    if (beginning.welcome) return connection;
    if (!beginning.end) break;
    throw_refusal(*beginning.end, service, rank, job.authority);
    reason = beginning.end->error_message();
    std::this_thread::sleep_until(std::min(deadline, Clock::now() + kRetryInterval));
  } while (Clock::now() < deadline);
  throw DeadlineExceededError(
      fmt::format("no coordination service at {} after {}: is the chief running, and can this host "
                  "reach it? ({})",
                  service, in_seconds(timeout), reason));
}

}  // namespace tutti::cluster
