// SPDX-License-Identifier: Apache-2.0
// A reduction of one's own: gradients are clipped to a norm of 1 before they are added, so that no
// replica outshouts the rest.
#include <tutti/tutti.h>

#include <cmath>
#include <iostream>

using namespace tutti;

class ClippedReduction : public CrossDeviceOps {
 protected:
  // Everything has been checked when this is called; batches, broadcasts and gathers are inherited.
  Mirrored<Value> reduce_implementation(ReduceOp op, const PerReplica<Value>& value,
                                        const Destinations& destinations,
                                        const CommunicationOptions& options) override {
    return inner_.reduce(op, value.map([](const Value& v) { return Value(clipped(v.tensor())); }),
                         destinations, options);
  }

 private:
  static Tensor clipped(const Tensor& gradient) {
    double square = 0;
    for (const float x : gradient.span<const float>()) square += double(x) * x;
    const Tensor result = gradient.clone();
    if (square > 1)
      for (float& x : result.span<float>()) x = float(x / std::sqrt(square));
    return result;
  }

  ReductionToOneDevice inner_;
};

int main() {
  set_logical_devices("CPU", 3);
  MirroredStrategy strategy(std::make_shared<ClippedReduction>());
  strategy.run([](ReplicaContext& ctx) {
    // Replica 2's gradient has exploded.
    const float size = ctx.replica_id_in_sync_group() == 2 ? 1e6f : 0.1f;
    const Tensor gradient = Tensor::of<float>({3 * size, 4 * size}, ctx.device());
    const Tensor sum = ctx.all_reduce(ReduceOp::SUM, gradient);
    if (ctx.replica_id_in_sync_group() == 0)
      std::cout << "sum of clipped gradients: " << sum.span<const float>()[0] << " "
                << sum.span<const float>()[1] << "\n";
  });
}
