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

}  // namespace

World::World(const Options& options)
    : options_(options),
      // Far from zero, since code may compare with times that never were.
      start_(std::chrono::hours(24)),
      now_(start_),
      random_(options.seed),
      hash_(options.seed) {}

void World::unwind() {
  // What waits is told to end, one thread after the other, in a world where nothing else happens.
  const Entered entered(this);
  unwinding_ = true;
  // The last first: a thread waits for those that it has started.
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

void World::push(Time at, Thread* thread, std::function<void()> action) {
  events_.push_back({at, ++order_, thread, thread ? thread->wait : 0, std::move(action)});
  std::push_heap(events_.begin(), events_.end());
}

void World::at(Time time, std::function<void()> action) {
  push(std::max(time, now_), nullptr, std::move(action));
}

void World::run(const std::function<bool()>& is_done) {
  const Entered entered(this);
  while (!events_.empty() && !is_done()) {
    std::pop_heap(events_.begin(), events_.end());
    Event event = std::move(events_.back());
    events_.pop_back();
    if (event.thread && event.thread->wait != event.wait) continue;  // woken before
    now_ = std::max(now_, event.at);
    if (event.thread)
      run_thread(event);
    else
      event.action();
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
  if (unwinding_) now_ += std::chrono::milliseconds(1);  // so that no loop waits for ever
  return now_;
}

void World::forget(Thread& thread) {
  if (!thread.key) return;
  const auto found = waiting_.find(thread.key);
  if (std::erase(found->second, &thread); found->second.empty()) waiting_.erase(found);
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
  // A process that is busy does not get to this before it is done.
  const Time from =
      current_ ? std::max(now_, processes_[size_t(current_->process)].busy_until) : now_;
  const std::vector<Thread*> woken = std::move(found->second);
  waiting_.erase(found);
  for (Thread* const thread : woken) {
    thread->key = nullptr;
    ++thread->wait;  // its timeout is void
    push(current_ && current_->process != thread->process ? from + options_.costs.wake_up : from,
         thread);
  }
}

void World::occupy(int process, nanoseconds time) {
  Time& busy = processes_[size_t(process)].busy_until;
  busy = std::max(busy, now_) + time;
}

bool World::works_on(size_t bytes) {
  const nanoseconds time(int64_t(double(bytes) * options_.costs.sum));
  if (time.count() && current_) {
    occupy(current_->process, time);
    wait(nullptr, processes_[size_t(current_->process)].busy_until);
  }
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
  if (current() == process) wait(nullptr, Time::max());
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
  left_at_ = now_;
  if (a < 0 || b < 0) return at(now_, std::move(arrive));
  if (is_cut_ && a != b && is_cut_(a, b)) {
    held_.push_back({from, to, bytes, std::move(arrive)});
    return;
  }
  occupy(from, costs.overhead);
  const Time ready = processes_[size_t(from)].busy_until;
  const auto slowness = [&](int host) {
    const auto found = slow_.find(host);
    return found == slow_.end() ? 1.0 : found->second;
  };
  const double slow = slow_.empty() ? 1 : slowness(a) * slowness(b);
  const nanoseconds on_wire = times(slow, nanoseconds(int64_t(double(bytes) / costs.bandwidth)));
  nanoseconds latency = times(slow, costs.latency);
  if (costs.jitter.count()) latency += nanoseconds(int64_t(random(uint64_t(costs.jitter.count()))));
  Time begins = ready;
  if (a != b) {
    Traffic& traffic = traffic_[size_t(a)];
    ++traffic.messages;
    traffic.bytes += bytes;
    Link& link = link_of(a);
    begins = std::max(begins, link.out);
    link.out = begins + on_wire;
    left_at_ = link.out;
    if (costs.oversubscribed > 1 && &uplink_of(a) != &uplink_of(b)) {
      // The switch passes a message on while it comes in.
      const nanoseconds through = times(costs.oversubscribed / costs.hosts_per_switch, on_wire);
      for (Time* const free : {&uplink_of(a).out, &uplink_of(b).in}) {
        begins = std::max(begins, *free);
        *free = begins + through;
      }
    }
  }
  Time there = begins + latency;
  if (costs.jitter.count()) {
    Time& last = last_arrival_[uint64_t(from) << 32 | uint64_t(to)];
    there = last = std::max(there, last + nanoseconds(1));
  }
  at(there, [this, from, to, bytes, action = std::move(arrive)]() mutable {
    this->arrive(from, to, bytes, std::move(action));
  });
}

// The first byte is at the receiving host. Messages that come from several hosts at once queue up.
void World::arrive(int from, int to, size_t bytes, std::function<void()> action) {
  Process& receiver = processes_[size_t(to)];
  if (!receiver.alive) return;
  Time whole = now_;
  if (host_of(from) != host_of(to)) {
    Link& link = link_of(host_of(to));
    whole = link.in =
        std::max(now_, link.in) + nanoseconds(int64_t(double(bytes) / options_.costs.bandwidth));
  }
  at(whole, [this, to, action = std::move(action)] {
    Process& process = processes_[size_t(to)];
    if (!process.alive) return;
    note(uint64_t(to));
    occupy(to, options_.costs.overhead);
    action();
  });
}

void World::release() {
  for (Held& message : std::exchange(held_, {}))
    send(message.from, message.to, message.bytes, std::move(message.arrive));
}

void World::note(uint64_t word) { hash_ = base::mixed(hash_, word); }

void World::trace(const std::string& text) {
  for (const char c : text) note(uint64_t(uint8_t(c)));
  if (options_.traces)
    trace_ += fmt::format("{:12.3f} ms  {}\n", double((now_ - start_).count()) / 1e6, text);
}

}  // namespace tutti::sim
