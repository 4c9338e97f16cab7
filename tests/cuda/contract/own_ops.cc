// A user's own algorithm, for values on GPUs.
#include <tutti/compat.h>  // the names of the first release
#include <tutti/tutti.h>

#include "check.h"
#include "need_gpus.h"

using namespace tutti;

class CountingOps : public CrossDeviceOps {
 public:
  int calls = 0;

 protected:
  Mirrored<Value> reduce_implementation(ReduceOp op, const PerReplica<Value>& value, const Destinations& destinations,
                                        const CommunicationOptions& options) override {
    ++calls;
    return inner_.reduce(op, value, destinations, options);
  }
  // batch_reduce_implementation defaults to one reduce_implementation per pair; broadcast_implementation to plain copies.

 private:
  ReductionToOneDevice inner_;
};

class EverythingOps : public CountingOps {
 public:
  int batches = 0, broadcasts = 0;

 protected:
  std::vector<Mirrored<Value>> batch_reduce_implementation(ReduceOp op, const std::vector<std::pair<PerReplica<Value>, Destinations>>& pairs,
                                                           const CommunicationOptions& options) override {
    ++batches;
    return CountingOps::batch_reduce_implementation(op, pairs, options);
  }
  Mirrored<Value> broadcast_implementation(const Value& tensor, const Destinations& destinations) override {
    ++broadcasts;
    return CountingOps::broadcast_implementation(tensor, destinations);
  }
};

int main() {
  need_gpus(2);
  CountingOps ops;
  const PerReplica<Tensor> v{Tensor::scalar<float>(1, "/gpu:0"), Tensor::scalar<float>(2, "/gpu:1")};
  CHECK_EQ(ops.reduce(ReduceOp::SUM, v, v)[1].item<float>(), 3.f);
  CHECK_EQ(ops.batch_reduce(ReduceOp::SUM, {{v, v}, {v, "/gpu:0"}}).size(), 2u);
  CHECK_EQ(ops.calls, 3);
  CHECK_THROWS(InvalidArgumentError, "destination", ops.reduce(ReduceOp::SUM, v, ""));
  CHECK_EQ(ops.calls, 3);
  CHECK_EQ(ops.broadcast(v[0], v)[1].item<float>(), 1.f);

  EverythingOps every;
  every.batch_reduce(ReduceOp::SUM, {{v, v}, {v, v}});
  every.broadcast(v[0], v);
  CHECK(every.batches == 1 && every.calls == 2 && every.broadcasts == 1);
  const IndexedSlices sparse{Tensor::of<float>({1, 2}, "/gpu:0").reshape({1, 2}), Tensor::of<int64_t>({0}, "/gpu:0"), Shape{3, 2}};
  CHECK_EQ(every.broadcast(sparse, v)[1].device(), canonicalize("/gpu:1"));

  MirroredStrategy strategy({"/gpu:0", "/gpu:1"}, std::make_shared<CountingOps>());
  CHECK_EQ(strategy.reduce(ReduceOp::SUM, v).item<float>(), 3.f);

  // The names of the first release: towers, and VariableAggregation in place of ReduceOp.
  CrossTowerOps& tower = ops;
  CHECK_EQ(tower.reduce(VariableAggregation::MEAN, v, v)[0].item<float>(), 1.5f);
  CHECK_EQ(tower.batch_reduce(VariableAggregation::SUM, {{v, v}})[0][1].tensor().item<float>(), 3.f);
  CHECK_THROWS(InvalidArgumentError, "NONE", tower.reduce(VariableAggregation::NONE, v, v));
  return CONTRACT_OK();
}
