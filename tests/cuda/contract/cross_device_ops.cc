// reduce, batch_reduce and broadcast between the logical GPUs of a process.
#include <tutti/tutti.h>

#include "check.h"
#include "need_gpus.h"

using namespace tutti;
using F = std::vector<float>;

int main() {
  need_gpus(4);  // four logical GPUs in this process

  const Tensor a = Tensor::of<float>({1, 2, 3}, "/gpu:0");
  const Tensor b = Tensor::of<float>({3, 4, 5}, "/gpu:1");
  const PerReplica<Tensor> v{a, b};
  CHECK_THROWS(InvalidArgumentError, "host memory", a.span<float>());
  CHECK_EQ(v.devices()[1], "/job:localhost/replica:0/task:0/device:GPU:1");

  ReductionToOneDevice one;
  HierarchicalCopyAllReduce hierarchical(/*num_packs=*/2);
  AllReduceCrossDeviceOps packed("hierarchical_copy", /*num_packs=*/1);
  for (CrossDeviceOps* ops : std::vector<CrossDeviceOps*>{&one, &hierarchical, &packed}) {
    // An all-reduce: the destinations are the value itself.
    const Mirrored<Tensor> sum = ops->reduce(ReduceOp::SUM, v, v);
    CHECK_EQ(sum.size(), 2u);
    CHECK_EQ(sum[0].to_vector<float>(), F({4, 6, 8}));
    CHECK_EQ(sum[1].to_vector<float>(), F({4, 6, 8}));
    CHECK_EQ(sum[1].device(), canonicalize("/gpu:1"));
    CHECK_EQ(a.to_vector<float>(), F({1, 2, 3}));  // inputs are never written

    // A reduce: a device string, a list of them, a tensor or another distributed value says where.
    CHECK_EQ(ops->reduce(ReduceOp::MEAN, v, "/gpu:2")[0].to_vector<float>(), F({2, 3, 4}));
    CHECK_EQ(ops->reduce(ReduceOp::MEAN, v, "/gpu:2").devices(), std::vector<std::string>{canonicalize("/gpu:2")});
    CHECK_EQ(ops->reduce(ReduceOp::SUM, v, std::vector<std::string>{"/gpu:3", "/gpu:0"})[0].device(), canonicalize("/gpu:3"));
    CHECK_EQ(ops->reduce(ReduceOp::SUM, v, a).size(), 1u);

    // A single tensor counts as one replica.
    CHECK_EQ(ops->reduce(ReduceOp::SUM, a, a)[0].to_vector<float>(), F({1, 2, 3}));

    // A batch: results in the order of the pairs, each on its own destinations, any mix of dtypes and shapes.
    const PerReplica<Tensor> ids{Tensor::scalar<int64_t>(7, "/gpu:0"), Tensor::scalar<int64_t>(8, "/gpu:1")};
    const std::vector<Mirrored<Value>> r = ops->batch_reduce(ReduceOp::SUM, {{v, v}, {ids, "/gpu:3"}});
    CHECK_EQ(r.size(), 2u);
    CHECK_EQ(r[0][1].tensor().to_vector<float>(), F({4, 6, 8}));
    CHECK_EQ(r[1][0].tensor().item<int64_t>(), 15);
    CHECK_EQ(r[1][0].device(), canonicalize("/gpu:3"));
    CHECK_EQ(ops->batch_reduce(ReduceOp::SUM, {}).size(), 0u);

    // The mean of integers is a true division.
    const Mirrored<Tensor> mean = ops->reduce(ReduceOp::MEAN, ids, ids);
    CHECK(mean[0].dtype() == DType::float64);
    CHECK_EQ(mean[0].item<double>(), 7.5);

    const Mirrored<Tensor> copies = ops->broadcast(a, v);
    CHECK_EQ(copies.size(), 2u);
    CHECK_EQ(copies[1].to_vector<float>(), F({1, 2, 3}));
    CHECK_EQ(copies[1].device(), canonicalize("/gpu:1"));
    CHECK(copies[1].data() != a.data());

    // Bad input: a clear error that says what was wrong; nothing is reduced.
    const PerReplica<Tensor> ragged{a, Tensor::of<float>({1, 2}, "/gpu:1")};
    CHECK_THROWS(InvalidArgumentError, "shape", ops->reduce(ReduceOp::SUM, ragged, v));
    const PerReplica<Tensor> mixed{a, Tensor::of<double>({1, 2, 3}, "/gpu:1")};
    CHECK_THROWS(InvalidArgumentError, "float64", ops->reduce(ReduceOp::SUM, mixed, v));
    CHECK_THROWS(InvalidArgumentError, "destination", ops->reduce(ReduceOp::SUM, v, ""));
    CHECK_THROWS(InvalidArgumentError, "/warp:0", ops->reduce(ReduceOp::SUM, v, "/warp:0"));
    CHECK_THROWS(InvalidArgumentError, "GPU:9", ops->reduce(ReduceOp::SUM, v, "/gpu:9"));
    CHECK_THROWS(InvalidArgumentError, "replica", ops->reduce(ReduceOp::SUM, PerReplica<Tensor>{}, "/gpu:0"));
  }

  // Where the values meet, and how they are added, can be chosen.
  ReductionToOneDevice on_three("/gpu:3", [](const std::vector<Tensor>& parts) {
    F out = parts[0].to_vector<float>();
    for (size_t i = 1; i < parts.size(); ++i) {
      const F part = parts[i].to_vector<float>();
      for (size_t j = 0; j < out.size(); ++j) out[j] += 10 * part[j];
    }
    return Tensor::of(std::span<const float>(out), parts[0].device());
  });
  CHECK_EQ(on_three.reduce(ReduceOp::SUM, v, "/gpu:0")[0].to_vector<float>(), F({31, 42, 53}));

  // The cross-device ops belong to the cross-replica context.
  MirroredStrategy strategy({"/gpu:0", "/gpu:1"});
  CHECK_EQ(MirroredStrategy().num_replicas_in_sync(), 4);  // every logical GPU
  CHECK_THROWS(FailedPreconditionError, "merge_call", strategy.run([&](ReplicaContext&) { return one.reduce(ReduceOp::SUM, v, v); }));

  CHECK_THROWS(InvalidArgumentError, "carrier_pigeon", AllReduceCrossDeviceOps("carrier_pigeon"));
  CHECK_THROWS(InvalidArgumentError, "num_packs", HierarchicalCopyAllReduce(-1));
  return CONTRACT_OK();
}
