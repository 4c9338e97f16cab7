// Variables on GPUs.
#include <tutti/tutti.h>

#include "check.h"
#include "need_gpus.h"

using namespace tutti;

int main() {
  need_gpus(2);
  MirroredStrategy strategy({"/gpu:0", "/gpu:1"});
  auto scope = strategy.scope();

  Variable w = Variable::create(Tensor::scalar<float>(1), {.name = "w", .aggregation = VariableAggregation::MEAN});
  CHECK_EQ(w.devices().size(), 2u);
  CHECK_EQ(w.component(1).device(), canonicalize("/gpu:1"));
  CHECK(strategy.extended().variable_created_in_scope(w));

  // Cross-replica: every component gets the value. In a replica: the replicas' values are aggregated first.
  w.assign(Tensor::scalar<float>(5));
  CHECK_EQ(w.component(1).item<float>(), 5.f);
  strategy.run([&](ReplicaContext& ctx) {
    w.assign_add(Tensor::scalar<float>(float(ctx.replica_id_in_sync_group()), ctx.device()));
    CHECK_EQ(w.read_value().item<float>(), 5.5f);
    CHECK_EQ(w.read_value().device(), ctx.device());
  });

  Variable total = Variable::create(Tensor::scalar<float>(0), {.name = "total", .synchronization = VariableSynchronization::ON_READ, .aggregation = VariableAggregation::SUM});
  CHECK(!total.trainable());
  CHECK(w.trainable());
  strategy.run([&](ReplicaContext& ctx) { total.assign_add(Tensor::scalar<float>(float(ctx.replica_id_in_sync_group() + 1), ctx.device())); });
  CHECK_EQ(total.component(0).item<float>(), 1.f);
  CHECK_EQ(total.component(1).item<float>(), 2.f);
  CHECK_EQ(total.read_value().item<float>(), 3.f);
  total.assign(Tensor::scalar<float>(8));
  CHECK_EQ(total.component(0).item<float>(), 4.f);
  CHECK_EQ(total.read_value().item<float>(), 8.f);
  CHECK_THROWS(InvalidArgumentError, "assign_add", total.assign_add(Tensor::scalar<float>(1)));

  Variable step = Variable::create(Tensor::scalar<int64_t>(0), {.name = "step", .aggregation = VariableAggregation::ONLY_FIRST_REPLICA});
  strategy.run([&](ReplicaContext& ctx) { step.assign_add(Tensor::scalar<int64_t>(1, ctx.device())); });
  CHECK_EQ(step.component(1).item<int64_t>(), 1);

  // update: a function on each component, in the scope of its device. This is where programs launch kernels.
  std::vector<std::string> seen;
  strategy.extended().update(w, [&](Tensor component, const Tensor& g) {
    CHECK_EQ(component.item<float>(), 5.5f);
    CHECK_EQ(g.item<float>(), 0.5f);
    CHECK_THROWS(InvalidArgumentError, "host memory", component.span<float>());
    seen.push_back(component.device());
  }, Tensor::scalar<float>(0.5f));
  CHECK_EQ(seen, w.devices());
  w.assign_sub(Tensor::scalar<float>(0.5f));
  CHECK_EQ(w.component(0).item<float>(), 5.f);
  CHECK_EQ(w.component(1).item<float>(), 5.f);

  // A variable as a destination says where, and is not written.
  const PerReplica<Tensor> v{Tensor::scalar<float>(1, "/gpu:0"), Tensor::scalar<float>(2, "/gpu:1")};
  const Mirrored<Tensor> sum = strategy.extended().reduce_to(ReduceOp::SUM, v, w);
  CHECK_EQ(sum[1].item<float>(), 3.f);
  CHECK_EQ(w.component(1).item<float>(), 5.f);

  CHECK_THROWS(InvalidArgumentError, "NONE", Variable::create(Tensor::scalar<float>(0), {.synchronization = VariableSynchronization::NONE}));
  CHECK_THROWS(InvalidArgumentError, "int64", Variable::create(Tensor::scalar<int64_t>(0), {.aggregation = VariableAggregation::MEAN}));
  CHECK_THROWS(InvalidArgumentError, "shape", w.assign(Tensor::of<float>({1, 2})));
  return CONTRACT_OK();
}
