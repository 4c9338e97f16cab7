// SPDX-License-Identifier: Apache-2.0
// The strategy that a thread is in, and how: in cross-replica context, or in the function of one
// replica.
#pragma once

#include <tutti/strategy.h>

#include "base/context.h"
#include "device/device.h"

namespace tutti::strategy {

struct Context {
  Strategy* strategy = nullptr;
  ReplicaContext* replica = nullptr;      // null in cross-replica context
  bool merging = false;                   // in a function given to merge_call, or the like
  int scopes = 0;                         // that are open
  std::vector<std::string> colocated_on;  // where variables go; empty: to the strategy's devices
};

Context& context();  // of this thread

// While it lives, this thread is in another context: nothing of the one before shows, device scopes
// included.
class ContextSwitch {
 public:
  ContextSwitch(Strategy& strategy, ReplicaContext* replica, int local_replica_id,
                std::string_view device);
  ~ContextSwitch();

 private:
  Context outer_;
  base::ReplicaThread replica_thread_;
  device::ScopeSwitch device_;
};

Strategy& default_strategy();
ReplicaContext& default_replica_context();

// FailedPreconditionError in a replica function, or inside another strategy than `strategy`.
void require_cross_replica(const Strategy& strategy, const char* what);

}  // namespace tutti::strategy
