// SPDX-License-Identifier: Apache-2.0
#include "sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/hash.h"
#include "base/log.h"

namespace tutti::sim {

namespace {

// Makes this thread one of the world's, while the world runs on it.
class Entered {
 public:
  explicit Entered(base::World* world) : before_(std::exchange(base::detail::world, world)) {}
  ~Entered() { base::detail::world = before_; }
  Entered(const Entered&) = delete;

 private:
  base::World* const before_;
};

nanoseconds times(double factor, nanoseconds time) {
  return nanoseconds(int64_t(double(time.count()) * factor));
}

nanoseconds whole(double time) { return nanoseconds(int64_t(time)); }

}  // namespace

World::World(const Options& options)
    : options_(options),
      // Far from zero, since code may compare with times that were never set.
      start_(std::chrono::hours(24)),
      now_(start_),
      random_(options.seed),
      hash_(options.seed) {}

void World::unwind() {
  // Ends the threads that wait one after the other; nothing else happens in the world.
  const Entered entered(this);
  unwinding_ = true;
  // The last thread comes first, since a thread waits for those that it has started.
  for (auto thread = threads_.rbegin(); thread != threads_.rend(); ++thread) {
    current_ = &*thread;
    while (!thread->fiber->is_over()) thread->fiber->resume();
  }
  current_ = nullptr;
}

int World::add_process(int host) {
  processes_.push_back({host});
  for (; int(links_.size()) <= host; traffic_.emplace_back()) links_.emplace_back();
  while (host >= 0 && int(uplinks_.size()) <= host / options_.costs.hosts_per_switch)
    uplinks_.emplace_back();
  return int(processes_.size()) - 1;
}

void World::start(int process, std::function<void()> body) {
  if (unwinding_) return;
  Thread& thread = threads_.emplace_back();
  thread.process = process;
  thread.fiber = std::make_unique<Fiber>(stacks_, [this, &thread, body = std::move(body)] {
    try {
      if (!unwinding_) body();
    } catch (const Unwind&) {
    } catch (const std::exception& error) {
      trace(fmt::format("process {} ends by an exception: {}", thread.process, error.what()));
      kill(thread.process);
    }
  });
  push(now_, &thread);
}

void World::push(Time at, Thread* thread, std::function<void()>* action) {
  events_.push_back({at, ++order_, thread, thread ? thread->wait : 0, action});
  std::push_heap(events_.begin(), events_.end());
}

void World::at(Time time, std::function<void()> action) {
  push(std::max(time, now_), nullptr, actions_.make(std::move(action)));
}

void World::run(const std::function<bool()>& is_done) {
  const Entered entered(this);
  while (!events_.empty() && !is_done()) {
    std::pop_heap(events_.begin(), events_.end());
    const Event event = events_.back();
    events_.pop_back();
    if (event.thread && event.thread->wait != event.wait) continue;  // woken before
    now_ = std::max(now_, event.at);
    if (event.thread) {
      run_thread(event);
    } else {
      const std::function<void()> action = std::exchange(*event.action, nullptr);
      actions_.drop(event.action);
      action();
    }
  }
}

void World::run_thread(const Event& event) {
  Thread& thread = *event.thread;
  Process& process = processes_[size_t(thread.process)];
  if (!process.alive) return;
  if (process.suspended) {
    process.parked.push_back(event);
    return;
  }
  if (process.busy_until > now_) {
    push(process.busy_until, &thread);
    return;
  }
  forget(thread);
  ++thread.wait;
  note(uint64_t(thread.process) << 32 | uint64_t((now_ - start_).count()));
  current_ = &thread;
  thread.fiber->resume();
  current_ = nullptr;
}

World::Time World::now() {
  if (unwinding_) now_ += std::chrono::milliseconds(1);  // so that every loop with a deadline ends
  return now_;
}

void World::forget(Thread& thread) {
  if (!thread.key) return;
  std::erase(waiting_.find(thread.key)->second, &thread);
  thread.key = nullptr;
}

void World::wait(const void* key, Time until, In place) {
  const auto end_if_unwinding = [&] {
    if (unwinding_ && place == In::function && std::uncaught_exceptions() == 0) throw Unwind{};
  };
  end_if_unwinding();
  if (unwinding_) return;
  Thread& thread = *current_;
  if (key) {
    thread.key = key;
    waiting_[key].push_back(&thread);
  }
  if (until != Time::max()) push(std::max(until, now_), &thread);
  thread.fiber->pause();
  end_if_unwinding();
}

void World::wake(const void* key) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  // A process that is busy wakes others only when it is done.
  const Time from =
      current_ ? std::max(now_, processes_[size_t(current_->process)].busy_until) : now_;
  for (Thread* const thread : found->second) {
    thread->key = nullptr;
    ++thread->wait;  // its timeout is void
    push(current_ && current_->process != thread->process ? from + options_.costs.wake_up : from,
         thread);
  }
  found->second.clear();  // and kept: most keys are waited for again
}

void World::occupy(int process, nanoseconds time) {
  Time& busy = processes_[size_t(process)].busy_until;
  busy = std::max(busy, now_) + time;
}

void World::set_working_set(double bytes) {
  const Costs& costs = options_.costs;
  const double missed = costs.cache > 0 && bytes > costs.cache ? 1 - costs.cache / bytes : 0;
  contention_ = 1 + costs.contention * missed * double(traffic_.size() - 1);
}

bool World::works_on(size_t bytes) {
  // The thread goes on at once, but what others can see of it is delayed until the work is done.
  if (current_) occupy(current_->process, whole(double(bytes) * options_.costs.sum * contention_));
  return options_.moves_data;
}

void World::log(base::LogLevel, const std::string& text) {
  trace(fmt::format("process {} says: {}", current(), text));
}

