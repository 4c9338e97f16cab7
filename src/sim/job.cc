// SPDX-License-Identifier: Apache-2.0
#include "sim/job.h"

#include <fmt/format.h>
#include <tutti/version.h>

#include <algorithm>

#include "job/job_impl.h"
#include "sim/host_memory.h"

namespace tutti::sim {

using group::Bootstrap;
using group::HostProcesses;

namespace {

std::string host_name(int host) { return fmt::format("host{}", host); }

constexpr const char* kService = "host0:4000";  // of a launcher

}  // namespace

class SimulatedSite final : public group::Site {
 public:
  explicit SimulatedSite(SimulatedJob& job) : job_(job) {}

  std::unique_ptr<cluster::Coordination> join(Bootstrap& boot) override {
    if (boot.membership.serves) boot.service = job_.hub_->serve();
    return job_.hub_->join(boot.membership.rank, group::join_timeout());
  }
  std::unique_ptr<group::HostBoard> board() override { return nullptr; }
  group::Hello hello(int rank) override {
    const std::string host = host_name(job_.host_of(rank));
    group::Hello hello;
    hello.memory.host = hello.memory.machine = hello.local = hello.hostname = host;
    // A core for each rank.
    for (int r = 0; r < job_.size(); ++r)
      if (job_.host_of(r) == job_.host_of(rank)) hello.memory.cores.push_back(r);
    hello.memory.pid = job_.process_of(rank);
    hello.costs = base::to_string(job_.options_.costs);
    return hello;
  }
  group::HostPeers share_memory(const HostProcesses& processes, const Bootstrap& boot) override {
    const int host = job_.host_of(boot.membership.rank);
    const auto neighbours =
        std::make_shared<Neighbours>(job_.world_, job_.memory_[size_t(host)], processes);
    return {neighbours, std::make_shared<group::BlockPool>(), neighbours};
  }
  std::unique_ptr<group::Transport> connect(const std::vector<group::Hello>&, Bootstrap& boot,
                                            group::Link& link) override {
    // Other ranks may send as soon as all have opened their transports.
    auto transport = job_.fabric_->open(boot.membership.rank);
    link.exchange(transport->name(), "");
    return transport;
  }
  void describe_network(const Bootstrap&, group::JobLayout& layout) override {
    layout.network = layout.interface = "simulated";
  }

 private:
  SimulatedJob& job_;
};

SimulatedJob::SimulatedJob(const Options& options) : options_(options), world_(options.world) {
  const int hosts = 1 + *std::ranges::max_element(options_.hosts);
  for (int h = 0; h < hosts; ++h) memory_.push_back(std::make_shared<HostMemory>(world_));
  for (int r = 0; r < size(); ++r) {
    processes_.push_back(world_.add_process(host_of(r)));
    description_.addresses.push_back(fmt::format("{}:{}", host_name(host_of(r)), 5000 + r));
  }
  launcher_ = options_.chief_serves ? -1 : world_.add_process(0);
  description_.version = std::string(version());
  description_.heartbeat_timeout = options_.heartbeat_timeout;
  description_.chief_serves = options_.chief_serves;
  fabric_ = std::make_unique<Fabric>(world_, processes_);
  hub_ = std::make_unique<CoordinationHub>(
      world_, description_, options_.chief_serves ? description_.addresses[0] : kService,
      processes_, options_.chief_serves ? processes_[0] : launcher_);
  world_.on_route([this](int from, int to) { return cuts_.contains({from, to}); });
  if (!options_.chief_serves)
    world_.start(launcher_, [this] {
      const auto service = hub_->serve();
      world_.wait(this, base::Clock::time_point::max());  // until the world ends
    });
}

SimulatedJob::~SimulatedJob() { world_.unwind(); }

void SimulatedJob::start(int rank, std::function<void()> body,
                         std::function<void(const std::exception* error)> over) {
  world_.start(process_of(rank), [this, rank, body = std::move(body), over = std::move(over)] {
    const cluster::Membership membership{
        .addresses = description_.addresses,
        .rank = rank,
        .service = options_.chief_serves ? description_.addresses[0] : kService,
        .serves = options_.chief_serves && rank == 0,
        .source = "a simulation"};
    std::exception_ptr failed;
    try {
      std::optional<group::Job> job;  // empty if there is one rank
      if (size() > 1)
        world_.job() = &job.emplace(membership, std::make_unique<SimulatedSite>(*this));
      try {
        body();
      } catch (const World::Unwind&) {
        throw;
      } catch (const std::exception&) {
        failed = std::current_exception();
      } catch (...) {
        failed = std::make_exception_ptr(InternalError("an exception of an unknown type"));
      }
      if (job) job->leave();
      world_.job() = nullptr;
    } catch (const std::exception&) {
      failed = std::current_exception();
    }
    try {
      if (failed) std::rethrow_exception(failed);
      over(nullptr);
    } catch (const std::exception& error) {
      over(&error);
    }
    world_.end(process_of(rank));
  });
}

void SimulatedJob::cut_off(int host) {
  for (int other = 0; other < int(memory_.size()); ++other) {
    if (other == host) continue;
    cut(host, other);
    cut(other, host);
  }
}

void SimulatedJob::find_leaks(std::vector<std::string>& leaks) const {
  leaks.insert(leaks.end(), world_.leaks().begin(), world_.leaks().end());
  leaks.insert(leaks.end(), fabric_->leaks().begin(), fabric_->leaks().end());
  for (size_t host = 0; host < memory_.size(); ++host)
    if (const size_t left = memory_[host]->allocations())
      leaks.push_back(fmt::format("{} pieces of memory are left on host {}", left, host));
}

void SimulatedJob::mend() {
  cuts_.clear();
  world_.release();
}

}  // namespace tutti::sim
