// SPDX-License-Identifier: Apache-2.0
// What groups from the environment must do, one case per run:
//   launch_worker CASE [ARGUMENT]
// Reports "ok" with what it found, "error" for an error of Tutti's, or "wrong" with what is wrong.
#include <poll.h>
#include <tutti/tutti.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <set>
#include <thread>

#include "report.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

int sum_of_ranks(const Group& group) { return group.size() * (group.size() - 1) / 2; }

void expect_sum(const Group& group, int times = 1) {
  for (int i = 0; i < times; ++i) {
    std::vector<int> data(1 + size_t(i) * 37 % 20'000, group.rank());
    group.all_reduce(data, ReduceOp::SUM);
    for (const int value : data) require(value == sum_of_ranks(group), "a wrong sum");
  }
}

// Just a group, and one operation.
std::string join() {
  const Group group = Group::from_environment();
  expect_sum(group);
  return std::string(group.backend()) + " " + std::to_string(group.rank()) + " of " +
         std::to_string(group.size());
}

std::string local() {
  const Group group = Group::from_environment();
  group.barrier();
  return std::to_string(group.local_rank()) + " of " + std::to_string(group.local_size());
}

std::string alone() {
  const Group group = Group::from_environment();
  require(group.rank() == 0 && group.size() == 1, "not alone");
  std::vector<float> data{1, 2, 3}, out(3);
  const std::vector<float> expected = data;
  group.barrier();
  group.all_reduce(data, ReduceOp::MEAN);
  group.broadcast(data, 0);
  group.all_gather(data, out);
  require(data == expected && out == expected, "a group of one changes data");
  const Tensor window = group.empty({3}, DType::float32);
  std::ranges::copy(data, window.span<float>().begin());
  group.all_reduce(window, ReduceOp::SUM);
  require(window.to_vector<float>() == expected, "a group of one changes a tensor");
  require(group.split(0, 0).size() == 1, "a part of one is not one");
  expect_sum(Group::from_environment(), 100);
  return std::string(group.backend());
}

// Two groups take turns; one that fails is no fault of the other.
std::string alternate() {
  const Group a = Group::from_environment(), b = Group::from_environment();
  for (int i = 0; i < 300; ++i) expect_sum(i % 2 ? a : b);
  std::vector<int> data(5);
  Work both = a.all_reduce_async(data, ReduceOp::SUM);  // at the same time
  expect_sum(b, 20);
  both.wait();
  try {
    data.resize(a.rank() == 1 ? 7 : 8);
    a.all_reduce(data, ReduceOp::SUM);
    require(false, "a mismatch went unnoticed");
  } catch (const InvalidArgumentError& error) {
    require(std::strstr(error.what(), "rank 1"), error.what());
  }
  expect_sum(b, 20);
  const Group c = Group::from_environment();
  expect_sum(c, 20);
  try {
    a.barrier();
    require(false, "a group that had failed went on");
  } catch (const InvalidArgumentError&) {
  }
  b.barrier();
  return "";
}

// Rank 1 waits for rank 2, which waits for rank 0, which has something else to do.
std::string chain() {
  const Group group = Group::from_environment(), other = Group::from_environment();
  const auto timeouts = [](int milliseconds) {
    return CommunicationOptions{.timeout = std::chrono::milliseconds(milliseconds)};
  };
  std::vector<int> data(1);
  other.barrier(timeouts(60'000));
  try {
    if (group.rank() == 1) group.recv(data, 2, 0, timeouts(1000));
    if (group.rank() == 2) group.recv(data, 0, 0, timeouts(60'000));
  } catch (const DeadlineExceededError& error) {
    require(std::strstr(error.what(), "rank 0"), error.what());
    data[0] = 1;
  }
  require(data[0] == (group.rank() > 0), "a message came from nowhere");
  other.barrier(timeouts(60'000));
  return "";
}

std::string recreate(int times) {
  Group last = Group::from_environment();
  for (int i = 0; i < times; ++i) {
    if (i == times / 2) report_usage("before", last.rank());
    Group group = Group::from_environment();
    const Tensor data = group.empty({1000}, DType::float32);
    std::ranges::fill(data.span<float>(), float(group.rank()));
    group.all_reduce(data, ReduceOp::MEAN);
    const float mean = float(sum_of_ranks(group)) / float(group.size());
    for (const float value : data.span<float>()) require(value == mean, "a wrong mean");
    expect_sum(last);
    if (i % 2) last = std::move(group);
    // A value of the rank that has come round to being the first.
    std::vector<int> first{last.rank() * 10 + i};
    last.broadcast(first, i % last.size());
    require(first[0] == i % last.size() * 10 + i, "a wrong value from the root");
  }
  report_usage("after", last.rank());
  last.barrier();
  return "";
}

Tensor kept_to_the_end;  // destroyed after main

std::string outlive() {
  Tensor data;
  int rank = 0;
  {
    const Group group = Group::from_environment();
    rank = group.rank();
    data = group.empty({100'000}, DType::float32);
    kept_to_the_end = group.empty({1000}, DType::int64);
    std::ranges::fill(data.span<float>(), float(rank));
    group.all_reduce(data, ReduceOp::SUM);
  }
  const Group next = Group::from_environment();
  const float sum = float(sum_of_ranks(next));
  for (const float value : data.span<float>()) require(value == sum, "memory of a group is lost");
  std::ranges::fill(data.span<float>(), float(rank + 1));
  const Tensor fresh = next.empty({100'000}, DType::float32);
  std::ranges::fill(fresh.span<float>(), -1.f);
  next.all_reduce(data, ReduceOp::SUM);  // of a group that is no more, in another
  const float more = sum + float(next.size());
  for (const float value : data.span<float>()) require(value == more, "a wrong sum of kept memory");
  for (const float value : fresh.span<float>()) require(value == -1.f, "memory is used twice");
  std::ranges::fill(kept_to_the_end.span<int64_t>(), rank);
  static const Group until_exit = next;  // as well
  next.barrier();
  return "";
}

// The same inputs everywhere: floats of many sizes, so that every order of adding has bits of its
// own.
template <class Bits>
std::vector<Bits> inputs(DType dtype, int rank, size_t count) {
  std::vector<Bits> all(count);
  uint64_t state = uint64_t(rank) * 1000 + count;
  for (Bits& bits : all) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t random = state >> 20;
    const uint64_t exponent = random % 16;  // from 2^-8 to 2^7
    switch (dtype) {
      case DType::float32: bits = Bits((random >> 8 & 0x807fffff) | (119 + exponent) << 23); break;
      case DType::bfloat16: bits = Bits((random >> 8 & 0x807f) | (119 + exponent) << 7); break;
      default: bits = Bits((state & 0x800fffffffffffff) | (1015 + exponent) << 52); break;
    }
  }
  return all;
}

uint64_t hash_of(const void* data, size_t bytes) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  return hash;
}

template <class Bits>
void bits_of(const Group& group, DType dtype) {
  const size_t size = sizeof(Bits), n = size_t(group.size());
  std::set<size_t> counts;
  for (const size_t bytes : {size_t(48), size_t(64) << 10, size_t(128) << 10, size_t(512) << 10,
                             (size_t(512) << 10) / n / 64 * 64, (size_t(3) << 20) + 20 * size})
    for (const size_t more : {0, 1, 2}) counts.insert(bytes / size - 1 + more);
  for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN})
    for (const size_t count : counts)
      for (const bool window : {false, true}) {
        std::vector<Bits> mine = inputs<Bits>(dtype, group.rank(), count);
        const Shape shape{int64_t(count)};
        Tensor data = Tensor::borrow(mine.data(), shape, dtype);
        if (window) {
          data = group.empty(shape, dtype);
          std::memcpy(data.data(), mine.data(), count * size);
        }
        group.all_reduce(data, op);
        report("bits", group.rank(),
               std::string(name(dtype)) + " " + std::string(name(op)) + " " + std::to_string(count),
               std::to_string(hash_of(data.data(), count * size)));
      }
}

std::string bits(int threads) {
  const auto all_of = [](const Group& group) {
    bits_of<uint32_t>(group, DType::float32);
    bits_of<uint16_t>(group, DType::bfloat16);
    bits_of<uint64_t>(group, DType::float64);
  };
  if (!threads) {
    all_of(Group::from_environment());
    return "";
  }
  std::vector<std::thread> running;
  for (const Group& group : Group::in_process(threads)) running.emplace_back(all_of, group);
  for (std::thread& thread : running) thread.join();
  return "";
}

void save_checkpoint(const Group& group) {
  CollectiveAllReduceStrategy strategy(group);
  const auto scope = strategy.scope();
  const Variable weights =
      Variable::create(Tensor::full({1000}, 0.5, DType::float32), {.name = "weights"});
  Checkpoint("checkpoints", {weights}).save(1);
  report("saved", group.rank());
}

// All-reduces until the driver says "stop" to rank 0; "count" asks how many there were, and "save"
// for a checkpoint.
std::string loop() {
  const Group group = Group::from_environment();
  report("ready", group.rank());
  std::vector<int64_t> data(30'000);
  for (int64_t i = 0;; ++i) {
    constexpr int64_t kStop = 1, kSave = 2;
    int64_t request = 0;
    pollfd input{0, POLLIN, 0};
    if (group.rank() == 0 && poll(&input, 1, 0) > 0) {
      std::string line;
      std::getline(std::cin, line);
      if (line == "count") report("count", 0, std::to_string(i));
      if (line != "count") request = line == "save" ? kSave : kStop;
    }
    const size_t count = 2 + size_t(i * 7919) % (data.size() - 1);
    const std::span<int64_t> now(data.data(), count);
    for (size_t k = 0; k < count; ++k) now[k] = i + int64_t(k) + group.rank();
    now[0] = request;
    group.all_reduce(now, ReduceOp::SUM);
    for (size_t k = 1; k < count; ++k)
      require(now[k] == group.size() * (i + int64_t(k)) + sum_of_ranks(group), "a wrong sum");
    if (now[0] == kSave) save_checkpoint(group);
    if (now[0] == kStop) return std::to_string(i);
  }
}

// One rank computes longer than the others before every operation.
std::string slow(int rank) {
  const Group group = Group::from_environment();
  for (int i = 0; i < 20; ++i) {
    if (group.rank() == rank) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::vector<int> data(1000, group.rank());
    group.all_reduce(data, ReduceOp::SUM);
    require(data[0] == sum_of_ranks(group), "a wrong sum");
  }
  return "";
}

// The driver kills rank 1 once all have passed a check, and no rank waits for it. The others know
// all the same, and what they do next ends at once.
std::string health() {
  CollectiveAllReduceStrategy strategy;
  strategy.experimental_initialize();
  strategy.check_health();
  const int rank = strategy.extended().replica_ids()[0];
  report("checked", rank);
  while (rank == 1) pause();
  std::string told;
  while (told.empty()) try {
      strategy.check_health("worker", 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } catch (const UnavailableError& error) {
      told = error.what();
    }
  require(told.find("rank 1") != told.npos, "not named: " + told);
  strategy.check_health("worker", rank);
  try {
    const auto scope = strategy.scope();
    Variable::create(Tensor::scalar<float>(1));
    require(false, "a variable was made without rank 1");
  } catch (const UnavailableError& error) {
    require(std::string(error.what()).find("rank 1") != std::string::npos, error.what());
  }
  return told;
}

// Lines that are not flushed, before any job is joined; then a crash (1 to 3), or the end of stdin.
std::string print(int crash) {
  std::printf("printed\n");
  std::cout << "streamed\n"
            << "unfinished";
  if (crash == 1) std::abort();
  if (crash == 2) raise(SIGSEGV);
  if (crash == 3) _exit(7);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return "";
}

// Rank 1 ends as if all were well, before the last operation; the others fail (1: abort).
std::string leave_early(int how) {
  const Group group = Group::from_environment();
  group.barrier();
  if (group.rank() == 1) return "";
  std::vector<float> data(8, 1.f);
  try {
    group.all_reduce(data, ReduceOp::SUM);
  } catch (const Error&) {
    if (how == 1) std::abort();
    throw;
  }
  return "";
}

// Rank 1 never comes to what the others wait in.
std::string stuck() {
  const Group group = Group::from_environment();
  group.barrier();
  if (group.rank() == 1) pause();
  group.barrier();
  return "";
}

// Rank 1 ends the job while the others wait, by an exception that is not caught, or in another way.
std::string fail(int how) {
  if (how == 1)
    std::set_terminate([] {
      std::fputs("the program's own handler\n", stderr);
      _exit(9);
    });
  const Group group = Group::from_environment(), other = Group::from_environment();
  group.barrier();
  if (group.rank() == 1) {
    std::printf("unfinished");
    if (how == 2) flockfile(stdout);
    if (how == 3) std::thread([] { throw 42; }).join();
    if (how == 4) {
      group.abort("bad pixel in image 42");
      other.barrier();
    }
    std::thread([] { throw std::runtime_error("bad pixel in image 42"); }).join();
  }
  other.barrier();  // not the group that rank 1 was in last
  return "";
}

std::string run(const std::string& name, int argument) {
  if (name == "join") return join();
  if (name == "local") return local();
  if (name == "alone") return alone();
  if (name == "alternate") return alternate();
  if (name == "chain") return chain();
  if (name == "recreate") return recreate(argument);
  if (name == "outlive") return outlive();
  if (name == "bits") return bits(argument);
  if (name == "loop") return loop();
  if (name == "slow") return slow(argument);
  if (name == "health") return health();
  if (name == "print") return print(argument);
  if (name == "leave_early") return leave_early(argument);
  if (name == "stuck") return stuck();
  if (name == "fail") return fail(argument);
  throw std::runtime_error("there is no case " + name);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    report("ok", -1, argv[1], run(argv[1], argc > 2 ? std::stoi(argv[2]) : 0));
    return 0;
  } catch (const Error& error) {
    report("error", -1, error);
    return 3;
  } catch (const std::exception& wrong) {
    report("wrong", -1, "", wrong.what());
    return 4;
  }
}
