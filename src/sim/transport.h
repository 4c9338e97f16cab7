// SPDX-License-Identifier: Apache-2.0
// The transport between the ranks of a simulated job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "group/net/transport.h"
#include "sim/world.h"

namespace tutti::sim {

class SimulatedTransport;

// What connects the transports of a job. It outlives them.
class Fabric {
 public:
  // `processes`: by rank.
  Fabric(World& world, std::vector<int> processes);

  World& world() { return world_; }
  int process_of(int rank) const { return processes_[size_t(rank)]; }
  int size() const { return int(processes_.size()); }
  // The transport of a rank. What others sent before it was opened is kept for it.
  std::unique_ptr<group::Transport> open(int rank);
  // How many peers a rank has sent a message to or received one from since this was last called.
  // The rank's transport must be open.
  int count_connections(int rank);
  // Messages that were neither over nor cancelled when their transport was closed.
  const std::vector<std::string>& leaks() const { return leaks_; }

 private:
  friend class SimulatedTransport;

  int rank_of(int process) const;  // -1 if the process is no rank
  // The transport of a rank. If it is closed, the caller loses its connection.
  SimulatedTransport* answer(int rank, int caller);
  // Ends the connection of a rank to a peer.
  void hang_up(int rank, int peer);

  World& world_;
  const std::vector<int> processes_;
  std::vector<SimulatedTransport*> open_;  // by rank; null: not yet, or not any more
  std::vector<bool> closed_;               // by rank: it has left, or died
  std::vector<std::string> leaks_;
};

}  // namespace tutti::sim