void World::kill(int process) {
  Process& killed = processes_[size_t(process)];
  if (!killed.alive) return;
  killed.alive = false;
  trace(fmt::format("process {} dies", process));
  for (const auto& heard : on_death_) heard(process);
  // A thread that kills its own process does not return from this.
  if (current() == process) wait(&killed, Time::max());
}

void World::end(int process) {
  Process& ended = processes_[size_t(process)];
  if (!ended.alive) return;
  ended.alive = false;
  trace(fmt::format("process {} ends", process));
  int running = 0;
  for (const Thread& thread : threads_)
    running += thread.process == process && &thread != current_ && !thread.fiber->is_over();
  if (running)
    leaks_.push_back(fmt::format("process {} ends while {} of its threads run", process, running));
  for (const auto& heard : on_death_) heard(process);
}

void World::suspend(int process) {
  processes_[size_t(process)].suspended = true;
  trace(fmt::format("process {} is suspended", process));
  if (current() == process) wait(nullptr, now_);
}

void World::resume(int process) {
  Process& resumed = processes_[size_t(process)];
  resumed.suspended = false;
  trace(fmt::format("process {} is resumed", process));
  for (Event& event : std::exchange(resumed.parked, {}))
    if (event.thread->wait == event.wait) push(now_, event.thread);
}

void World::send(int from, int to, size_t bytes, std::function<void()> arrive) {
  const int a = host_of(from), b = host_of(to);
  const Costs& costs = options_.costs;
  if (a < 0 || b < 0) return at(now_, std::move(arrive));
  if (is_cut_ && a != b && is_cut_(a, b)) {
    held_.push_back({from, to, bytes, std::move(arrive)});
    return;
  }
  occupy(from, costs.overhead);
  const Time ready = processes_[size_t(from)].busy_until;
  const nanoseconds copying = whole(double(bytes) * costs.copy * contention_);
  occupy(from, copying);
  const auto slowness = [&](int host) {
    const auto found = slow_.find(host);
    return found == slow_.end() ? 1.0 : found->second;
  };
  const double slow = slow_.empty() ? 1 : slowness(a) * slowness(b);
  const nanoseconds on_wire =
      times(slow, std::max(copying, whole(double(bytes) / costs.bandwidth)));
  nanoseconds latency = times(slow, costs.latency);
  if (costs.jitter.count()) latency += nanoseconds(int64_t(random(uint64_t(costs.jitter.count()))));
  Message* const message = messages_.make({from, to, bytes, std::move(arrive), {}});
  if (a == b) return set_out(*message, ready, latency);
  Traffic& traffic = traffic_[size_t(a)];
  ++traffic.messages;
  traffic.bytes += bytes;
  message->takes = on_wire;
  Time& out = link_of(a).out;
  const Time begins = std::max(ready, out);
  out = begins + on_wire;
  if (costs.oversubscribed <= 1 || &uplink_of(a) == &uplink_of(b))
    return set_out(*message, begins, latency);
  // Hosts use the uplinks that they share in the order in which their messages get there.
  at(begins, [this, message, latency, on_wire] { pass_switches(*message, latency, on_wire); });
}

void World::pass_switches(Message& message, nanoseconds latency, nanoseconds on_wire) {
  const Costs& costs = options_.costs;
  const nanoseconds through = times(costs.oversubscribed / costs.hosts_per_switch, on_wire);
  Time begins = now_;
  // A switch passes a message on while it comes in, and waits until the next link is free.
  for (Time* free : {&uplink_of(host_of(message.from)).out, &uplink_of(host_of(message.to)).in}) {
    begins = std::max(begins, *free);
    *free = begins + through;
  }
  message.takes = std::max(message.takes, through);
  set_out(message, begins, latency);
}

void World::set_out(Message& message, Time begins, nanoseconds latency) {
  Time there = begins + latency;
  if (options_.costs.jitter.count()) {
    Time& last = last_arrival_[uint64_t(message.from) << 32 | uint64_t(message.to)];
    there = std::max(there, last);
    last = there + std::max(message.takes, nanoseconds(1));
  }
  at(there, [this, &message] { reach(message); });
}

// The first byte is at the receiving host. Messages that come from several hosts at once queue up.
void World::reach(Message& message) {
  Time there = now_ + message.takes;
  if (host_of(message.from) != host_of(message.to)) {
    Time& free = link_of(host_of(message.to)).in;
    free = std::max(now_, free) + whole(double(message.bytes) / options_.costs.bandwidth);
    there = std::max(there, free);
  }
  at(there, [this, &message] { deliver(message); });
}

void World::deliver(Message& message) {
  const Message arrived = std::exchange(message, {});
  messages_.drop(&message);
  Process& receiver = processes_[size_t(arrived.to)];
  if (!receiver.alive) {
    if (on_refusal_) on_refusal_(arrived.from, arrived.to);
    return;
  }
  note(uint64_t(arrived.to));
  // A receiver that is not busy has copied the message while it came in.
  const nanoseconds copying = whole(double(arrived.bytes) * options_.costs.copy * contention_);
  receiver.busy_until =
      std::max(receiver.busy_until, now_ - copying) + copying + options_.costs.overhead;
  arrived.arrive();
}

void World::release() {
  for (Message& message : std::exchange(held_, {}))
    send(message.from, message.to, message.bytes, std::move(message.arrive));
}

void World::note(uint64_t word) { hash_ = base::mixed(hash_, word); }

void World::trace(const std::string& text) {
  for (const char c : text) note(uint64_t(uint8_t(c)));
  remark(text);
}

void World::remark(const std::string& text) {
  if (options_.traces)
    trace_ += fmt::format("{:12.3f} ms  {}\n", double((now_ - start_).count()) / 1e6, text);
}

}  // namespace tutti::sim
