// SPDX-License-Identifier: Apache-2.0
// Does not compile: each of these functions takes other arguments than it would get. The test looks
// at what the compiler says first.
#include <tutti/tutti.h>

using namespace tutti;

void wrong(Strategy& strategy, const PerReplica<Tensor>& x, const DistributedElement& element) {
#if defined(RUN)
  strategy.run([](ReplicaContext&, const Tensor&, const Tensor&) {}, x);
#elif defined(RUN_ELEMENT)
  strategy.run([](ReplicaContext&) {}, element);
#elif defined(MERGE_CALL)
  strategy.run([](ReplicaContext& ctx) { ctx.merge_call([](Strategy&) { return 1; }, 2.f); });
#endif
}
