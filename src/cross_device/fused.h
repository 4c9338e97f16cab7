// SPDX-License-Identifier: Apache-2.0
// The reduction that all algorithms share if devices share memory: a whole batch in one pass of the
// fused kernel, which reads every replica's value in place and writes every result in place.
// Nothing is packed and nothing is staged.
#pragma once

#include <tutti/cross_device_ops.h>

#include <span>
#include <vector>

namespace tutti::cross_device {

// Are all components IndexedSlices?
bool is_sparse(const PerReplica<Value>& value);

// Results in the order of the pairs, which have been checked. SUM and MEAN also take IndexedSlices:
// concatenated if all components of a value are sparse, made dense otherwise.
// InvalidArgumentError if making them dense fails.
std::vector<Mirrored<Value>> fused_reduce(ReduceOp op, std::span<const ValueDestinationPair> pairs);

// The same for one pair. MEAN divides by `replicas` if that is given: the components may be sums
// already.
Mirrored<Value> fused_reduce(ReduceOp op, const PerReplica<Value>& value,
                             const Destinations& destinations, int64_t replicas = 0);

}  // namespace tutti::cross_device
