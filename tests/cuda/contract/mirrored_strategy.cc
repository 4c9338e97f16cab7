// One machine, several logical GPUs: scope, run, replica contexts, merge_call, reduce.
#include <tutti/tutti.h>

#include <atomic>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "need_gpus.h"

using namespace tutti;
using F = std::vector<float>;

struct StepResult {
  Tensor loss;
  int examples;
};

int main() {
  need_gpus(4);
  MirroredStrategy strategy({"/gpu:0", "/gpu:1", "/gpu:2"});
  CHECK_EQ(strategy.num_replicas_in_sync(), 3);
  CHECK_EQ(strategy.extended().worker_devices()[2], canonicalize("/gpu:2"));
  CHECK(!has_strategy());

  // run: the function is called once per replica, each on a thread of its own, at the same time.
  std::atomic<int> inside = 0;
  const PerReplica<Tensor> r = strategy.run([&](ReplicaContext& ctx) {
    CHECK(has_strategy());
    CHECK(!in_cross_replica_context());
    CHECK(&get_replica_context() == &ctx);  // for code that was not handed the context
    CHECK_EQ(ctx.num_replicas_in_sync(), 3);
    ++inside;
    while (inside < 3) std::this_thread::yield();  // would hang if replicas took turns
    return Tensor::scalar<float>(float(ctx.replica_id_in_sync_group()), ctx.device());
  });
  CHECK_EQ(r.size(), 3u);
  CHECK_EQ(r[2].item<float>(), 2.f);
  CHECK_EQ(strategy.reduce(ReduceOp::SUM, r).item<float>(), 3.f);
  CHECK_EQ(strategy.reduce(ReduceOp::MEAN, r).item<float>(), 1.f);
  CHECK_EQ(strategy.reduce("mean", r).item<float>(), 1.f);

  // Any result type comes back per replica; map picks a part of it. Distributed arguments are split.
  const PerReplica<StepResult> steps = strategy.run(
      [](ReplicaContext& ctx, const Tensor& x) { return StepResult{x, ctx.replica_id_in_sync_group() + 1}; }, r);
  CHECK_EQ(strategy.reduce(ReduceOp::SUM, steps.map(&StepResult::loss)).item<float>(), 3.f);
  CHECK_EQ(strategy.experimental_local_results(steps)[2].examples, 3);

  // Inside a replica: all_reduce and all_gather meet the other replicas.
  const PerReplica<Tensor> met = strategy.run([](ReplicaContext& ctx) {
    const float id = float(ctx.replica_id_in_sync_group());
    const Tensor mine = Tensor::of<float>({id, 10 * id}, ctx.device());
    const Tensor sum = ctx.all_reduce(ReduceOp::SUM, mine);
    CHECK_EQ(sum.to_vector<float>(), F({3, 30}));
    const std::vector<Tensor> both = ctx.all_reduce(ReduceOp::MEAN, std::vector<Tensor>{mine, mine});
    CHECK_EQ(both[1].to_vector<float>(), F({1, 10}));
    return ctx.all_gather(mine.reshape({1, 2}), /*axis=*/0);
  });
  CHECK_EQ(met[0].to_vector<float>(), F({0, 0, 1, 10, 2, 20}));
  CHECK_EQ(met[2].device(), canonicalize("/gpu:2"));

  // merge_call: every replica stops, the function runs once in cross-replica context, each gets its part back.
  const PerReplica<Tensor> merged = strategy.run([](ReplicaContext& ctx) {
    const Tensor mine = Tensor::scalar<float>(float(ctx.replica_id_in_sync_group()), ctx.device());
    return ctx.merge_call(
        [](Strategy& s, const PerReplica<Tensor>& all) {
          CHECK(in_cross_replica_context());
          return s.extended().reduce_to(ReduceOp::SUM, all, all);
        },
        mine);
  });
  CHECK_EQ(merged[1].item<float>(), 3.f);

  // MEAN over an axis weighs replicas by what they hold: 1 + 2 + 3 elements, not the mean of means.
  const PerReplica<Tensor> uneven = strategy.run([](ReplicaContext& ctx) {
    const int id = ctx.replica_id_in_sync_group();
    return Tensor::full({id + 1}, id, DType::float32, ctx.device());
  });
  CHECK_EQ(strategy.reduce(ReduceOp::SUM, uneven, /*axis=*/0).item<float>(), 8.f);
  CHECK(std::abs(strategy.reduce(ReduceOp::MEAN, uneven, /*axis=*/0).item<float>() - 8.f / 6) < 1e-6f);
  CHECK_EQ(strategy.gather(uneven, /*axis=*/0).to_vector<float>(), F({0, 1, 1, 2, 2, 2}));

  // A weighted mean: sum of w*x over sum of w, for replicas that saw different numbers of examples.
  CHECK(std::abs(strategy.reduce(ReduceOp::MEAN, r, {.weights = {1, 2, 3}}).item<float>() - 8.f / 6) < 1e-6f);
  strategy.run([](ReplicaContext& ctx) {
    const float id = float(ctx.replica_id_in_sync_group());
    const Tensor mean = ctx.all_reduce(ReduceOp::MEAN, Tensor::scalar<float>(id, ctx.device()), {.weight = id + 1});
    CHECK(std::abs(mean.item<float>() - 8.f / 6) < 1e-6f);
  });
  CHECK_THROWS(InvalidArgumentError, "weight", strategy.reduce(ReduceOp::MEAN, r, {.weights = {0, 0, 0}}));

  // Scopes nest with themselves and with nothing else.
  {
    auto scope = strategy.scope();
    CHECK(&get_strategy() == &strategy);
    CHECK(in_cross_replica_context());
    auto again = strategy.scope();
    MirroredStrategy other({"/gpu:3"});
    CHECK_THROWS(FailedPreconditionError, "strateg", other.scope());
    CHECK_THROWS(FailedPreconditionError, "strateg", other.run([](ReplicaContext&) { return 0; }));
  }
  CHECK(!has_strategy());
  CHECK_THROWS(FailedPreconditionError, "replica", strategy.run([&](ReplicaContext&) { return strategy.scope(); }));

  // An exception in one replica ends the step for all of them and reaches the caller as it was thrown.
  CHECK_THROWS(std::domain_error, "replica 1 is unhappy", strategy.run([](ReplicaContext& ctx) {
    if (ctx.replica_id_in_sync_group() == 1) throw std::domain_error("replica 1 is unhappy");
    return ctx.all_reduce(ReduceOp::SUM, Tensor::scalar<float>(1, ctx.device()));
  }));
  // A replica that returns while the others wait is an error that names it, not a hang.
  CHECK_THROWS(FailedPreconditionError, "replica 2", strategy.run([](ReplicaContext& ctx) {
    if (ctx.replica_id_in_sync_group() == 2) return Tensor::scalar<float>(0, ctx.device());
    return ctx.all_reduce(ReduceOp::SUM, Tensor::scalar<float>(1, ctx.device()));
  }));
  // So is a replica that asks for something else.
  CHECK_THROWS(InvalidArgumentError, "replica 0", strategy.run([](ReplicaContext& ctx) {
    return ctx.all_reduce(ctx.replica_id_in_sync_group() ? ReduceOp::SUM : ReduceOp::MEAN, Tensor::scalar<float>(1, ctx.device()));
  }));
  CHECK_EQ(strategy.reduce(ReduceOp::SUM, r).item<float>(), 3.f);  // the strategy still works after all that

  CHECK_THROWS(InvalidArgumentError, "GPU:0", MirroredStrategy({"/gpu:0", "/device:GPU:0"}));
  CHECK_EQ(MirroredStrategy().num_replicas_in_sync(), 4);  // every logical GPU
  // The reference's own example: only the cross-device ops are chosen.
  CHECK(MirroredStrategy(std::make_shared<ReductionToOneDevice>()).num_replicas_in_sync() >= 1);
  // Results of any type: move-only, without a default, bool.
  const PerReplica<std::unique_ptr<int>> owned = strategy.run([](ReplicaContext& ctx) { return std::make_unique<int>(ctx.replica_id_in_sync_group()); });
  CHECK_EQ(*owned[2], 2);
  const PerReplica<bool> flags = strategy.run([](ReplicaContext& ctx) { return ctx.replica_id_in_sync_group() == 1; });
  CHECK(flags[1] && !flags[0]);
  return CONTRACT_OK();
}
