// SPDX-License-Identifier: Apache-2.0
// A small program whose ranks fail, for tests of what is decided once per process.
//   program deadline   rank 1 of 2 does not come to the 301st operation
//   program default    the same without a deadline of the call's own
//   program never      rank 1 comes once rank 0 has warned that it waits, with a deadline of 0
//   program twice      two groups fail, one after the other
//   program fine       nothing fails
//   program window     asks for shared memory
//   program watched    exits, in a forked child too, while a link of NCCL exists
//   program hung       the same while an operation of the link does not end
#include <sys/wait.h>
#include <tutti/tutti.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include "base/log.h"
#include "group/shm/arena.h"
#include "support/fake_nccl.h"

using namespace tutti;

namespace {

void meet(const std::vector<Group>& groups, int times) {
  std::vector<std::thread> threads;
  for (const Group& group : groups)
    threads.emplace_back([&group, times] {
      for (int i = 0; i < times; ++i) group.barrier({.timeout = std::chrono::seconds(60)});
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

int threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return int(std::distance(begin(tasks), end(tasks)));
}

// Prints whether a thread is left after the handlers and destructors that are registered later.
void leave_a_link(bool hang) {
  std::thread([] {}).join();  // with the first, a sanitizer starts one of its own
  static const int before = threads();
  std::atexit([] {
    // The system may list a thread for a moment after it was joined.
    for (int i = 0; i < 1000 && threads() > before; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::puts(threads() > before ? "a thread is left" : "no thread is left");
  });
  testing::FakeGpus& fake = testing::FakeGpus::make();
  fake.runtime.hang = hang;
  static auto* const link =
      new group::NcclLink(fake.gpus, fake.gpus.nccl()->open_all(std::vector{0}, {}), {0}, nullptr);
  static float data[1];
  link->launch({{.kind = group::Collective::all_reduce, .dtype = DType::float32}, 1, {}}, [&] {
    link->communicator().all_reduce(data, data, 1, DType::float32, ReduceOp::SUM, nullptr);
  });
  const pid_t child = fork();
  if (!child) std::exit(0);
  waitpid(child, nullptr, 0);
}

// Rank 0 waits until it warns, or fails; rank 1 comes then.
void wait_without_a_deadline(const std::vector<Group>& groups) {
  const CommunicationOptions never{.timeout = std::chrono::milliseconds(0)};
  std::atomic<bool> looked = false;
  const auto look = [&] {
    looked = true;
    looked.notify_one();
  };
  base::set_log_sink([&](base::LogLevel, std::string_view text) {
    std::printf("%s\n", std::string(text).c_str());
    look();
  });
  std::thread first([&] {
    fail(groups[0], never);
    look();
  });
  looked.wait(false);
  fail(groups[1], never);
  first.join();
  base::set_log_sink(nullptr);
}

}  // namespace

int main(int, char** argv) {
  const std::string what = argv[1];
  if (what == "watched" || what == "hung") {
    leave_a_link(what == "hung");
    return 0;
  }
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
  if (what == "never") wait_without_a_deadline(groups);
  if (what == "twice") {
    fail(groups[0], soon);
    fail(groups[0], soon);  // the same error again
    fail(Group::in_process(2)[0], soon);
  }
}
