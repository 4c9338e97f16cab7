// SPDX-License-Identifier: Apache-2.0
// A simulated job: the processes of its ranks and of its launcher, and what connects them.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/costs.h"
#include "cluster/coordination.h"
#include "sim/coordination.h"
#include "sim/transport.h"
#include "sim/world.h"

namespace tutti::sim {

class HostMemory;

class SimulatedJob {
 public:
  struct Options {
    std::vector<int> hosts = {};  // by rank
    World::Options world = {};
    nanoseconds heartbeat_timeout = std::chrono::seconds(10);
    bool chief_serves = false;
    base::Costs costs = {};  // the costs by which ranks choose algorithms
  };
  explicit SimulatedJob(const Options& options);
  ~SimulatedJob();
  SimulatedJob(const SimulatedJob&) = delete;

  World& world() { return world_; }
  int size() const { return int(options_.hosts.size()); }
  int hosts() const { return int(memory_.size()); }
  int host_of(int rank) const { return options_.hosts[size_t(rank)]; }
  int process_of(int rank) const { return processes_[size_t(rank)]; }
  int launcher() const { return launcher_; }

  // `body` runs in the process of the rank, which has joined the job, and leaves it afterwards.
  // Calls over(error) when the process ends: with an error of the program or of the job, or null.
  void start(int rank, std::function<void()> body,
             std::function<void(const std::exception* error)> over);

  void cut(int from_host, int to_host) { cuts_.insert({from_host, to_host}); }
  void cut_off(int host);
  void mend();

  // Adds what the processes should have freed. Called once the job is over.
  void find_leaks(std::vector<std::string>& leaks) const;

 private:
  friend class SimulatedSite;

  const Options options_;
  World world_;
  std::vector<int> processes_;  // by rank
  int launcher_;
  cluster::Job description_;
  std::vector<std::shared_ptr<HostMemory>> memory_;  // by host
  std::set<std::pair<int, int>> cuts_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<CoordinationHub> hub_;
};

}  // namespace tutti::sim
