// SPDX-License-Identifier: Apache-2.0
#include "sim/coordination.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/running_time.h"
#include "cluster/heartbeats.h"
#include "cluster/job_state.h"

namespace tutti::sim {

using base::Clock;
using cluster::Failure;
using cluster::FromService;
using cluster::ToService;
using namespace std::chrono_literals;

namespace {

constexpr auto kRetry = 100ms;
constexpr size_t kSmall = 64;  // bytes of a message without a value

size_t bytes_of(const ToService& message) {
  const auto* const call = std::get_if<cluster::Exchange>(&message.body);
  return kSmall + (call ? call->name.size() + call->value.size() : 0);
}

size_t bytes_of(const FromService& message) {
  size_t bytes = kSmall;
  const auto* const reply = std::get_if<cluster::Reply>(&message);
  if (reply && reply->values)
    for (const std::string& value : *reply->values) bytes += value.size();
  return bytes;
}

}  // namespace

// The service. One thread of its process does all the work.
class SimulatedService final : public cluster::Service, private cluster::JobState::Outlet {
 public:
  explicit SimulatedService(CoordinationHub& hub)
      : hub_(hub), state_(hub.job_, hub.address_, *this, Clock::now()) {
    hub_.service_ = this;
    thread_ = base::Thread([this] { run(); });
  }
  ~SimulatedService() override {
    hub_.service_ = nullptr;
    stopping_ = true;
    hub_.world_.wake(this);
    thread_.join();
    close_all();
  }

  std::string address() const override { return hub_.address_; }
  bool wait_until_empty(nanoseconds timeout) override {
    const auto until = cluster::deadline_after(Clock::now(), timeout);
    while (!state_.empty() && Clock::now() < until) hub_.world_.wait(&state_, until);
    return state_.empty();
  }
  bool wait_until_quiet(nanoseconds timeout) override {
    const auto until = cluster::deadline_after(Clock::now(), timeout);
    while (!state_.empty()) {
      const auto now = Clock::now(), quiet = state_.quiet_at();
      if (now >= quiet) return true;
      if (now >= until) return false;
      hub_.world_.wait(&state_, std::min(quiet, until));
    }
    return true;
  }
  std::optional<Failure> failure() const override { return state_.first_failure(); }
  int64_t refused() const override { return 0; }

  // Something has come from a rank, for the service's thread.
  void take(std::function<void()> work) {
    inbox_.push_back(std::move(work));
    hub_.world_.wake(this);
  }
  void admit(const cluster::Hello& hello);
  void handle(int rank, const ToService& message) { state_.handle(rank, message, Clock::now()); }
  void closed(int rank) { state_.closed(rank); }
  // The streams of all ranks end.
  void close_all();

 private:
  void run() {
    while (!stopping_) {
      while (!inbox_.empty()) {
        const auto work = std::move(inbox_.front());
        inbox_.pop_front();
        work();
      }
      state_.tick(Clock::now());
      hub_.world_.wake(&state_);
      if (inbox_.empty() && !stopping_) hub_.world_.wait(this, state_.next_tick());
    }
  }
  void send(int rank, FromService message) override;
  void drop(int rank) override;

  CoordinationHub& hub_;
  cluster::JobState state_;
  std::deque<std::function<void()>> inbox_;
  bool stopping_ = false;
  base::Thread thread_;
};

class SimulatedCoordination final : public cluster::Coordination {
 public:
  SimulatedCoordination(CoordinationHub& hub, int rank, nanoseconds timeout)
      : hub_(hub), job_(hub.job_), rank_(rank), heartbeats_(job_, Clock::now()) {
    heartbeats_.share(hub.pulse_for(rank));
    hub_.streams_[size_t(rank)] = this;
    try {
      begin(timeout);
    } catch (...) {
      hub_.streams_[size_t(rank)] = nullptr;
      throw;
    }
    watch_ = base::Thread([this] { watch(); });
  }
  ~SimulatedCoordination() override {
    send({.body = cluster::Goodbye{}});
    closing_ = true;
    hub_.world_.wake(this);
    watch_.join();
    hub_.streams_[size_t(rank_)] = nullptr;
  }

  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    nanoseconds timeout, Failure* why, cluster::Sharing*) override {
    const uint64_t id = ++last_id_;
    replies_[id];
    send({id, cluster::Exchange{name, value, timeout}});
    base::RunningTime waited;
    const auto answered = [&] { return replies_[id].has_value() || failure_; };
    while (!answered() && waited.elapsed() - job_.heartbeat_timeout < timeout)
      hub_.world_.wait(&replies_, Clock::now() + base::RunningTime::kLook);
    const std::optional<cluster::Reply> reply = std::move(replies_.extract(id).mapped());
    const std::optional<Failure> error = reply ? reply->error : failure_;
    if (error && why) *why = *error;
    if (error) throw_error(error->code, error->text);
    if (!reply)
      throw DeadlineExceededError(fmt::format(
          "exchange \"{}\": the coordination service at {} did not answer", name, hub_.address_));
    return *reply->values;
  }

