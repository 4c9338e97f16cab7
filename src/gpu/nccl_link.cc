// SPDX-License-Identifier: Apache-2.0
#include "gpu/nccl_link.h"

#include <fmt/format.h>
#include <tutti/error.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/module.h"
#include "base/settings.h"
#include "device/failure.h"
#include "group/liveness/deadline.h"
#include "group/liveness/timing.h"

namespace tutti::group {

namespace {

using Clock = std::chrono::steady_clock;

struct Loaded {
  const NcclModule* module = nullptr;
  std::string why_none;
};

const NcclModule* stand_in = nullptr;

const Loaded& loaded() {
  static const Loaded* const result = [] {
    auto* const found = new Loaded{stand_in, {}};
    if (found->module) return found;
    // NCCL reads these when it is loaded. Memory of a pool is not open to other GPUs.
    setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);
    if (const std::string& interfaces = base::settings().interfaces; !interfaces.empty())
      setenv("NCCL_SOCKET_IFNAME", interfaces.c_str(), 0);
    try {
      found->module = static_cast<const NcclModule*>(base::load_module("nccl").interface);
    } catch (const UnavailableError& error) {
      found->why_none = error.what();
    }
    return found;
  }();
  return *result;
}

std::string described(const Enqueued& operation) {
  return described(operation.what, operation.number);
}

}  // namespace

const NcclModule* nccl_module() { return loaded().module; }
const std::string& why_no_nccl() { return loaded().why_none; }
void set_nccl_module(const NcclModule& module) { stand_in = &module; }

void expect_nccl_if_required() {
  if (base::settings().backend != "nccl") return;
  const std::string why = !device::cuda_module()
                              ? "this process has no GPU: " + device::why_no_gpus()
                          : !nccl_module() ? why_no_nccl()
                                           : "";
  if (!why.empty())
    throw UnavailableError(fmt::format(
        "TUTTI_BACKEND=nccl: {}; unset TUTTI_BACKEND to move data in host memory", why));
}

const GpuSupport& gpu_support() {
  static const GpuSupport* const all = [] {
    const device::CudaModule* const cuda = device::cuda_module();
    if (!cuda) throw InternalError("group: there are no GPUs: " + device::why_no_gpus());
    return new GpuSupport{cuda->runtime(), kernels::gpu_kernels(), device::current_stream,
                          nccl_module, why_no_nccl};
  }();
  return *all;
}

StillWanted still_wanted(const Enqueued& operation, NcclLink::Others* others) {
  // Shared: a launch may ask on one thread for each GPU.
  return [operation, others, began = Clock::now(),
          looked = std::make_shared<std::atomic<Clock::time_point>>()] {
    const auto now = Clock::now();
    if (now - looked->load() < timing::kPoll) return;
    looked->store(now);
    if (others) others->check(described(operation));
    const auto timeout = operation.timeouts.timeout;
    if (timeout.count() && now - began >= timeout)
      throw DeadlineExceededError(
          fmt::format("{}: waited {} for NCCL to connect the ranks; all of them have called it",
                      described(operation), seconds(timeout)));
  };
}

void await_reason(const StillWanted& check) {
  for (const auto until = Clock::now() + timing::kNcclReason; Clock::now() < until;
       std::this_thread::sleep_for(timing::kGpuPoll))
    check();
}

// What the link and its watch share.
struct NcclLink::State {
  State(const GpuSupport& g, NcclCommunicators c, std::vector<int> on, std::unique_ptr<Others> o)
      : support(g), communicators(std::move(c)), gpus(std::move(on)), others(std::move(o)) {}
  ~State();

  struct UnderWay {
    Enqueued operation;
    std::vector<device::Event> begins, ends;           // one for each GPU
    Deadline deadline = Deadline(operation.timeouts);  // from when it is the first under way
  };
  using Failure = std::pair<ErrorCode, std::string>;

  const GpuSupport& support;
  // Guards the communicators: all their calls are made under this mutex.
  std::mutex launching;
  NcclCommunicators communicators;
  const std::vector<int> gpus;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<UnderWay> under_way;
  std::optional<Failure> failure;
  std::unique_ptr<Others> others;  // none any more once the link is gone
  bool closing = false;
  bool aborted = false;
  std::optional<Clock::time_point> ending;  // the process, as far as the watch has seen

