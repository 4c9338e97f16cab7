// SPDX-License-Identifier: Apache-2.0
// A simulated world: processes on hosts, a clock that jumps from event to event, and a network with
// a cost. Everything runs on one thread and in an order that depends on the seed alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/world.h"
#include "group/net/transport_parts.h"
#include "sim/fiber.h"

namespace tutti::sim {

using std::chrono::nanoseconds;

// What things cost; zero is free.
struct Costs {
  nanoseconds latency = std::chrono::microseconds(10);  // from host to host, without a load
  nanoseconds overhead = std::chrono::microseconds(1);  // of a message, at each end
  double bandwidth = 12.5;    // of a host, each way, in bytes per nanosecond
  double oversubscribed = 1;  // bandwidth of all hosts of a switch divided by that of its uplink
  int hosts_per_switch = 32;
  double sum = 0.05;  // nanoseconds per byte that is worked on
  double copy = 0;    // and per byte of a message, at each end, while it travels
  // If the hosts are on one machine: the bytes that its caches hold, 0 if all; and how much longer
  // a byte that they do not hold takes for each other host.
  double cache = 0;
  double contention = 0;
  nanoseconds wake_up = std::chrono::nanoseconds(200);  // of a thread, by one on its host
  nanoseconds jitter = {};                              // the most that a message may take longer
};

class World final : public base::World {
 public:
  struct Options {
    uint64_t seed = 1;
    Costs costs = {};
    bool moves_data = true;  // false: lengths alone
    bool traces = false;     // keeps the events as text
  };
  explicit World(const Options& options);
  ~World() { unwind(); }

  // Adds a process on a host. Host -1 is outside, and costs nothing to reach.
  int add_process(int host);
  int host_of(int process) const { return processes_[size_t(process)].host; }
  // Starts a thread of a process. An exception that it throws ends the process.
  void start(int process, std::function<void()> body);
  // Runs until is_done(), which is asked after each event, or until nothing can happen any more.
  void run(const std::function<bool()>& is_done);
  // Ends all threads that still wait by this exception. Nothing runs afterwards.
  struct Unwind {};
  void unwind();
  bool is_over() const { return unwinding_; }

  // Runs an action at a time, in no process.
  void at(Time time, std::function<void()> action);
  void after(nanoseconds time, std::function<void()> action) { at(now_ + time, std::move(action)); }

  // Faults. A process that is killed never runs again; one that is suspended runs when it is
  // resumed.
  void kill(int process);
  void suspend(int process);
  void resume(int process);
  // Called by a thread of the process, as its last act: the process has ended by itself.
  void end(int process);
  bool is_alive(int process) const { return processes_[size_t(process)].alive; }
  bool is_suspended(int process) const { return processes_[size_t(process)].suspended; }
  // Called when a process dies.
  void on_death(std::function<void(int process)> heard) { on_death_.push_back(std::move(heard)); }
  // Called when a message comes for a process that is dead.
  void on_refusal(std::function<void(int from, int to)> heard) { on_refusal_ = std::move(heard); }
  // Messages from one host to another wait while `is_cut` is true of them; see `release`.
  void on_route(std::function<bool(int from, int to)> is_cut) { is_cut_ = std::move(is_cut); }
  // Sends the messages that waited, if their route is not cut any more.
  void release();
  // Makes all messages of a host take this many times as long.
  void slow_down(int host, double factor) { slow_[host] = factor; }

  // Sends a message between processes. `arrive` runs when it arrives, unless the receiver is dead.
  // Messages from one process to another keep their order.
  void send(int from, int to, size_t bytes, std::function<void()> arrive);

  // The process whose thread runs; -1: none.
  int current() const { return current_ ? current_->process : -1; }
  Time start_time() const { return start_; }
  // Says how much data all ranks work on, some of which may not fit the caches.
  void set_working_set(double bytes);
  bool moves_data() const { return options_.moves_data; }
  uint64_t random(uint64_t below) { return random_() % below; }

  // Adds to what happened, which is kept as a hash and as text.
  void trace(const std::string& text);
  void remark(const std::string& text);  // to the text alone
  uint64_t hash() const { return hash_; }
  const std::string& trace() const { return trace_; }
  // The threads that still ran when their process ended.
  const std::vector<std::string>& leaks() const { return leaks_; }
  struct Traffic {
    uint64_t messages = 0, bytes = 0;
  };
  const Traffic& sent_by(int host) const { return traffic_[size_t(host)]; }

  // base::World
  Time now() override;
  void wait(const void* key, Time until, In place = In::function) override;
  void wake(const void* key) override;
  void spawn(std::function<void()> body) override { start(current(), std::move(body)); }
  const void* thread() override { return current_; }
  bool works_on(size_t bytes) override;
  void log(base::LogLevel level, const std::string& text) override;
  void*& job() override { return processes_[size_t(current())].job; }

 private:
  struct Thread {
    int process;
    std::unique_ptr<Fiber> fiber;
    uint64_t wait = 0;  // the number of its current wait
    const void* key = nullptr;
  };
  struct Event {
    Time at;
    uint64_t order;
    Thread* thread;  // wakes if it is still in this wait; null: an action
    uint64_t wait;
    std::function<void()>* action;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct Process {
    int host;
    void* job = nullptr;
    bool alive = true, suspended = false;
    Time busy_until = {};
    std::vector<Event> parked = {};  // events that came while it is suspended
  };
  struct Message {
    int from, to;
    size_t bytes;
    std::function<void()> arrive;
    nanoseconds takes = {};  // from its first byte to its last
  };
  struct Link {
    Time out = {}, in = {};  // when it is free again
  };

  void push(Time at, Thread* thread, std::function<void()>* action = nullptr);
  void run_thread(const Event& event);
  void note(uint64_t word);
  void forget(Thread& thread);
  void occupy(int process, nanoseconds time);
  // A message begins to leave its host.
  void pass_switches(Message& message, nanoseconds latency, nanoseconds on_wire);
  void set_out(Message& message, Time begins, nanoseconds latency);
  void reach(Message& message);
  void deliver(Message& message);
  Link& link_of(int host) { return links_[size_t(host)]; }
  Link& uplink_of(int host) { return uplinks_[size_t(host / options_.costs.hosts_per_switch)]; }

  const Options options_;
  double contention_ = 1;  // how many times as long a byte takes
  const Time start_;
  Time now_;
  std::mt19937_64 random_;
  Stacks stacks_;
  std::deque<Process> processes_;
  std::deque<Thread> threads_;
  std::vector<Event> events_;  // a heap
  uint64_t order_ = 0;
  std::unordered_map<const void*, std::vector<Thread*>> waiting_;
  Thread* current_ = nullptr;
  bool unwinding_ = false;
  std::deque<Link> links_, uplinks_;
  std::deque<Traffic> traffic_;
  std::unordered_map<int, double> slow_;
  std::unordered_map<uint64_t, Time> last_arrival_;  // by sender and receiver, with jitter
  group::Pool<std::function<void()>> actions_;
  group::Pool<Message> messages_;
  std::vector<Message> held_;
  std::vector<std::function<void(int)>> on_death_;
  std::function<void(int, int)> on_refusal_;
  std::function<bool(int, int)> is_cut_;
  uint64_t hash_;
  std::string trace_;
  std::vector<std::string> leaks_;
};

}  // namespace tutti::sim
