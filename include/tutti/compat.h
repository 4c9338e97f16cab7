// Names of the reference's earlier releases, for programs that come from there. New programs do not
// need them.
#pragma once

#include <tutti/cross_device_ops.h>

#include <optional>

#pragma GCC visibility push(default)

namespace tutti {

// The first release called replicas towers, and passed a VariableAggregation where a ReduceOp is
// passed now.
using CrossTowerOps = CrossDeviceOps;
using AllReduceCrossTowerOps = AllReduceCrossDeviceOps;
using ReductionToOneDeviceCrossTowerOps = ReductionToOneDevice;
template <class T>
using PerDevice = PerReplica<T>;

// An earlier name for CommunicationOptions. Logs once that it is deprecated. `timeout_seconds`:
// none waits as long as the settings say, 0 forever. InvalidArgumentError for negative numbers.
class CollectiveHints {
 public:
  explicit CollectiveHints(int64_t bytes_per_pack = 0, std::optional<double> timeout_seconds = {});
  operator const CommunicationOptions&() const { return options_; }

 private:
  CommunicationOptions options_;
};

}  // namespace tutti

#pragma GCC visibility pop
