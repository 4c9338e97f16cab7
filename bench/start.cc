// SPDX-License-Identifier: Apache-2.0
// A worker that joins its job, meets the others, and leaves. Rank 0 prints the seconds that took
// from the start of its process, and the most memory that any rank has had, in KiB.
#include <fmt/format.h>
#include <tutti/tutti.h>

#include <chrono>
#include <fstream>
#include <string>

int main() {
  const auto start = std::chrono::steady_clock::now();
  const tutti::Group group = tutti::Group::from_environment();
  group.barrier();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::vector<double> memory{0};
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmHWM:") status >> memory[0];
  group.all_reduce(memory, tutti::ReduceOp::MAX);
  if (group.rank() == 0)
    fmt::print("{{\"seconds\": {:.4f}, \"kilobytes\": {:.0f}, \"backend\": \"{}\"}}\n",
               took.count(), memory[0], group.backend());
}
