// SPDX-License-Identifier: Apache-2.0
// Ranks of a simulated job, for tests: what happens to a program if one of them is killed, stopped
// or cut off.
//
//   Simulation ranks = Group::simulated(4, {.hosts = 2});
//   auto outcomes = ranks.run([&](Group world) {
//     if (world.rank() == 2) ranks.kill(2);
//     std::vector<float> gradient(1000, 1);
//     world.all_reduce(gradient, ReduceOp::SUM);   // the others get an UnavailableError
//   });
//
// The ranks run the library's own code, on the calling thread, in an order and at times that depend
// on the seed alone. Waiting takes no time: a deadline of 30 s passes as soon as nothing else can
// happen. A program waits by its group only; a rank that waits for another by other means (a mutex,
// a thread of its own) never goes on.
#pragma once

#include <tutti/error.h>
#include <tutti/group.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

// The simulated machines and their network.
struct SimulationOptions {
  int hosts = 1;      // the first ranks are on the first, the next about as many on the second, ...
  uint64_t seed = 1;  // of everything random: the order of ranks, jitter
  // Of the network between hosts: how long a message takes besides its bytes, what it costs at each
  // end, how much longer it may take at random, and the bytes per second of a host.
  std::chrono::nanoseconds latency = std::chrono::microseconds(10);
  std::chrono::nanoseconds overhead = std::chrono::microseconds(1);
  std::chrono::nanoseconds jitter = {};
  double bandwidth = 12.5e9;
  // After this much silence a rank counts as lost.
  std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(10);
  // The coordination service runs in rank 0's process, rather than in the launcher's.
  bool chief_serves = false;
  bool traces = false;  // keeps what happens as text
};

// One simulated job, as the top of simulation.h says. For one thread at a time.
class Simulation {
 public:
  // How a rank ended.
  struct Outcome {
    bool killed = false;                 // by kill()
    bool stuck = false;                  // it stays suspended, or waits for what never comes
    std::optional<ErrorCode> code = {};  // of the error that its program threw
    std::string error = {};              // its text
    bool ok() const { return !killed && !stuck && !code; }  // its program returned
  };

  Simulation(int ranks, const SimulationOptions& options);
  ~Simulation();
  Simulation(Simulation&&) noexcept;

  int size() const;  // the number of ranks
  // Runs the program as all ranks, from joining the job to leaving it; by rank. Once. The group
  // holds all ranks; Group::from_environment() makes more.
  std::vector<Outcome> run(const std::function<void(Group)>& program);

  // Faults, also by the program itself. A rank that kills itself does not return.
  void kill(int rank);
  void kill_launcher();  // and with it the coordination service
  void suspend(int rank);
  void resume(int rank);
  // Nothing gets from one host to another, until it is mended.
  void cut(int from_host, int to_host);
  // Nothing gets to a host or from it.
  void cut_off(int host);
  void mend();  // all cuts; what was sent meanwhile arrives
  // All that a host sends and receives takes this many times as long.
  void slow_down(int host, double factor);

  // Later, counted from the beginning.
  void at(std::chrono::nanoseconds time, std::function<void()> action);
  std::chrono::nanoseconds now() const;  // since the beginning

  // The same for the same seed and program, on any machine.
  uint64_t trace_hash() const;
  const std::string& trace() const;  // empty without `traces`

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti

#pragma GCC visibility pop