  void abort(const Failure& failure) override {
    if (failure_) return;
    send({.body = cluster::Abort{failure}});
    for (const auto until = Clock::now() + cluster::kAbortTimeout;
         !failure_ && Clock::now() < until;)
      hub_.world_.wait(&replies_, until);
    fail(failure);
  }
  void report(const Failure& failure) override { send({.body = cluster::Report{failure}}); }
  std::optional<Failure> failure() const override { return failure_; }
  // Simulated hosts have no board to share it by.
  void share_heartbeats(std::shared_ptr<cluster::HostPulse>) override {}
  nanoseconds silence() const override {
    if (silent_) return nanoseconds::max();
    if (ended_) return 0ns;
    const nanoseconds silence = heartbeats_.silence(Clock::now());
    return silence > cluster::silent_after(job_) ? silence : 0ns;
  }
  void on_failure(std::function<void(const Failure&)> heard) override {
    if (failure_) return heard(*failure_);
    on_failure_ = std::move(heard);
  }

  // Something has come from the service, for this process's thread.
  void take(FromService message) {
    inbox_.push_back(std::move(message));
    hub_.world_.wake(this);
  }
  void refuse(ErrorCode code, const std::string& text) {
    refusal_ = Failure{-1, code, text};
    hub_.world_.wake(this);
  }
  // The stream has ended.
  void close() {
    ended_ = true;
    hub_.world_.wake(this);
  }

 private:
  void begin(nanoseconds timeout) {
    const auto deadline = cluster::deadline_after(Clock::now(), timeout);
    while (true) {
      refusal_.reset();
      ended_ = false;
      hub_.world_.send(hub_.processes_[size_t(rank_)], hub_.service_process_, kSmall,
                       [hub = &hub_, rank = rank_, hello = own_hello()] {
                         if (hub->service_)
                           hub->service_->take([hub, hello] { hub->service_->admit(hello); });
                         else if (SimulatedCoordination* const stream = hub->streams_[size_t(rank)])
                           stream->close();
                       });
      while (inbox_.empty() && !refusal_ && !ended_ && Clock::now() < deadline)
        hub_.world_.wait(this, deadline);
      if (!inbox_.empty()) return;
      if (refusal_) throw_error(refusal_->code, refusal_->text);
      if (Clock::now() >= deadline)
        throw DeadlineExceededError(fmt::format("rank {}: no coordination service at {} within {}",
                                                rank_, hub_.address_,
                                                cluster::in_seconds(timeout)));
      base::sleep_for(kRetry);
    }
  }
  cluster::Hello own_hello() const {
    return {job_.token, job_.version, rank_, int(job_.addresses.size())};
  }

  void send(ToService message) {
    if (ended_) return;
    const size_t bytes = bytes_of(message);
    hub_.world_.send(hub_.processes_[size_t(rank_)], hub_.service_process_, bytes,
                     [hub = &hub_, rank = rank_, message = std::move(message)] {
                       if (hub->service_)
                         hub->service_->take([hub, rank, message] {
                           if (hub->service_) hub->service_->handle(rank, message);
                         });
                     });
  }

  void fail(const Failure& failure) {
    if (failure_) return;
    failure_ = failure;
    hub_.world_.wake(&replies_);
    if (on_failure_) std::exchange(on_failure_, nullptr)(*failure_);
  }

  void hear(const FromService& message) {
    heartbeats_.hear(Clock::now());
    if (const auto* const failure = std::get_if<Failure>(&message)) fail(*failure);
    if (const auto* const reply = std::get_if<cluster::Reply>(&message))
      if (const auto found = replies_.find(reply->id); found != replies_.end())
        found->second = *reply;
    hub_.world_.wake(&replies_);
  }