  std::vector<device::Event> record() {
    std::vector<device::Event> events;
    for (const int gpu : gpus)
      events.push_back(support.runtime.record(gpu, support.current_stream(gpu)));
    return events;
  }
  void release(const std::vector<device::Event>& events) noexcept {
    for (const device::Event event : events) support.runtime.release(event);
  }
  bool passed(const std::vector<device::Event>& events) {
    return std::ranges::all_of(
        events, [&](const device::Event event) { return support.runtime.reached(event); });
  }
  void throw_failure() {
    std::unique_lock lock(mutex);
    if (!failure) return;
    const Failure copy = *failure;
    lock.unlock();
    throw_error(copy.first, copy.second);
  }

  void run();
  void look();
  void look_at_time(UnderWay& first);
  void fail(ErrorCode code, std::string text);
  void await_reason(const std::string& during);
  [[noreturn]] void explain(const Error& error, const std::string& during);
  void abort() noexcept;
  void close_communicators() noexcept;
};

// The threads that watch. At exit they are joined before CUDA, and what was made before them, is
// taken down; a link may outlive its thread then.
class NcclLink::Watches {
 public:
  static Watches& instance() {
    static auto* const watches = [] {
      std::atexit([] { instance().finish(); });
      return new Watches;
    }();
    return *watches;
  }

  void add(const std::shared_ptr<State>& state) {
    std::lock_guard lock(mutex_);
    threads_.remove_if([](Watch& watch) {
      if (watch.state.expired() && watch.process == getpid()) watch.thread.join();
      return !watch.thread.joinable();
    });
    threads_.push_back({std::thread([state] { state->run(); }), state, getpid()});
  }

  std::atomic<bool> ending = false, finished = false;  // of the process

 private:
  struct Watch {
    std::thread thread;
    std::weak_ptr<State> state;  // expired once the link is gone and the thread is done
    pid_t process;               // a forked child has none of its parent's threads
  };

  void finish() {
    ending = true;
    std::lock_guard lock(mutex_);
    for (Watch& watch : threads_) {
      if (watch.process != getpid()) continue;
      if (const std::shared_ptr<State> state = watch.state.lock()) {
        {
          std::lock_guard seen(state->mutex);
        }  // the thread waits, or sees `ending`
        state->changed.notify_all();
      }
      watch.thread.join();
    }
    finished = true;
  }

  std::mutex mutex_;
  std::list<Watch> threads_;
};

NcclLink::State::~State() {
  if (!Watches::instance().finished) return;
  // CUDA may be gone already.
  for (auto& communicator : communicators) communicator.release();
}

// Tells all ranks; the watching thread does the rest.
void NcclLink::State::fail(ErrorCode code, std::string text) {
  std::lock_guard lock(mutex);
  if (failure) return;
  if (others) {
    others->fail(code, text);
    try {
      others->check(text);  // another rank's may have been first, and counts for all
    } catch (const Error& error) {
      code = error.code();
      text = error.what();
    }
  }
  // Before the GPU goes on: a thread that waits for it must find the error.
  if (!under_way.empty())
    for (const int gpu : gpus) device::fail(gpu, code, text);
  failure = {code, text};
  changed.notify_one();
}

// Throws what the others say of an error of NCCL's, if they do.
void NcclLink::State::await_reason(const std::string& during) {
  group::await_reason([&] {
    std::lock_guard lock(mutex);
    if (others) others->check(during);
  });
}

// An error of a launch, as all ranks get it.
void NcclLink::State::explain(const Error& error, const std::string& during) {
  ErrorCode code = error.code();
  std::string text = error.what();
  try {
    throw_failure();
    if (code == ErrorCode::unavailable) await_reason(during);
  } catch (const Error& reason) {
    code = reason.code();
    text = reason.what();
  }
  fail(code, text);
  throw_failure();
  throw_error(code, text);
}

void NcclLink::State::abort() noexcept {
  std::lock_guard exclusive(launching);
  for (const auto& communicator : communicators) communicator->abort();
  std::lock_guard lock(mutex);
  for (const UnderWay& each : under_way) {
    release(each.begins);
    release(each.ends);
  }
  under_way.clear();
}

