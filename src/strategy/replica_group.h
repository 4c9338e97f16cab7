// SPDX-License-Identifier: Apache-2.0
// The replicas of one strategy in this process: running them, and letting them meet.
#pragma once

#include <tutti/strategy.h>

#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/rendezvous.h"
#include "device/gpu.h"
#include "strategy/replica_threads.h"

namespace tutti::detail {

class ReplicaGroup {
 public:
  // One replica per device; `first_id` is the id of the first one among the `num_replicas` of the
  // job.
  ReplicaGroup(Strategy& strategy, const std::vector<std::string>& devices, int first_id,
               int num_replicas);

  // fn(i) for every replica; see Strategy::run.
  void run(const std::function<void(size_t)>& fn);

  // Waits for the other replicas, and has the call made once for all. `options` are those of the
  // strategy and of the call together.
  void meet(ReplicaContext& context, Meeting& part, const CommunicationOptions& options);

  ReplicaContext& context(size_t i) { return contexts_[i]; }

 private:
  void check_agreement();
  void give_up(const ReplicaContext& context, const std::exception_ptr& error);

  Strategy& strategy_;
  std::vector<ReplicaContext> contexts_;
  strategy::ReplicaThreads threads_;
  base::Rendezvous rendezvous_;
  std::mutex serial_;  // one run at a time
  std::vector<Meeting*> parts_;
  std::vector<device::Fence> fences_;  // what the replicas have enqueued on GPUs before they met
  device::Fence acted_;                // what the replica that acted for all has
  std::vector<char> victims_;          // replicas that failed only because another one did
};

}  // namespace tutti::detail
