// SPDX-License-Identifier: Apache-2.0
// A small program with a timeline:
//   program advice [N]       one span with arguments, N times
//   program early RANK       is told its rank before its first span
//   program late RANK        and after it
//   program parent COMMAND   runs a command while its own timeline is open
//   program fork             between two spans, a child that it forks ends by exit()
//   program training FOLDER  a step of two replicas, with input, a checkpoint and a span of its own
#include <sys/wait.h>
#include <tutti/tutti.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "observe/timeline.h"

using namespace tutti::observe;

namespace {

void join(int rank) {
  name_timeline_after(rank);
  describe_timeline(
      {.rank = rank, .ranks = 5, .host = "left", .job = "run 1", .add_ns = -1500, .error_ns = 250});
}

void train(const std::string& folder) {
  using namespace tutti;
  tutti::Span step("step");
  step.set("epoch", 2);
  step.set("epoch", 3);
  step.set("rate", 0.5);
  step.set("phase", "warm \"up\"");
  set_logical_devices("CPU", 2);
  MirroredStrategy strategy;
  const Scope scope = strategy.scope();
  const Variable weight = Variable::create(Tensor::scalar<float>(1), {.name = "weight"});
  InputIterator input =
      strategy.experimental_distribute_dataset(Dataset::range(4).batch(2)).make_iterator();
  strategy.experimental_run(
      [](ReplicaContext& ctx, const Tensor& x) { return ctx.all_reduce(ReduceOp::SUM, x); }, input);
  Checkpoint checkpoint(folder, {weight}, {&input});
  checkpoint.save(7);
  checkpoint.restore();
  save_variables(folder + "/weight.safetensors", {weight});
  load_variables(folder + "/weight.safetensors", {weight});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argv[1];
  if (what == "training") return train(argv[2]), 0;
  if (what == "early") join(std::atoi(argv[2]));
  const int times = what == "advice" && argc > 2 ? std::atoi(argv[2]) : 1;
  for (int i = 0; i < times; ++i) {
    Span span("first");
    span.set("bytes", 12);
    span.set("advice", "the dense form \"is\" smaller");
    span.set("bytes", 13);
  }
  if (what == "late") join(std::atoi(argv[2]));
  if (what == "fork") {
    const pid_t child = fork();
    if (child == 0) std::exit(0);
    if (child < 0 || waitpid(child, nullptr, 0) != child) return 1;
  }
  if (what == "parent" && std::system(argv[2]) != 0) return 1;
  const Span span("second");
}
