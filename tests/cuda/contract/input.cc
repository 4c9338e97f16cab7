// Input that goes to GPUs.
#include <tutti/tutti.h>

#include "check.h"
#include "need_gpus.h"

using namespace tutti;
using I = std::vector<int64_t>;

int main() {
  need_gpus(3);
  MirroredStrategy two({"/gpu:0", "/gpu:1"});

  InputIterator it = two.make_dataset_iterator(Dataset::range(8).batch(4));
  CHECK_THROWS(FailedPreconditionError, "initialize", it.get_next());
  it.initialize();
  const std::vector<PerReplica<Tensor>> first = it.get_next();  // one entry per component of an element
  CHECK_EQ(first.size(), 1u);
  CHECK_EQ(first[0][0].to_vector<int64_t>(), I({0, 1}));
  CHECK_EQ(first[0][1].to_vector<int64_t>(), I({2, 3}));
  CHECK_EQ(first[0][1].device(), canonicalize("/gpu:1"));
  it.get_next();
  CHECK_THROWS(OutOfRangeError, "end", it.get_next());
  it.initialize();
  CHECK_EQ(it.get_next()[0][0].to_vector<int64_t>(), I({0, 1}));

  MirroredStrategy three({"/gpu:0", "/gpu:1", "/gpu:2"});
  CHECK_THROWS(InvalidArgumentError, "4", three.make_dataset_iterator(Dataset::range(8).batch(4)));
  CHECK_THROWS(InvalidArgumentError, "make_input_fn_iterator", three.make_dataset_iterator(Dataset::range(8).batch(4)));
  CHECK_THROWS(InvalidArgumentError, "batch", two.make_dataset_iterator(Dataset::range(8)));

  InputIterator from_fn = two.make_input_fn_iterator([](const InputContext& ctx) {
    CHECK_EQ(ctx.num_input_pipelines(), 1);
    CHECK_EQ(ctx.input_pipeline_id(), 0);
    CHECK_EQ(ctx.num_replicas_in_sync(), 2);
    CHECK_EQ(ctx.get_per_replica_batch_size(12), 6);
    return Dataset::range(10).shard(ctx.num_input_pipelines(), ctx.input_pipeline_id()).batch(1);
  });
  from_fn.initialize();
  // experimental_run feeds one element per replica and step.
  const PerReplica<Tensor> doubled = two.experimental_run(
      [](ReplicaContext& ctx, const Tensor& x) { return Tensor::scalar<int64_t>(2 * x.item<int64_t>(), ctx.device()); }, from_fn);
  CHECK_EQ(doubled[0].item<int64_t>(), 0);
  CHECK_EQ(doubled[1].item<int64_t>(), 2);

  // Elements of several components arrive as several arguments, or as one vector.
  const Dataset both = Dataset::from_tensors({Tensor::of<float>({1.5f}), Tensor::of<int32_t>({7})}).repeat();
  InputIterator two_parts = two.make_input_fn_iterator([&](const InputContext&) { return both; });
  two_parts.initialize();
  const PerReplica<float> sums = two.experimental_run(
      [](ReplicaContext&, const Tensor& x, const Tensor& y) { return x.item<float>() + float(y.item<int32_t>()); }, two_parts);
  CHECK_EQ(sums[1], 8.5f);
  const PerReplica<int> counts = two.experimental_run([](ReplicaContext&, const std::vector<Tensor>& parts) { return int(parts.size()); }, two_parts);
  CHECK_EQ(counts[0], 2);

  // Pipelines compose, and elements may have several components.
  const Tensor x = Tensor::of<float>({0, 1, 2, 3, 4, 5}).reshape({6, 1});
  const Tensor y = Tensor::of<int32_t>({0, 1, 0, 1, 0, 1});
  InputIterator pairs = two.make_dataset_iterator(
      Dataset::from_tensor_slices({x, y}).shuffle(6, /*seed=*/7).repeat(2).batch(4, /*drop_remainder=*/true).prefetch(2));
  pairs.initialize();
  for (int i = 0; i < 3; ++i) {
    const auto element = pairs.get_next();
    CHECK_EQ(element.size(), 2u);
    for (int replica : {0, 1})
      for (int row : {0, 1})
        CHECK_EQ(int(element[0][replica].to_vector<float>()[row]) % 2, element[1][replica].to_vector<int32_t>()[row]);
  }
  CHECK_THROWS(OutOfRangeError, "end", pairs.get_next());

  // Partial batches: what is left is shared out, and a replica without data gets an empty batch, not a hang.
  DistributedDataset d = three.experimental_distribute_dataset(Dataset::range(7).batch(6));
  std::vector<I> seen;
  for (const auto& element : d)
    for (size_t replica = 0; replica < 3; ++replica) seen.push_back(element[0][replica].to_vector<int64_t>());
  CHECK_EQ(seen, (std::vector<I>{{0, 1}, {2, 3}, {4, 5}, {6}, {}, {}}));
  return CONTRACT_OK();
}
