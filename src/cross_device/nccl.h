// SPDX-License-Identifier: Apache-2.0
// NCCL between distinct GPUs of one process.
#pragma once

#include <tutti/cross_device_ops.h>

#include <span>
#include <vector>

#include "cross_device/packing.h"
#include "gpu/nccl_link.h"

namespace tutti::cross_device {

// Of how many GPUs of one process there is one component each, on `destinations` of the same order:
// 0 if NCCL cannot reduce the value, or its result would not be ours.
size_t distinct_gpus(ReduceOp op, const PerReplica<Value>& value, const Destinations& destinations);

// One call of NCCL: a piece of a tensor, on one of the devices.
struct NcclCall {
  size_t device;
  Piece piece;
  friend bool operator==(const NcclCall&, const NcclCall&) = default;
};
// What is launched, one pack after another. Within a launch, all devices' calls for a piece stand
// together, in the order of the devices. Pure, and empty packs launch nothing.
std::vector<std::vector<NcclCall>> launch_order(std::span<const Pack> packs, size_t devices);

// Values of one dtype on one list of GPUs, for all of which distinct_gpus is not 0. Enqueued.
std::vector<Mirrored<Value>> nccl_reduce(const group::GpuSupport& support, ReduceOp op,
                                         std::span<const ValueDestinationPair* const> pairs,
                                         const PackingOptions& packing,
                                         const CommunicationOptions& options);

}  // namespace tutti::cross_device
