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

// What connects them. It outlives its transports.
class Fabric {
 public:
  // `processes`: of each rank.
  Fabric(World& world, std::vector<int> processes);

  World& world() { return world_; }
  int process_of(int rank) const { return processes_[size_t(rank)]; }
  int size() const { return int(processes_.size()); }
  // Rank's way to all others. What they sent before is kept for it.
  std::unique_ptr<group::Transport> open(int rank);
  // The peers of an open one that a message went to or came from since this was asked last.
  int count_connections(int rank);
  // Messages that were neither over nor cancelled when their transport was closed.
  const std::vector<std::string>& leaks() const { return leaks_; }

 private:
  friend class SimulatedTransport;

  int rank_of(int process) const;  // -1: it is none
  // The transport of a rank. If it is closed, the caller is told.
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
