// SPDX-License-Identifier: Apache-2.0
// One rank of a job on GPUs, started by `tutti run`. All ranks may share one GPU: each gives NCCL
// another name for its host, so that NCCL connects them as if they were on several.
//   nccl_worker            all collectives by NCCL, compared with the same ones on the host
//   nccl_worker --die R    rank R dies in the middle; the others must say so, and exit with 42
#include "cuda/collective_checks.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

using namespace tutti;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kToldOfTheDeath = 42;

int check_all(const Group& group) {
  set_logical_devices("GPU", 2);
  tutti::testing::CollectiveChecks checks(group, {"/gpu:0", "/gpu:1"});
  checks.all();
  for (const std::string& failure : checks.failures())
    fmt::print("rank {}: {}\n", group.rank(), failure);
  if (!checks.failures().empty()) return 1;
  fmt::print("rank {}: all collectives exact over nccl ({} checks)\n", group.rank(),
             checks.checks());
  return 0;
}

int outlive(const Group& group, int dying) {
  const Tensor data = Tensor::full({4 << 20}, 1, DType::float32, "/gpu:0");
  auto began = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  try {
    group.all_reduce(data, ReduceOp::MEAN);
    group.barrier();
    began = Clock::now();
    if (group.rank() == dying)
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        kill(getpid(), SIGKILL);
      }).detach();
    for (int64_t i = 0; seconds() < 60; ++i) {
      group.all_reduce(data, ReduceOp::MEAN);
      if (i % 8 == 0) (void)data.clone_to("/cpu:0");
    }
  } catch (const Error& error) {
    const bool named =
        std::string(error.what()).find(fmt::format("rank {}", dying)) != std::string::npos;
    fmt::print("rank {}: after {:.2f} s: {}\n", group.rank(), seconds(), error.what());
    std::fflush(stdout);
    return named ? kToldOfTheDeath : 1;
  }
  fmt::print("rank {}: it was not told that rank {} is dead\n", group.rank(), dying);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  // Before anything reads them.
  setenv("TUTTI_BACKEND", "nccl", 0);  // no NCCL is an error
  setenv("TUTTI_TIMEOUT", "20", 0);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("NCCL_IB_DISABLE", "1", 0);
  int status = 1;
  try {
    const Group group = Group::from_environment();
    setenv("NCCL_HOSTID", std::to_string(group.rank()).c_str(), 0);
    const bool die = argc == 3 && std::string(argv[1]) == "--die";
    status = die ? outlive(group, std::atoi(argv[2])) : check_all(group);
  } catch (const std::exception& error) {
    fmt::print("error: {}\n", error.what());
  }
  std::fflush(stdout);
  return status;
}
