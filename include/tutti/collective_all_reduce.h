// SPDX-License-Identifier: Apache-2.0
// CollectiveAllReduce: the cross-device operations over the replicas of several workers.
#pragma once

#include <tutti/cross_device_ops.h>
#include <tutti/group.h>

#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// Combines what the replicas of all ranks of a group hold. Every rank has as many devices, and
// replica i of rank r is number r * devices + i of all: sums are the tree over these numbers that
// ReduceOp describes, so the same replicas give the same bits on any number of ranks.
//
// A value has a component for each device; or only one, which then stands for its rank as a whole.
// Destinations are devices of this process. A batch is one operation of the group, or one for each
// pack if bytes_per_pack asks for packs. IndexedSlices stay sparse: all rows in replica order.
// Dense on one rank and sparse on another is a disagreement.
//
// All ranks make the same calls in the same order; if they do not, or if a rank is lost, every rank
// gets an error that says so (see group.h). Calls from several threads are made one
// after another.
class CollectiveAllReduce : public CrossDeviceOps {
 public:
  // `options` are those of calls that do not set their own. InvalidArgumentError if a device is not
  // there, is named twice, or is neither in host memory nor on a GPU.
  CollectiveAllReduce(const std::vector<std::string>& devices, Group group,
                      const CommunicationOptions& options = {});
  ~CollectiveAllReduce() override;

 protected:
  Mirrored<Value> reduce_implementation(ReduceOp op, const PerReplica<Value>& value,
                                        const Destinations& destinations,
                                        const CommunicationOptions& options) override;
  std::vector<Mirrored<Value>> batch_reduce_implementation(
      ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
      const CommunicationOptions& options) override;
  Mirrored<Tensor> gather_implementation(const PerReplica<Tensor>& value,
                                         const Destinations& destinations, size_t axis,
                                         const CommunicationOptions& options) override;
  bool spans_processes() const override;
  CommunicationOptions default_options() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti

#pragma GCC visibility pop
