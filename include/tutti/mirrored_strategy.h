// SPDX-License-Identifier: Apache-2.0
// MirroredStrategy: synchronous training on several devices of one machine.
#pragma once

#include <tutti/strategy.h>

#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// One replica per device. Variables are mirrored on all devices; the replicas' gradients meet in
// all_reduce.
class MirroredStrategy : public Strategy {
 public:
  // On these devices; without any, on all logical GPUs, or if there are none, on all logical
  // CPUs. Without `cross_device_ops` the best for the devices is chosen. InvalidArgumentError if
  // a device is not there or is named twice.
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            std::shared_ptr<CrossDeviceOps> cross_device_ops = {});
  explicit MirroredStrategy(std::shared_ptr<CrossDeviceOps> cross_device_ops);
};

}  // namespace tutti

#pragma GCC visibility pop
