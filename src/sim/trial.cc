// SPDX-License-Identifier: Apache-2.0
#include "sim/trial.h"

#include <fmt/format.h>
#include <tutti/group.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "base/hash.h"
#include "base/world.h"
#include "kernels/cast.h"
#include "kernels/reduce.h"
#include "sim/job.h"

namespace tutti::sim {

namespace {

using Kind = Operation::Kind;
using On = Operation::On;

constexpr const char* kHost = "CPU:0";
constexpr unsigned char kUntouched = 0x5a;

// Elements whose sums are inexact if they are floats.
const std::vector<std::byte>& elements_of(DType dtype) {
  constexpr size_t kElements = 4096;
  static std::array<std::vector<std::byte>, detail::kDTypes.size()> pools;
  std::vector<std::byte>& pool = pools[size_t(dtype)];
  if (!pool.empty()) return pool;
  pool.resize(kElements * size_of(dtype));
  std::mt19937_64 random(uint64_t(dtype) + 1);
  kernels::with_type(dtype, [&]<class T>(T*) {
    for (size_t i = 0; i < kElements; ++i) {
      const uint64_t bits = random();
      T value{};
      if constexpr (std::is_same_v<T, bool>)
        value = bits & 1;
      else if constexpr (std::is_integral_v<T>)
        value = T(bits);
      else
        value = T(float((double(bits >> 11) / double(1ull << 53) - 0.5) * 4));
      std::memcpy(pool.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return pool;
}

// Fills memory with elements of the pool, from a place that depends on `key`.
void fill(DType dtype, void* data, int64_t count, uint64_t key) {
  const std::vector<std::byte>& pool = elements_of(dtype);
  const size_t size = size_of(dtype), elements = pool.size() / size;
  auto* to = static_cast<std::byte*>(data);
  for (size_t left = size_t(count); left > 0; ++key) {
    const size_t at = base::mixed(key, 77) % elements, now = std::min(left, elements - at);
    std::memcpy(to, pool.data() + at * size, now * size);
    to += now * size;
    left -= now;
  }
}

// One tensor of an operation.
struct Part {
  DType dtype;
  int64_t count;
};

std::vector<Part> parts_of(const Operation& operation) {
  std::vector<Part> parts{{operation.dtype, operation.count}};
  if (operation.kind == Kind::all_reduce_list) {
    parts.push_back({DType::float32, operation.count / 3 + 1});
    parts.push_back({DType::bfloat16, 5});
  }
  return parts;
}

int64_t uneven_count(const Operation& operation, int rank) {
  return operation.count * (rank % 3) / 2 + rank % 5;
}

uint64_t key_of(const Schedule& schedule, size_t operation, int rank, size_t part) {
  return base::mixed(base::mixed(schedule.seed, operation), uint64_t(rank) << 8 | part);
}

// Elements that a rank gives to an operation of n ranks.
int64_t given(const Operation& operation, int n, int rank) {
  switch (operation.kind) {
    case Kind::reduce_scatter:
    case Kind::all_to_all:
    case Kind::scatter: return operation.count * n;
    case Kind::all_gather_uneven: return uneven_count(operation, rank);
    default: return operation.count;
  }
}

int64_t got(const Operation& operation, int n) {
  switch (operation.kind) {
    case Kind::all_gather:
    case Kind::all_to_all:
    case Kind::gather: return operation.count * n;
    default: return operation.count;
  }
}

uint64_t checksum(const void* data, size_t bytes, uint64_t before) {
  return base::checksum({static_cast<const std::byte*>(data), bytes}, before);
}

// The peers of a message, by rank of the group.
std::pair<int, int> ends_of(const Operation& operation, int n) {
  const int from = operation.root % n, to = operation.peer % n;
  return {from, to == from ? (from + 1) % n : to};
}

class Player {
 public:
  Player(const Schedule& schedule, bool traces)
      : job_({.hosts = schedule.hosts,
              .world = {.seed = schedule.seed,
                        .costs = {.jitter = schedule.jitter},
                        .traces = traces},
              .heartbeat_timeout = schedule.heartbeat_timeout,
              .chief_serves = schedule.chief_serves}),
        world_(job_.world()) {
    trial_.schedule = schedule;
    trial_.ranks.resize(size_t(schedule.size()));
    trial_.injected.resize(schedule.faults.size());
  }

  Trial play() {
    for (int rank = 0; rank < job_.size(); ++rank) start(rank);
    for (size_t f = 0; f < faults().size(); ++f)
      if (const Fault& fault = faults()[f]; fault.operation < 0 && is_of_the_world(fault))
        later(fault.after, [this, f] { inject(f); });
    world_.run([this] { return is_over() || now() > kLongestTrial; });
    trial_.time = now();
    trial_.hash = world_.hash();
    for (int rank = 0; rank < job_.size(); ++rank) {
      Story& story = trial_.ranks[size_t(rank)];
      const int process = job_.process_of(rank);
      if (story.ending != Story::Ending::none) continue;
      if (!story.started)
        story.ending = Story::Ending::absent;
      else if (!world_.is_alive(process))
        story.ending = Story::Ending::killed;
      else if (world_.is_suspended(process))
        story.ending = Story::Ending::suspended;
    }
    job_.find_leaks(trial_.leaks);
    trial_.violations = judge(trial_);
    trial_.trace = world_.trace();
    return trial_;  // a copy: threads that still wait go on with the player's
  }

 private:
  struct Buffers {
    std::vector<Tensor> in, out;
  };
  struct Pending {
    size_t call;
    Work work;
    Buffers buffers;
  };
  // One rank's groups, and what it has under way.
  struct Groups {
    std::optional<Group> world, part, duplicate;
    std::vector<Pending> pending;
  };

  const Schedule& schedule() const { return trial_.schedule; }
  const std::vector<Fault>& faults() const { return schedule().faults; }
  size_t length() const { return schedule().operations.size(); }
  nanoseconds now() { return world_.now() - world_.start_time(); }
  void later(nanoseconds time, std::function<void()> action) {
    ++planned_;
    world_.after(time, [this, action = std::move(action)] {
      --planned_;
      action();
    });
  }
  void say(const std::string& text) { world_.remark(text); }

  bool is_over() {
    for (int rank = 0; rank < job_.size(); ++rank) {
      const Story& story = trial_.ranks[size_t(rank)];
      const int process = job_.process_of(rank);
      if (!story.started) {
        if (planned_ > 0) return false;
      } else if (story.ending == Story::Ending::none && world_.is_alive(process) &&
                 !(planned_ == 0 && world_.is_suspended(process))) {
        return false;
      }
    }
    return true;
  }

  // Whether the fault comes from outside of the ranks' programs.
  static bool is_of_the_world(const Fault& fault) {
    switch (fault.kind) {
      case Fault::Kind::late:
      case Fault::Kind::absent:
      case Fault::Kind::mismatch:
      case Fault::Kind::skip:
      case Fault::Kind::leave:
      case Fault::Kind::abort:
      case Fault::Kind::compute: return false;
      default: return true;
    }
  }

  void start(int rank) {
    nanoseconds after{};
    for (size_t f = 0; f < faults().size(); ++f) {
      const Fault& fault = faults()[f];
      if (fault.rank != rank) continue;
      if (fault.kind == Fault::Kind::late || fault.kind == Fault::Kind::absent)
        trial_.injected[f] = nanoseconds{};
      if (fault.kind == Fault::Kind::late) after = fault.after;
      if (fault.kind == Fault::Kind::absent) return;
    }
    const auto begin = [this, rank] {
      if (!world_.is_alive(job_.process_of(rank))) return;
      Story& story = trial_.ranks[size_t(rank)];
      story.started = now();
      job_.start(
          rank, [this, rank] { run_program(rank); },
          [this, rank, &story](const std::exception* error) {
            story.ended = now();
            story.ending = Story::Ending::left;
            if (!error) return say(fmt::format("rank {} has ended", rank));
            const auto* const own = dynamic_cast<const Error*>(error);
            story.code = own ? own->code() : ErrorCode::internal;
            story.error = error->what();
            say(fmt::format("rank {} has ended with an error: {}", rank, story.error));
          });
    };
    after.count() ? later(after, begin) : begin();
  }

  void inject(size_t number) {
    const Fault& fault = faults()[number];
    const int process = job_.process_of(fault.rank);
    const auto mend_later = [&](std::function<void()> mend) {
      if (fault.lasts != nanoseconds::max()) later(fault.lasts, std::move(mend));
    };
    const auto cut = [&](bool out, bool in) {
      for (int host = 0; host < schedule().num_hosts(); ++host) {
        if (host == fault.host) continue;
        if (out) job_.cut(fault.host, host);
        if (in) job_.cut(host, fault.host);
      }
      mend_later([this] {
        say("the network is mended");
        job_.mend();
      });
    };
    using enum Fault::Kind;
    const bool is_of_a_rank = fault.kind == kill || fault.kind == suspend;
    const bool has_ended = trial_.ranks[size_t(fault.rank)].ending == Story::Ending::left;
    if (is_of_a_rank && (has_ended || !world_.is_alive(process))) return;
    trial_.injected[number] = now();
    say(fmt::format("fault: {}", fault.to_string()));
    switch (fault.kind) {
      case kill: return world_.kill(process);
      case kill_service:
        return world_.kill(job_.launcher() < 0 ? job_.process_of(0) : job_.launcher());
      case suspend:
        world_.suspend(process);
        return mend_later([this, process] { world_.resume(process); });
      case suspend_service:
        world_.suspend(job_.launcher());
        return mend_later([this] { world_.resume(job_.launcher()); });
      case suspend_all: {
        const int all = job_.size() + (job_.launcher() < 0 ? 0 : 1);
        for (int p = 0; p < all; ++p) world_.suspend(p);
        return mend_later([this, all] {
          for (int p = 0; p < all; ++p) world_.resume(p);
        });
      }
      case cut_off: return cut(true, true);
      case mute: return cut(true, false);
      case deafen: return cut(false, true);
      case part:
        job_.cut(fault.host, fault.other);
        job_.cut(fault.other, fault.host);
        return mend_later([this] { job_.mend(); });
      case slow: return world_.slow_down(fault.host, fault.factor);
      case late:
      case absent:
      case mismatch:
      case skip:
      case leave:
      case abort:
      case compute: return;
    }
  }

  // Called when a rank has come to an operation: starts the faults that this triggers.
  void reach(int rank, size_t operation) {
    for (size_t f = 0; f < faults().size(); ++f) {
      const Fault& fault = faults()[f];
      if (fault.trigger == rank && fault.operation == int(operation) && is_of_the_world(fault))
        later(fault.after, [this, f] { inject(f); });
    }
  }

  void run_program(int rank) {
    Story& story = trial_.ranks[size_t(rank)];
    Groups groups;
    groups.world = Group::from_environment();
    story.joined = now();
    try {
      for (size_t k = 0; k < length(); ++k)
        if (!step(rank, k, groups)) break;
      while (!groups.pending.empty()) wait_for_first(rank, groups);
    } catch (const Error&) {
      settle(rank, groups);
      try_again(rank, groups);
      story.done = now();
      throw;
    }
    story.done = now();
    reach(rank, length());
    say(fmt::format("rank {} is done", rank));
  }

  Group& group_of(const Operation& operation, Groups& groups) {
    if (operation.on == On::part) return *groups.part;
    return operation.on == On::duplicate ? *groups.duplicate : *groups.world;
  }

  // False if the rank's program ends here.
  bool step(int rank, size_t k, Groups& groups) {
    const Operation& planned = schedule().operations[k];
    Operation operation = planned;
    const uint64_t draw = base::mixed(schedule().seed + k, uint64_t(rank) + 1);
    reach(rank, k);
    if (operation.pause.count())
      base::sleep_for(nanoseconds(int64_t(draw % uint64_t(operation.pause.count()))));
    bool skips = false;
    for (size_t f = 0; f < faults().size(); ++f) {
      const Fault& fault = faults()[f];
      if (fault.rank != rank || fault.operation != int(k) || is_of_the_world(fault)) continue;
      if (fault.kind == Fault::Kind::late) continue;
      trial_.injected[f] = now();
      say(fmt::format("fault: {}", fault.to_string()));
      switch (fault.kind) {
        case Fault::Kind::mismatch: operation = fault.instead; break;
        case Fault::Kind::skip: skips = true; break;
        case Fault::Kind::leave:
          for (const Pending& pending : groups.pending)
            trial_.ranks[size_t(rank)].calls[pending.call].is_dropped = true;
          groups.pending.clear();
          return false;
        case Fault::Kind::abort: groups.world->abort("bad pixel in image 42"); break;
        case Fault::Kind::compute: base::sleep_for(fault.after); break;
        default: break;
      }
    }
    if (skips) return true;
    Story& story = trial_.ranks[size_t(rank)];
    const size_t number = story.calls.size();
    story.calls.push_back({.operation = k, .began = now()});
    say(fmt::format("rank {} calls #{}", rank, k));
    Group& group = group_of(operation, groups);
    try {
      Buffers buffers;
      Work work = this->call(operation, k, rank, group, groups, buffers);
      if (operation.in_background) {
        groups.pending.push_back({number, work, buffers});
        if (draw & 1) wait_for_first(rank, groups);
      } else {
        finish(rank, number, buffers);
      }
    } catch (const Error& error) {
      // The error may be that of an earlier operation in the background.
      Call& call = story.calls[number];
      const bool is_first =
          std::ranges::none_of(story.calls, [](const Call& other) { return bool(other.code); });
      if (!is_pending(number, groups) && !call.is_over) {
        call.is_dropped = !is_first;
        if (is_first) fail(rank, call, error);
      }
      throw;
    }
    return true;
  }

  void finish(int rank, size_t number, const Buffers& buffers) {
    Call& call = trial_.ranks[size_t(rank)].calls[number];
    call.ended = now();
    call.is_over = true;
    for (const Tensor& tensor : buffers.out)
      call.result = checksum(tensor.const_data(), tensor.num_bytes(), call.result);
    say(fmt::format("rank {} has done #{}", rank, call.operation));
  }

  void fail(int rank, Call& call, const Error& error) {
    call.ended = now();
    call.is_over = true;
    call.code = error.code();
    call.error = error.what();
    say(fmt::format("rank {} fails in #{}: {}", rank, call.operation, call.error));
  }

  void wait_for_first(int rank, Groups& groups) {
    Pending pending = std::move(groups.pending.front());
    groups.pending.erase(groups.pending.begin());
    Call& call = trial_.ranks[size_t(rank)].calls[pending.call];
    call.waited = now();
    try {
      pending.work.wait();
      finish(rank, pending.call, pending.buffers);
    } catch (const Error& error) {
      fail(rank, call, error);
      throw;
    }
  }

  // After an error, waits for the operations in the background. They fail too, or were done before.
  void settle(int rank, Groups& groups) {
    while (!groups.pending.empty()) try {
        wait_for_first(rank, groups);
      } catch (const Error&) {
      }
  }

  static bool is_pending(size_t call, const Groups& groups) {
    return std::ranges::any_of(groups.pending, [&](const Pending& p) { return p.call == call; });
  }

  // Calls the group that has failed once more.
  void try_again(int rank, Groups& groups) {
    const Story& story = trial_.ranks[size_t(rank)];
    const auto failed =
        std::ranges::find_if(story.calls, [](const Call& call) { return bool(call.code); });
    if (failed == story.calls.end()) return;
    Group& group = group_of(schedule().operations[failed->operation], groups);
    Call call{.operation = failed->operation, .began = now()};
    try {
      group.barrier({.timeout = schedule().timeout});
      call.ended = now();
      call.is_over = true;
    } catch (const Error& error) {
      fail(rank, call, error);
    }
    trial_.ranks[size_t(rank)].again = call;
  }

  Tensor make(const Operation& operation, int rank, const Group& group, DType dtype,
              int64_t count) {
    const bool shared = operation.memory == Operation::Memory::shared ||
                        (operation.memory == Operation::Memory::mixed && rank % 2 == 0);
    return shared ? group.empty(Shape{count}, dtype) : Tensor::empty(Shape{count}, dtype, kHost);
  }

  // Calls the operation. Returns its Work if it runs in the background.
  Work call(const Operation& operation, size_t k, int rank, Group& group, Groups& groups,
            Buffers& buffers) {
    const CommunicationOptions options{.timeout = schedule().timeout};
    // A group must not be left while an operation of it runs.
    if (operation.kind >= Kind::split)
      while (!groups.pending.empty()) wait_for_first(rank, groups);
    if (operation.kind == Kind::split) {
      groups.part = groups.world->split(schedule().color(rank, k), -rank);
      return {};
    }
    if (operation.kind == Kind::duplicate) {
      groups.duplicate = Group::from_environment();
      return {};
    }
    if (operation.kind == Kind::barrier) {
      group.barrier(options);
      return {};
    }
    const int n = group.size(), me = group.rank(), root = operation.root % n;
    const DType result =
        operation.reduces() ? result_dtype(operation.op, operation.dtype) : operation.dtype;
    const std::vector<Part> parts = parts_of(operation);
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t count = p == 0 ? given(operation, n, rank) : parts[p].count;
      buffers.in.push_back(make(operation, rank, group, parts[p].dtype, count));
      fill(parts[p].dtype, buffers.in.back().data(), count, key_of(schedule(), k, rank, p));
    }
    const Tensor& in = buffers.in[0];
    const auto make_out = [&] {
      Tensor out = make(operation, rank, group, result, got(operation, n));
      std::memset(out.data(), kUntouched, out.num_bytes());
      buffers.out.push_back(out);
      return out;
    };
    const bool background = operation.in_background;
    switch (operation.kind) {
      case Kind::all_reduce: {
        const bool in_place = result == operation.dtype && (background || k % 2);
        const Tensor out = in_place ? in : make_out();
        if (in_place) buffers.out = {in};
        // Only what is in place can go on in the background.
        if (background && in_place) return group.all_reduce_async(out, operation.op, options);
        group.all_reduce(in, out, operation.op, options);
        return {};
      }
      case Kind::all_reduce_list:
        buffers.out = buffers.in;
        if (background) return group.all_reduce_async(buffers.in, operation.op, options);
        group.all_reduce(buffers.in, operation.op, options);
        return {};
      case Kind::reduce: group.reduce(in, make_out(), operation.op, root, options); return {};
      case Kind::broadcast:
        buffers.out = {in};
        if (background) return group.broadcast_async(in, root, options);
        group.broadcast(in, root, options);
        return {};
      case Kind::all_gather:
        if (background) return group.all_gather_async(in, make_out(), options);
        group.all_gather(in, make_out(), options);
        return {};
      case Kind::all_gather_uneven:
        buffers.out.push_back(group.all_gather_uneven(in, options));
        return {};
      case Kind::reduce_scatter:
        if (background) return group.reduce_scatter_async(in, make_out(), operation.op, options);
        group.reduce_scatter(in, make_out(), operation.op, options);
        return {};
      case Kind::all_to_all:
        if (background) return group.all_to_all_async(in, make_out(), options);
        group.all_to_all(in, make_out(), options);
        return {};
      case Kind::gather: group.gather(in, make_out(), root, options); return {};
      case Kind::scatter: group.scatter(in, make_out(), root, options); return {};
      case Kind::message: {
        if (n == 1) return {};
        const auto [from, to] = ends_of(operation, n);
        if (me == from) group.send(in, to, int64_t(k), options);
        if (me == to) group.recv(make_out(), from, int64_t(k), options);
        return {};
      }
      case Kind::barrier:
      case Kind::split:
      case Kind::duplicate: return {};
    }
    return {};
  }

  Trial trial_;
  SimulatedJob job_;
  World& world_;
  int planned_ = 0;
};

}  // namespace

uint64_t expected_result(const Schedule& schedule, size_t k, int rank) {
  const Operation& operation = schedule.operations[k];
  if (!operation.has_data()) return 0;
  const std::vector<int> members = schedule.members(rank, k);
  const int n = int(members.size());
  const int me = int(std::ranges::find(members, rank) - members.begin());
  const int root = operation.root % n;
  const std::vector<Part> parts = parts_of(operation);
  const auto input = [&](int member, size_t p) {
    const int64_t count = p == 0 ? given(operation, n, members[size_t(member)]) : parts[p].count;
    std::vector<std::byte> data(size_t(count) * size_of(parts[p].dtype));
    fill(parts[p].dtype, data.data(), count, key_of(schedule, k, members[size_t(member)], p));
    return data;
  };
  const auto untouched = [&](size_t bytes) {
    return std::vector<std::byte>(bytes, std::byte(kUntouched));
  };
  // The result of a reduction in one process.
  const auto reduced = [&](size_t p, int64_t count, int64_t from) {
    const DType dtype = parts[p].dtype;
    std::vector<std::vector<std::byte>> all;
    std::vector<const void*> inputs;
    for (int m = 0; m < n; ++m) {
      all.push_back(input(m, p));
      inputs.push_back(all.back().data() + size_t(from) * size_of(dtype));
    }
    std::vector<std::byte> out(size_t(count) * size_of(result_dtype(operation.op, dtype)));
    void* const output = out.data();
    if (count) kernels::reduce_here({inputs, {&output, 1}, count, dtype, operation.op, n}, false);
    return out;
  };
  const size_t size = size_of(operation.dtype), bytes = size_t(operation.count) * size;
  uint64_t sum = 0;
  const auto add = [&](const std::vector<std::byte>& data) {
    sum = checksum(data.data(), data.size(), sum);
  };
  const auto part_of = [&](const std::vector<std::byte>& data, int part) {
    const auto begin = data.begin() + ptrdiff_t(bytes) * part;
    return std::vector<std::byte>(begin, begin + ptrdiff_t(bytes));
  };
  switch (operation.kind) {
    case Kind::all_reduce:
    case Kind::all_reduce_list:
      for (size_t p = 0; p < parts.size(); ++p) add(reduced(p, parts[p].count, 0));
      break;
    case Kind::reduce:
      add(me == root ? reduced(0, operation.count, 0)
                     : untouched(size_t(operation.count) *
                                 size_of(result_dtype(operation.op, operation.dtype))));
      break;
    case Kind::reduce_scatter: add(reduced(0, operation.count, operation.count * me)); break;
    case Kind::broadcast: add(input(root, 0)); break;
    case Kind::all_gather:
    case Kind::all_gather_uneven:
    case Kind::gather: {
      std::vector<std::byte> all;
      for (int m = 0; m < n; ++m) {
        const std::vector<std::byte> part = input(m, 0);
        all.insert(all.end(), part.begin(), part.end());
      }
      add(operation.kind == Kind::gather && me != root ? untouched(all.size()) : all);
      break;
    }
    case Kind::all_to_all: {
      std::vector<std::byte> all;
      for (int m = 0; m < n; ++m) {
        const std::vector<std::byte> part = part_of(input(m, 0), me);
        all.insert(all.end(), part.begin(), part.end());
      }
      add(all);
      break;
    }
    case Kind::scatter: add(part_of(input(root, 0), me)); break;
    case Kind::message: {
      if (n == 1) break;
      const auto [from, to] = ends_of(operation, n);
      if (me == to) add(input(from, 0));
      break;
    }
    case Kind::barrier:
    case Kind::split:
    case Kind::duplicate: break;
  }
  return sum;
}

Trial run(const Schedule& schedule, bool traces) { return Player(schedule, traces).play(); }

}  // namespace tutti::sim