  void watch() {
    while (!closing_) {
      while (!inbox_.empty()) {
        hear(inbox_.front());
        inbox_.pop_front();
      }
      if (ended_ && !failure_)
        fail(cluster::lost_service(job_, hub_.address_, "its connection closed"));
      if (const auto now = Clock::now(); now >= heartbeats_.next()) {
        if (auto heartbeat = heartbeats_.due(now)) send({.body = *std::move(heartbeat)});
        if (heartbeats_.silence(now) >= job_.heartbeat_timeout && !failure_ && !ended_) {
          fail(heartbeats_.speaker_hears(now)
                   ? cluster::lost_connection(job_, hub_.address_, rank_)
                   : cluster::lost_service(
                         job_, hub_.address_,
                         fmt::format("nothing heard from it for {}",
                                     cluster::in_seconds(job_.heartbeat_timeout))));
          silent_ = true;
        }
      }
      if (inbox_.empty() && !closing_) hub_.world_.wait(this, heartbeats_.next());
    }
  }

  CoordinationHub& hub_;
  const cluster::Job& job_;
  const int rank_;
  std::deque<FromService> inbox_;
  std::optional<Failure> refusal_;
  bool ended_ = false, closing_ = false, silent_ = false;
  cluster::Heartbeats heartbeats_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::optional<cluster::Reply>> replies_;  // to the calls under way
  std::optional<Failure> failure_;
  std::function<void(const Failure&)> on_failure_;
  base::Thread watch_;
};

void SimulatedService::admit(const cluster::Hello& hello) {
  try {
    state_.admit(hello, Clock::now());
    state_.welcome(hello.rank);
  } catch (const Error& error) {
    hub_.world_.send(
        hub_.service_process_, hub_.processes_[size_t(hello.rank)], kSmall,
        [hub = &hub_, rank = hello.rank, code = error.code(), text = std::string(error.what())] {
          if (SimulatedCoordination* const stream = hub->streams_[size_t(rank)])
            stream->refuse(code, text);
        });
  }
}

void SimulatedService::send(int rank, FromService message) {
  const size_t bytes = bytes_of(message);
  hub_.world_.send(hub_.service_process_, hub_.processes_[size_t(rank)], bytes,
                   [hub = &hub_, rank, message = std::move(message)] {
                     if (SimulatedCoordination* const stream = hub->streams_[size_t(rank)])
                       stream->take(message);
                   });
}

void SimulatedService::drop(int rank) {
  hub_.world_.send(hub_.service_process_, hub_.processes_[size_t(rank)], kSmall,
                   [hub = &hub_, rank] {
                     if (SimulatedCoordination* const stream = hub->streams_[size_t(rank)])
                       stream->close();
                   });
}

void SimulatedService::close_all() {
  for (int rank = 0; rank < int(hub_.processes_.size()); ++rank) drop(rank);
}

CoordinationHub::CoordinationHub(World& world, const cluster::Job& job, std::string address,
                                 std::vector<int> processes, int service)
    : world_(world),
      job_(job),
      address_(std::move(address)),
      processes_(std::move(processes)),
      service_process_(service),
      streams_(processes_.size()) {
  // The system of a host closes the connections of a process that died.
  world_.on_death([this](int process) {
    if (process == service_process_ && service_) std::exchange(service_, nullptr)->close_all();
    const auto found = std::ranges::find(processes_, process);
    if (found == processes_.end()) return;
    const int rank = int(found - processes_.begin());
    if (!std::exchange(streams_[size_t(rank)], nullptr)) return;
    world_.send(process, service_process_, kSmall, [this, rank] {
      if (service_)
        service_->take([this, rank] {
          if (service_) service_->closed(rank);
        });
    });
  });
}

// The first rank of a host that asks becomes the speaker of its host.
std::shared_ptr<cluster::HostPulse> CoordinationHub::pulse_for(int rank) {
  const int ranks = int(processes_.size());
  const auto [found, is_first] = pulses_.try_emplace(world_.host_of(processes_[size_t(rank)]));
  if (is_first)
    found->second = std::make_shared<std::vector<std::byte>>(cluster::HostPulse::bytes(ranks));
  return std::make_shared<cluster::HostPulse>(
      std::shared_ptr<void>(found->second, found->second->data()), ranks, rank, is_first);
}

std::unique_ptr<cluster::Service> CoordinationHub::serve() {
  return std::make_unique<SimulatedService>(*this);
}

std::unique_ptr<cluster::Coordination> CoordinationHub::join(int rank, nanoseconds timeout) {
  return std::make_unique<SimulatedCoordination>(*this, rank, timeout);
}

}  // namespace tutti::sim
