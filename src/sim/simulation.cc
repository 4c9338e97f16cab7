// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/simulation.h>

#include <utility>

#include "base/settings.h"
#include "sim/job.h"

namespace tutti {

namespace {

constexpr int kMostSimulated = 1024;

sim::SimulatedJob::Options options_for(int ranks, const SimulationOptions& options) {
  if (ranks < 1 || ranks > kMostSimulated || options.hosts < 1 || options.hosts > ranks)
    throw InvalidArgumentError(
        fmt::format("simulated: {} ranks on {} hosts, expected 1 to {} ranks, and as many hosts at "
                    "most",
                    ranks, options.hosts, kMostSimulated));
  const std::chrono::nanoseconds least{};
  if (!(options.bandwidth > 0) || options.latency < least || options.overhead < least ||
      options.jitter < least || options.heartbeat_timeout <= least)
    throw InvalidArgumentError(
        "simulated: expected a bandwidth and a heartbeat timeout above zero, and no negative "
        "times");
  sim::SimulatedJob::Options job{.heartbeat_timeout = options.heartbeat_timeout,
                                 .chief_serves = options.chief_serves,
                                 .costs = base::settings().costs};
  for (int r = 0; r < ranks; ++r) job.hosts.push_back(r * options.hosts / ranks);
  job.world = {.seed = options.seed,
               .costs = {.latency = options.latency,
                         .overhead = options.overhead,
                         .bandwidth = options.bandwidth / 1e9,
                         .jitter = options.jitter},
               .traces = options.traces};
  return job;
}

}  // namespace

struct Simulation::Impl {
  Impl(int ranks, const SimulationOptions& options)
      : job(options_for(ranks, options)), outcomes(size_t(ranks)), over(size_t(ranks)) {}

  sim::SimulatedJob job;
  std::vector<Outcome> outcomes;
  std::vector<bool> over;
  int planned = 0;  // actions that are still to come
  bool has_run = false;

  int process_of(int rank, const char* call) {
    if (rank < 0 || rank >= job.size())
      throw InvalidArgumentError(
          fmt::format("{}: rank {}, expected 0 to {}", call, rank, job.size() - 1));
    return job.process_of(rank);
  }
  int host(int host, const char* call) {
    if (host < 0 || host >= job.hosts())
      throw InvalidArgumentError(
          fmt::format("{}: host {}, expected 0 to {}", call, host, job.hosts() - 1));
    return host;
  }
  // Whether a rank has ended, or will never go on.
  bool is_done(int rank) {
    const int process = job.process_of(rank);
    return over[size_t(rank)] || !job.world().is_alive(process) ||
           (planned == 0 && job.world().is_suspended(process));
  }
};

Simulation::Simulation(int ranks, const SimulationOptions& options)
    : impl_(std::make_unique<Impl>(ranks, options)) {}
Simulation::~Simulation() = default;
Simulation::Simulation(Simulation&&) noexcept = default;

Simulation Group::simulated(int n) { return Simulation(n, {}); }
Simulation Group::simulated(int n, const SimulationOptions& options) {
  return Simulation(n, options);
}

int Simulation::size() const { return impl_->job.size(); }

std::vector<Simulation::Outcome> Simulation::run(const std::function<void(Group)>& program) {
  if (std::exchange(impl_->has_run, true))
    throw FailedPreconditionError("run: this simulation has run already; make another");
  for (int rank = 0; rank < size(); ++rank)
    impl_->job.start(
        rank, [&] { program(Group::from_environment()); },
        [impl = impl_.get(), rank](const std::exception* error) {
          impl->over[size_t(rank)] = true;
          if (!error) return;
          Outcome& outcome = impl->outcomes[size_t(rank)];
          const auto* const own = dynamic_cast<const Error*>(error);
          outcome.code = own ? own->code() : ErrorCode::internal;
          outcome.error = error->what();
        });
  impl_->job.world().run([this] {
    for (int rank = 0; rank < size(); ++rank)
      if (!impl_->is_done(rank)) return false;
    return true;
  });
  for (int rank = 0; rank < size(); ++rank) {
    if (impl_->over[size_t(rank)]) continue;
    Outcome& outcome = impl_->outcomes[size_t(rank)];
    outcome.killed = !impl_->job.world().is_alive(impl_->job.process_of(rank));
    outcome.stuck = !outcome.killed;
  }
  return impl_->outcomes;
}

void Simulation::kill(int rank) { impl_->job.world().kill(impl_->process_of(rank, "kill")); }
void Simulation::kill_launcher() {
  if (impl_->job.launcher() < 0)
    throw FailedPreconditionError("kill_launcher: rank 0 runs the coordination service");
  impl_->job.world().kill(impl_->job.launcher());
}
void Simulation::suspend(int rank) {
  impl_->job.world().suspend(impl_->process_of(rank, "suspend"));
}
void Simulation::resume(int rank) { impl_->job.world().resume(impl_->process_of(rank, "resume")); }
void Simulation::cut(int from_host, int to_host) {
  impl_->job.cut(impl_->host(from_host, "cut"), impl_->host(to_host, "cut"));
}
void Simulation::cut_off(int host) { impl_->job.cut_off(impl_->host(host, "cut_off")); }
void Simulation::mend() { impl_->job.mend(); }
void Simulation::slow_down(int host, double factor) {
  if (!(factor > 0))
    throw InvalidArgumentError(fmt::format("slow_down: {} times, expected more than 0", factor));
  impl_->job.world().slow_down(impl_->host(host, "slow_down"), factor);
}
void Simulation::at(std::chrono::nanoseconds time, std::function<void()> action) {
  sim::World& world = impl_->job.world();
  ++impl_->planned;
  world.at(world.start_time() + time, [impl = impl_.get(), action = std::move(action)] {
    --impl->planned;
    action();
  });
}
std::chrono::nanoseconds Simulation::now() const {
  sim::World& world = impl_->job.world();
  return world.now() - world.start_time();
}
uint64_t Simulation::trace_hash() const { return impl_->job.world().hash(); }
const std::string& Simulation::trace() const { return impl_->job.world().trace(); }

}  // namespace tutti
