// SPDX-License-Identifier: Apache-2.0
// Summing values that lie on different GPUs by copies between pairs of them, in the order of the
// tree: on a machine whose GPUs form two linked quads every copy goes over a link.
#pragma once

#include <tutti/cross_device_ops.h>

#include <span>
#include <vector>

namespace tutti::cross_device {

// Device `from` hands what it has to device `to`.
struct Transfer {
  int from, to;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// The transfers that leave the tree T(n) = T(p) op T(n - p) on device 0, if each receiver adds what
// it gets to what it has. Those of one round are independent of each other. Backwards, they spread
// the result.
std::vector<std::vector<Transfer>> reduction_rounds(int n);

// Are the components dense, and each on a GPU of its own?
bool on_distinct_gpus(const PerReplica<Value>& value);

// `value` is on distinct GPUs, and the result has the type that is added up.
Mirrored<Value> hierarchical_reduce(ReduceOp op, const PerReplica<Value>& value,
                                    const Destinations& destinations);

}  // namespace tutti::cross_device
