// SPDX-License-Identifier: Apache-2.0
// The coordination service of a simulated job, around the real JobState, and the ranks' streams to
// it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "cluster/coordination.h"
#include "sim/world.h"

namespace tutti::sim {

class SimulatedService;
class SimulatedCoordination;

// What connects the service and the ranks. It outlives them.
class CoordinationHub {
 public:
  // `processes`: by rank. `service`: the process that runs the service.
  CoordinationHub(World& world, const cluster::Job& job, std::string address,
                  std::vector<int> processes, int service);

  // Called in the process of the service.
  std::unique_ptr<cluster::Service> serve();
  // Called in the process of the rank.
  std::unique_ptr<cluster::Coordination> join(int rank, nanoseconds timeout);

 private:
  friend class SimulatedService;
  friend class SimulatedCoordination;

  std::shared_ptr<cluster::HostPulse> pulse_for(int rank);

  World& world_;
  const cluster::Job job_;
  const std::string address_;
  const std::vector<int> processes_;
  const int service_process_;
  SimulatedService* service_ = nullptr;          // while there is one
  std::vector<SimulatedCoordination*> streams_;  // by rank; null: it has none
  // Memory of the hosts, which outlives the processes.
  std::map<int, std::shared_ptr<std::vector<std::byte>>> pulses_;
};

}  // namespace tutti::sim
