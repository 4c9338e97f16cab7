// SPDX-License-Identifier: Apache-2.0
// Which rank of a host waits for which, as each of them says in its block: so that an error names
// the rank at the end of the chain, which waits for none.
#pragma once

#include <string>
#include <vector>

#include "group/liveness/liveness.h"
#include "group/shm/block.h"

namespace tutti::group {

class WaitGraph {
 public:
  WaitGraph(int rank, const Blocks& blocks) : rank_(rank), blocks_(blocks) {}

  // While this rank's thread sleeps for a peer.
  class Waiting {
   public:
    Waiting(const WaitGraph& graph, Role role, int peer) : awaited_(graph.awaited(role)) {
      awaited_.store(uint32_t(peer) + 1);
    }
    ~Waiting() { awaited_.store(0); }
    Waiting(const Waiting&) = delete;

   private:
    std::atomic<uint32_t>& awaited_;
  };

  // While this rank waits for a rank on another host. Ranks of this host that wait for it let it
  // fail first, since it knows which rank to name.
  class WaitingElsewhere {
   public:
    WaitingElsewhere(const WaitGraph* graph, Role role);  // null: no other rank is on this host
    ~WaitingElsewhere();
    WaitingElsewhere(const WaitingElsewhere&) = delete;
    void announce();  // every timing::kAnnounceEvery or more often: a stopped rank does not

   private:
    const WaitGraph* const graph_;
    const Role role_;
  };

  // Whether a rank waits for another host, or for a rank that does.
  bool waits_elsewhere(int rank) const;
  // "rank 2 (…), which waits for rank 0 (…); rank 0 is at #12": rank 0 is at fault.
  LateRanks blame(int rank, const Liveness& liveness) const;

 private:
  std::atomic<uint32_t>& awaited(Role role) const { return blocks_[rank_].awaited[size_t(role)]; }
  int awaited_by(int rank) const;  // the rank it waits for; -1: none

  const int rank_;
  const Blocks& blocks_;
};

}  // namespace tutti::group
