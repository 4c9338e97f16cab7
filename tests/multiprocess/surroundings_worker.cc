// SPDX-License-Identifier: Apache-2.0
// What a healthy job survives of its surroundings, one case per run:
//   surroundings_worker CASE [ARGUMENT]
// Reports "ok", "error" for an error of Tutti's, or "wrong" with what is wrong.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tutti/tutti.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "report.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Tensors of the window beyond its first segment, of which all ranks read and write all.
void grow() {
  const Group group = Group::from_environment();
  std::vector<Tensor> all;
  for (const int64_t mebibytes : {1, 40, 80, 3}) {
    all.push_back(group.empty({mebibytes << 18}, DType::float32));
    std::ranges::fill(all.back().span<float>(), float(group.rank() + 1));
    group.all_reduce(all.back(), ReduceOp::SUM);
    const float sum = float(group.size() * (group.size() + 1) / 2);
    require(std::ranges::all_of(all.back().span<float>(), [&](float x) { return x == sum; }),
            "a wrong sum of " + std::to_string(mebibytes) + " MiB");
    group.barrier();
  }
}

template <class F>
void expect_refused(const F& call) {
  try {
    call();
  } catch (const FailedPreconditionError& error) {
    require(std::string(error.what()).find("forked") != std::string::npos, error.what());
    return;
  }
  require(false, "a forked child takes part");
}

// A forked child that lives on, and is not in the job.
[[noreturn]] void live_on(const Group& group, Tensor data) {
  try {
    expect_refused([&] { group.barrier(); });
    expect_refused([&] { group.all_reduce(data, ReduceOp::SUM); });
    expect_refused([&] { group.all_reduce_async(data, ReduceOp::SUM).wait(); });
    expect_refused([&] { group.empty({1}, DType::float32); });
    expect_refused([] { Group::from_environment(); });
    data = {};
    report("child", group.rank());
  } catch (const std::exception& wrong) {
    report("wrong", group.rank(), "", wrong.what());
  }
  close(std::atoi(std::getenv("TUTTI_TEST_REPORT")));
  while (true) pause();
}

// The victim forks a child, and waits to be killed; the others wait for it.
void fork_children(int victim) {
  const Group group = Group::from_environment();
  const Tensor data = group.empty({100'000}, DType::float32);
  group.all_reduce(data, ReduceOp::SUM);
  if (group.rank() == victim) {
    static const Group until_exit = group;
    const pid_t brief = fork();
    if (brief == 0) std::exit(0);
    int status = -1;
    require(waitpid(brief, &status, 0) == brief && status == 0, "a child does not end well");
    group.all_reduce(data, ReduceOp::SUM);  // it has taken nothing along
    if (fork() == 0) live_on(group, data);
    while (true) pause();
  }
  group.all_reduce(data, ReduceOp::SUM);
  report("ready", group.rank());
  group.barrier();
}

void run(const std::string& name, int argument) {
  if (name == "join") return Group::from_environment().barrier();
  if (name == "undumpable") {
    require(prctl(PR_SET_DUMPABLE, 0) == 0, "prctl");
    return Group::from_environment().barrier();
  }
  if (name == "grow") return grow();
  if (name == "fork") return fork_children(argument);
  throw std::runtime_error("there is no case " + name);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argv[1], argc > 2 ? std::atoi(argv[2]) : 0);
    report("ok", -1, argv[1]);
    return 0;
  } catch (const Error& error) {
    report("error", -1, error);
    return 3;
  } catch (const std::exception& wrong) {
    report("wrong", -1, "", wrong.what());
    return 4;
  }
}
