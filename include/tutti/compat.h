// SPDX-License-Identifier: Apache-2.0
// Names of the reference's earlier releases, for programs that come from there. New programs do not
// need them.
#pragma once

#include <tutti/cross_device_ops.h>
#include <tutti/strategy.h>

#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// The first release called replicas towers, and passed a VariableAggregation where a ReduceOp is
// passed now.
using CrossTowerOps = CrossDeviceOps;
using AllReduceCrossTowerOps = AllReduceCrossDeviceOps;
using ReductionToOneDeviceCrossTowerOps = ReductionToOneDevice;
template <class T>
using PerDevice = PerReplica<T>;
using TowerContext = ReplicaContext;
inline TowerContext& get_tower_context() { return get_replica_context(); }
template <class F, class... Args>
auto call_for_each_tower(Strategy& strategy, F&& fn, const Args&... args) {
  return strategy.extended().call_for_each_replica(std::forward<F>(fn), args...);
}
inline int num_towers(const Strategy& strategy) { return strategy.num_replicas_in_sync(); }

// What Strategy::update_config_proto sets for a session of the reference. Tutti does not read it.
struct ConfigProto {
  // As in the reference's ConfigProto; device filters are the names of tasks.
  bool isolate_session_state = false;
  std::vector<std::string> device_filters = {};
  bool scoped_allocator_optimization = false;
  std::vector<std::string> scoped_allocator_enable_op = {};
  // What the reference keeps in a message of this name.
  struct Experimental {
    // The leader is "/job:chief/replica:0/task:0" or the like.
    std::string collective_group_leader = {};
    bool collective_nccl = false;
    friend bool operator==(const Experimental&, const Experimental&) = default;
  };
  Experimental experimental = {};  // set if there are several workers
  friend bool operator==(const ConfigProto&, const ConfigProto&) = default;
};

// An earlier name for CommunicationOptions. Logs once that it is deprecated. `timeout_seconds`:
// none waits as long as the settings say, 0 without limit. InvalidArgumentError for negative
// numbers.
class CollectiveHints {
 public:
  explicit CollectiveHints(int64_t bytes_per_pack = 0, std::optional<double> timeout_seconds = {});
  operator const CommunicationOptions&() const { return options_; }

 private:
  CommunicationOptions options_;
};

}  // namespace tutti

#pragma GCC visibility pop
