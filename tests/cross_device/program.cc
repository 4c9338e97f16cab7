// SPDX-License-Identifier: Apache-2.0
// A small program that reduces, for tests of what is decided once per process.
#include <tutti/tutti.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

using namespace tutti;

int main(int, char** argv) {
  const std::string what = argv[1];
  set_logical_devices("CPU", 2);
  const PerReplica<Tensor> floats{Tensor::of<float>({1, 2, 3}, "/cpu:0"),
                                  Tensor::of<float>({3, 4, 5}, "/cpu:1")};
  const PerReplica<Tensor> ints{Tensor::of<int64_t>({1}, "/cpu:0"),
                                Tensor::of<int64_t>({2}, "/cpu:1")};
  try {
    if (what == "nccl") {
      NcclAllReduce().reduce(ReduceOp::SUM, floats, floats);
      return 0;
    }
    if (what == "mirrored") {
      MirroredStrategy({"/cpu:0", "/cpu:1"});
      return 0;
    }
    if (what == "group") {
      Group::from_environment();
      return 0;
    }
    if (what == "sparse") {  // six rows of a tensor of two
      const std::vector<Group> ranks = Group::in_process(2);
      std::vector<std::thread> threads;
      for (const Group& rank : ranks)
        threads.emplace_back([rank] {
          const IndexedSlices rows{Tensor::of<float>({1, 2, 3}), Tensor::of<int64_t>({0, 1, 0}),
                                   Shape{2}};
          CollectiveAllReduce({"/cpu:0"}, rank).reduce(ReduceOp::SUM, rows, rows);
        });
      for (std::thread& thread : threads) thread.join();
      return 0;
    }
    HierarchicalCopyAllReduce hierarchical(/*num_packs=*/8);
    ReductionToOneDevice one;
    hierarchical.reduce(ReduceOp::SUM, floats, floats);
    hierarchical.batch_reduce(ReduceOp::MEAN, {{floats, floats}, {ints, "/cpu:1"}},
                              CommunicationOptions{.bytes_per_pack = 0});
    one.reduce(ReduceOp::MAX, ints, "/cpu:0");
    one.broadcast(floats[0], ints);
    one.gather(floats, "/cpu:0", 0);
    if (what == "killed") std::raise(SIGKILL);
  } catch (const UnavailableError& e) {
    std::printf("Unavailable: %s\n", e.what());
    return 3;
  }
}
