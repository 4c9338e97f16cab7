// SPDX-License-Identifier: Apache-2.0
// Variables that are kept in sync when they are written, metrics that are added up when they are
// read, and a checkpoint.
#include <tutti/tutti.h>

#include <filesystem>
#include <iostream>

using namespace tutti;

int main() {
  set_logical_devices("CPU", 2);
  MirroredStrategy strategy;
  const auto scope = strategy.scope();

  // Written by all replicas at once: their values are averaged, and every copy gets the mean.
  const Variable weight = Variable::create(
      Tensor::scalar<float>(1), {.name = "weight", .aggregation = VariableAggregation::MEAN});
  // Replica 0 counts for all.
  const Variable step =
      Variable::create(Tensor::scalar<int64_t>(0),
                       {.name = "step", .aggregation = VariableAggregation::ONLY_FIRST_REPLICA});
  // Each replica counts for itself; reading adds up.
  const Variable examples = Variable::create(Tensor::scalar<int64_t>(0),
                                             {.name = "examples",
                                              .synchronization = VariableSynchronization::ON_READ,
                                              .aggregation = VariableAggregation::SUM});

  for (const DistributedElement& batch :
       strategy.experimental_distribute_dataset(Dataset::range(10).batch(4)))
    strategy.run(
        [&](ReplicaContext& ctx, const Tensor& x) {
          weight.assign_add(
              Tensor::scalar<float>(float(ctx.replica_id_in_sync_group()), ctx.device()));
          step.assign_add(Tensor::scalar<int64_t>(1, ctx.device()));
          examples.assign_add(Tensor::scalar<int64_t>(x.num_elements(), ctx.device()));
        },
        batch[0]);

  std::cout << "weight " << weight.read_value().item<float>() << ", step "
            << step.read_value().item<int64_t>() << ", examples "
            << examples.read_value().item<int64_t>() << "\n";

  const std::string file = "04_variables_and_metrics.safetensors";
  save_variables(file, {weight, step, examples});
  weight.assign(Tensor::scalar<float>(0));
  load_variables(file, {weight, step, examples});
  std::filesystem::remove(file);
  std::cout << "weight " << weight.read_value().item<float>() << " after restoring it\n";
}