void NcclLink::State::look_at_time(UnderWay& first) {
  Deadline& deadline = first.deadline;
  deadline.start();
  const Deadline::Due due = deadline.due();
  const std::string me = others ? others->me() : "this process";
  const auto late = [&] { return !passed(first.begins); };
  if (due == Deadline::Due::warning) {
    deadline.has_warned();
    base::log(
        base::LogLevel::warning,
        fmt::format("{}: has waited {} on the GPU of {}{}", described(first.operation),
                    seconds(deadline.waited()), me, late() ? ", which has not come to it" : ""));
  }
  if (Watches::instance().ending) {
    if (!ending) ending = Clock::now();
    if (Clock::now() - *ending > timing::kGpuShutdown)
      throw CancelledError(fmt::format("{}: the process ends", described(first.operation)));
  }
  if (due != Deadline::Due::expiry) return;
  if (late())
    throw DeadlineExceededError(
        fmt::format("{}: waited {} for {}: its GPU is not done with what was enqueued before",
                    described(first.operation), seconds(deadline.timeout()), me));
  // A rank whose own GPU is late fails first, since it knows which rank to name.
  if (deadline.due(timing::kSlackBehindAnother) == Deadline::Due::expiry)
    throw DeadlineExceededError(fmt::format(
        "{}: waited {} on the GPU of {}; all ranks have enqueued it, and none says that it is late",
        described(first.operation), seconds(deadline.timeout()), me));
}

// Throws what has gone wrong.
void NcclLink::State::look() {
  std::string during;
  {
    std::lock_guard lock(mutex);
    UnderWay& first = under_way.front();
    during = described(first.operation);
    if (others) others->check(during);
    look_at_time(first);
  }
  std::string error;
  if (std::unique_lock exclusive(launching, std::try_to_lock); exclusive)
    for (const auto& communicator : communicators)
      if (error.empty()) error = communicator->async_error();
  if (error.empty()) return;
  await_reason(during);
  throw UnavailableError(fmt::format("{}: {}", during, error));
}

void NcclLink::State::run() {
  Clock::time_point looked{};
  std::unique_lock lock(mutex);
  while (true) {
    if (failure && !aborted) {
      lock.unlock();
      abort();
      lock.lock();
      aborted = true;
      continue;
    }
    if (under_way.empty()) {
      if (closing || Watches::instance().ending) break;
      changed.wait(lock);
      continue;
    }
    // Only this thread takes any away, and a deque keeps the others in place.
    UnderWay& first = under_way.front();
    lock.unlock();
    try {
      if (passed(first.ends)) {
        release(first.begins);
        release(first.ends);
        lock.lock();
        under_way.pop_front();
        continue;
      }
      if (const auto now = Clock::now(); now - looked >= timing::kPoll) {
        looked = now;
        look();
      }
    } catch (const Error& error) {
      fail(error.code(), error.what());
    } catch (const std::exception& error) {
      fail(ErrorCode::internal, error.what());
    }
    lock.lock();
    if (!failure || aborted) changed.wait_for(lock, timing::kGpuPoll);
  }
  const bool left = closing;
  lock.unlock();
  if (left) close_communicators();
}

void NcclLink::State::close_communicators() noexcept {
  if (failure) return;
  support.nccl()->close(std::move(communicators), [until = Clock::now() + timing::kGpuShutdown] {
    if (Clock::now() > until) throw DeadlineExceededError("closing took too long");
  });
}

NcclLink::NcclLink(const GpuSupport& support, NcclCommunicators communicators,
                   std::vector<int> gpus, std::unique_ptr<Others> others)
    : state_(std::make_shared<State>(support, std::move(communicators), std::move(gpus),
                                     std::move(others))) {
  Watches::instance().add(state_);
}

NcclLink::~NcclLink() {
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->others.reset();
  }
  state_->changed.notify_all();
}

NcclCommunicator& NcclLink::communicator(size_t i) { return *state_->communicators[i]; }

void NcclLink::launch(const Enqueued& operation, const std::function<void()>& calls) {
  State& state = *state_;
  state.throw_failure();
  // Outside of `launching`: it may wait for room on a stream that only an abort sets free.
  State::UnderWay next{.operation = operation, .begins = state.record(), .ends = {}};
  const auto still = [&, wait = still_wanted(operation, state.others.get())] {
    state.throw_failure();
    wait();
  };
  try {
    std::lock_guard exclusive(state.launching);
    state.throw_failure();  // after which there is no communicator
    state.support.nccl()->launch(state.communicators, calls, still);
  } catch (const Error& error) {
    state.release(next.begins);
    state.explain(error, described(operation));
  }
  try {
    next.ends = state.record();
  } catch (const Error& error) {
    state.release(next.begins);
    state.explain(error, described(operation));
  }
  {
    std::lock_guard lock(state.mutex);
    if (!state.failure) {
      state.under_way.push_back(std::move(next));
      state.changed.notify_one();
      return;
    }
  }
  state.release(next.begins);  // it was aborted meanwhile
  state.release(next.ends);
  state.throw_failure();
}

}  // namespace tutti::group
