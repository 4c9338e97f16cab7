// A small program whose ranks fail, for tests of what is decided once per process.
//   program deadline   rank 1 of 2 does not come to the 301st operation
//   program default    the same without a deadline of the call's own
//   program twice      two groups fail, one after the other
//   program fine       nothing fails
//   program window     asks for shared memory
#include <tutti/tutti.h>

#include <cstdio>
#include <string>
#include <thread>

#include "group/arena.h"

using namespace tutti;

namespace {

void meet(const std::vector<Group>& groups, int times) {
  std::vector<std::thread> threads;
  for (const Group& group : groups)
    threads.emplace_back([&group, times] {
      for (int i = 0; i < times; ++i) group.barrier();
    });
  for (std::thread& thread : threads) thread.join();
}

void fail(const Group& group, const CommunicationOptions& options) {
  std::vector<float> data(5);
  try {
    group.all_reduce(data, ReduceOp::SUM, options);
  } catch (const Error& e) {
    std::printf("%s\n", e.what());
  }
}

}  // namespace

int main(int, char** argv) {
  const std::string what = argv[1];
  const CommunicationOptions soon{.timeout = std::chrono::milliseconds(100)};
  const std::vector<Group> groups = Group::in_process(2);
  meet(groups, 300);
  if (what == "deadline") fail(groups[0], soon);
  if (what == "default") fail(groups[0], {});
  if (what == "window") try {
      group::Arena::mine().allocate(1 << 20);
      std::printf("mapped\n");
    } catch (const ResourceExhaustedError& e) {
      std::printf("%s\n", e.what());
    }
  if (what == "twice") {
    fail(groups[0], soon);
    fail(groups[0], soon);  // the same error again
    fail(Group::in_process(2)[0], soon);
  }
}
