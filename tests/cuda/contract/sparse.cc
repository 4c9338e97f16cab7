// IndexedSlices on GPUs.
#include <tutti/tutti.h>

#include "check.h"
#include "need_gpus.h"

using namespace tutti;
using F = std::vector<float>;

int main() {
  need_gpus(2);
  const IndexedSlices s0{Tensor::of<float>({1, 2}, "/gpu:0").reshape({1, 2}), Tensor::of<int64_t>({1}, "/gpu:0"), Shape{5, 2}};
  const IndexedSlices s1{Tensor::of<float>({3, 4, 5, 6}, "/gpu:1").reshape({2, 2}), Tensor::of<int64_t>({1, 3}, "/gpu:1"), Shape{5, 2}};
  const PerReplica<IndexedSlices> v{s0, s1};

  ReductionToOneDevice one;
  AllReduceCrossDeviceOps all("hierarchical_copy");
  for (CrossDeviceOps* ops : std::vector<CrossDeviceOps*>{&one, &all}) {
    const Mirrored<IndexedSlices> sum = ops->reduce(ReduceOp::SUM, v, v);
    CHECK_EQ(sum.size(), 2u);
    CHECK_EQ(sum[1].device(), canonicalize("/gpu:1"));
    CHECK_EQ(sum[0].indices.to_vector<int64_t>(), (std::vector<int64_t>{1, 1, 3}));
    CHECK_EQ(sum[0].values.to_vector<float>(), F({1, 2, 3, 4, 5, 6}));
    CHECK_EQ(sum[1].to_dense().to_vector<float>(), F({0, 0, 4, 6, 0, 0, 5, 6, 0, 0}));
    CHECK_EQ(ops->reduce(ReduceOp::MEAN, v, "/gpu:0")[0].values.to_vector<float>(), F({.5f, 1, 1.5f, 2, 2.5f, 3}));

    // Dense and sparse in one value: the result is dense. Dense and sparse in one batch: order is kept.
    const PerReplica<Value> joined{Value(s0), Value(Tensor::full({5, 2}, 1, DType::float32, "/gpu:1"))};
    CHECK_EQ(ops->reduce(ReduceOp::SUM, joined, joined)[0].tensor().to_vector<float>(), F({1, 1, 2, 3, 1, 1, 1, 1, 1, 1}));
    const PerReplica<Value> sparse{Value(s0), Value(s1)};
    const auto out = ops->batch_reduce(ReduceOp::SUM, {{sparse, sparse}, {joined, joined}});
    CHECK(out[0][0].is_sparse());
    CHECK(!out[1][0].is_sparse());
  }

  // Duplicated rows can be merged, which the plain concatenation never does by itself.
  const IndexedSlices merged = one.reduce(ReduceOp::SUM, v, "/gpu:0")[0].merged();
  CHECK_EQ(merged.indices.to_vector<int64_t>(), (std::vector<int64_t>{1, 3}));
  CHECK_EQ(merged.values.to_vector<float>(), F({4, 6, 5, 6}));

  const IndexedSlices shapeless{s0.values, s0.indices, std::nullopt};
  CHECK_THROWS(InvalidArgumentError, "dense_shape", shapeless.to_dense());
  const IndexedSlices outside{s0.values, Tensor::of<int64_t>({5}, "/gpu:0"), Shape{5, 2}};
  CHECK_THROWS(InvalidArgumentError, "index 5", outside.to_dense());
  return CONTRACT_OK();
}
