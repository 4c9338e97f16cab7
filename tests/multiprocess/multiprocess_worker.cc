// SPDX-License-Identifier: Apache-2.0
// A worker that goes through a mixture of operations, and may be told to go wrong.
//   multiprocess_worker SEED STEPS [FAULT RANK STEP [TWIST]]
// STEPS "until": it goes on until the driver puts a file "enough" here, and then for 100 steps.
// FAULT of RANK at STEP, or soon after if that is not possible there:
//   throw      an exception that is not caught
//   leave      one that main catches, which then returns 1
//   mismatch   another shape (TWIST 1), dtype (2) or op (3) than the rest
//   skip       leaves the operation out
//   skip_last  leaves the last operation out, and ends as if all were well
//   none       the driver kills or stops a rank; groups are made on the way, too
//   stopped    the driver stops a rank; we wait for a file "all failed" before the second call
//   whole      as none, but all ranks take part in every operation
//   soak       nothing goes wrong; memory and descriptors are reported
// Reports "start" at once, "ready" when the group is there, "fault" just before going wrong,
// "error" for the first error, "again" for that of a second call, "other" for that of another
// group, "wrong" for a wrong result, "done" at the end.
#include <filesystem>
#include <limits>
#include <thread>

#include "mixture.h"
#include "report.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

constexpr int64_t kUntilTold = std::numeric_limits<int64_t>::max();

struct Task {
  uint64_t seed;
  int64_t steps;
  std::string fault = "soak";
  int rank = -1;
  int64_t at = 0;
  Twist twist = Twist::none;
};

// The first step from `task.at` on at which the fault shows.
int64_t moment_of(const Task& task, const Mixture& mixture) {
  const auto collective = [&](int64_t step) {
    return Mixture::collective(mixture.step(step).kind);
  };
  int64_t step = task.at;
  if (task.fault == "mismatch") {
    const auto shows = [&] {
      const Kind kind = mixture.step(step).kind;
      return task.twist == Twist::shape ? kind < Kind::all_gather : kind == Kind::all_reduce;
    };
    while (!shows()) ++step;
  }
  if (task.fault == "skip")
    while (collective(step).empty() || collective(step + 1).empty() ||
           collective(step) == collective(step + 1))
      ++step;
  return step;
}

void go_through(const Task& task, const Group& group) {
  const int rank = group.rank();
  const bool soaking = task.fault == "soak";
  Mixture mixture(group, task.seed, task.fault == "none", soaking, task.fault != "whole");
  const int64_t moment = rank == task.rank ? moment_of(task, mixture) : -1;
  if (soaking) mixture.warm_up();
  const int64_t first = soaking ? -5000 : 0;  // these warm up, too
  int64_t end = task.steps;
  for (int64_t step = first; step < end; ++step) {
    if (end == kUntilTold) {
      std::vector<int> told{rank == 0 && std::filesystem::remove("enough")};
      group.broadcast(told, 0);
      if (told[0]) end = step + 100;
    }
    if (soaking && step == 0) report_usage("before", rank);
    if (step == moment && task.fault != "skip_last") {
      report("fault", rank, std::to_string(step));
      if (task.fault == "throw" || task.fault == "leave")
        throw std::runtime_error("bad pixel in image 42");
      if (task.fault == "skip") continue;
    }
    mixture.run(mixture.step(step), step == moment ? task.twist : Twist::none);
  }
  if (soaking) report_usage("after", rank);
  if (task.fault == "skip_last") {
    if (rank == task.rank) return report("fault", rank);
    std::vector<float> data(1000, 1.f);
    group.all_reduce(data, ReduceOp::SUM);
  }
}

int run(const Task& task) {
  int rank = -1;
  report("start", rank);
  try {
    const Group group = Group::from_environment(), other = Group::from_environment();
    rank = group.rank();
    group.barrier();
    report("ready", rank);
    try {
      go_through(task, group);
    } catch (const Error& error) {
      report("error", rank, error);
      // While others still wait for the stopped rank, another call of ours would fail theirs.
      while (task.fault == "stopped" && !std::filesystem::exists("all failed"))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      try {
        group.barrier();
      } catch (const Error& again) {
        report("again", rank, again);
      }
      try {
        if (task.fault == "none") other.barrier({.timeout = std::chrono::seconds(1)});
      } catch (const Error& of_other) {
        report("other", rank, of_other);
      }
      return 3;
    }
  } catch (const Error& error) {
    report("error", rank, error);
    return 3;
  } catch (const Mixture::Wrong& wrong) {
    report("wrong", rank, "", wrong.what());
    return 4;
  }
  report("done", rank);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Task task{.seed = std::stoull(argv[1]),
            .steps = argv[2] == std::string("until") ? kUntilTold : std::stoll(argv[2])};
  if (argc > 5) {
    task.fault = argv[3];
    task.rank = std::stoi(argv[4]);
    task.at = std::stoll(argv[5]);
  }
  if (argc > 6) task.twist = Twist(std::stoi(argv[6]));
  if (task.fault != "leave") return run(task);
  try {
    return run(task);
  } catch (const std::runtime_error&) {
    return 1;
  }
}
