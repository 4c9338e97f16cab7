// SPDX-License-Identifier: Apache-2.0
// Means in which replicas count for more or less.
#pragma once

#include <tutti/cross_device_ops.h>

#include <vector>

namespace tutti::cross_device {

// For each pair, the sum of weight * value over the sum of the weights, in float64 and rounded
// once. `weights` are those of the local replicas, in their order; a replica of weight 0
// contributes nothing, not even a NaN. InvalidArgumentError for another op than MEAN, for weights
// that are negative, not finite, or too few, and if they add up to 0.
std::vector<Mirrored<Value>> weighted_mean(CrossDeviceOps& ops, ReduceOp op,
                                           const std::vector<ValueDestinationPair>& pairs,
                                           const std::vector<double>& weights,
                                           const CommunicationOptions& options);

}  // namespace tutti::cross_device
