// SPDX-License-Identifier: Apache-2.0
#include "sim/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/hash.h"
#include "base/reduce_op.h"

namespace tutti::sim {

using namespace std::chrono_literals;
using Kind = Operation::Kind;

namespace {

const char* name(Kind kind) {
  switch (kind) {
    case Kind::barrier: return "barrier";
    case Kind::all_reduce: return "all_reduce";
    case Kind::all_reduce_list: return "all_reduce of a list";
    case Kind::reduce: return "reduce";
    case Kind::broadcast: return "broadcast";
    case Kind::all_gather: return "all_gather";
    case Kind::all_gather_uneven: return "all_gather_uneven";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_to_all: return "all_to_all";
    case Kind::gather: return "gather";
    case Kind::scatter: return "scatter";
    case Kind::message: return "message";
    case Kind::split: return "split";
    case Kind::duplicate: return "another group";
  }
  return "?";
}

std::string time_text(nanoseconds time) {
  if (time == nanoseconds::max()) return "to the end";
  return fmt::format("{:g} ms", double(time.count()) / 1e6);
}

// Draws from a seed; the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15u + 1) {}

  int64_t below(int64_t n) { return int64_t(random_() % uint64_t(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool one_in(int64_t n) { return below(n) == 0; }
  // Draws all orders of magnitude about as often.
  nanoseconds time(nanoseconds low, nanoseconds high) {
    int64_t top = low.count();
    while (top < high.count() && !one_in(8)) top *= 2;
    return nanoseconds(between(low.count(), std::min(top, high.count())));
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(int64_t(values.size()))];
  }

 private:
  std::mt19937_64 random_;
};

int64_t draw_bytes(Dice& dice, int64_t most) {
  int64_t bytes = 0;
  switch (dice.below(8)) {
    case 0: bytes = dice.one_of<int64_t>({0, 1, 8}); break;
    case 1: bytes = dice.below(64); break;
    case 2: bytes = dice.below(2 << 10); break;
    case 3: bytes = (8 << 10) + dice.between(-64, 64); break;
    case 4: bytes = dice.below(40 << 10); break;
    case 5: bytes = (64 << 10) + dice.between(-64, 64); break;
    case 6: bytes = (256 << 10) + dice.between(-64, 64); break;
    case 7: bytes = dice.one_in(4) ? (512 << 10) + dice.between(-64, 64) : dice.below(300 << 10);
  }
  return std::min(bytes, most);
}

Operation draw_operation(Dice& dice, int ranks, bool is_split, bool is_duplicated) {
  Operation operation;
  operation.kind = Kind(dice.below(int64_t(Kind::duplicate) + 1));
  // Operations that make groups are rare.
  if (operation.kind >= Kind::split && !dice.one_in(3)) operation.kind = Kind::all_reduce;
  operation.dtype = DType(dice.below(int64_t(detail::kDTypes.size())));
  operation.op = operation.dtype == DType::boolean
                     ? dice.one_of({ReduceOp::MIN, ReduceOp::MAX})
                     : ReduceOp(dice.below(int64_t(base::kReduceOps.size())));
  // A list is reduced in place.
  if (operation.kind == Kind::all_reduce_list &&
      result_dtype(operation.op, operation.dtype) != operation.dtype)
    operation.op = ReduceOp::SUM;
  operation.root = int(dice.below(ranks));
  operation.peer = int(dice.below(ranks));
  if (operation.peer == operation.root) operation.peer = (operation.root + 1) % ranks;
  if (operation.kind < Kind::split) {
    if (is_split && dice.one_in(2))
      operation.on = Operation::On::part;
    else if (is_duplicated && dice.one_in(2))
      operation.on = Operation::On::duplicate;
  }
  const int64_t most = (800 << 10) / (operation.kind >= Kind::all_gather ? ranks : 1);
  if (operation.has_data())
    operation.count = draw_bytes(dice, most) / int64_t(size_of(operation.dtype));
  operation.memory = Operation::Memory(dice.below(3));
  operation.in_background =
      dice.one_in(5) &&
      (operation.kind == Kind::all_reduce || operation.kind == Kind::all_reduce_list ||
       operation.kind == Kind::broadcast || operation.kind == Kind::all_gather ||
       operation.kind == Kind::reduce_scatter || operation.kind == Kind::all_to_all);
  if (operation.kind == Kind::all_reduce &&
      result_dtype(operation.op, operation.dtype) != operation.dtype)
    operation.in_background = false;
  if (dice.one_in(3)) operation.pause = dice.time(1us, 2ms);
  return operation;
}

bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather ||
         kind == Kind::scatter;
}

// Another call in the place of `operation`, which its peers must notice.
Operation draw_mismatch(Dice& dice, const Operation& operation, int ranks) {
  Operation other = operation;
  other.in_background = false;
  const auto change_kind = [&] {
    other.kind = operation.kind == Kind::barrier ? Kind::all_reduce : Kind::barrier;
  };
  switch (dice.below(5)) {
    case 0: other.count += dice.between(1, 3); break;
    case 1:
      other.dtype = operation.dtype == DType::int32 ? DType::uint8 : DType::int32;
      if (operation.reduces()) other.op = ReduceOp::MAX;
      break;
    case 2:
      if (!operation.reduces()) return change_kind(), other;
      other.op = operation.op == ReduceOp::MIN ? ReduceOp::MAX : ReduceOp::MIN;
      break;
    case 3:
      if (!has_root(operation.kind)) return change_kind(), other;
      other.root = (operation.root + 1) % ranks;
      break;
    case 4: change_kind();
  }
  if (!operation.has_data() || operation.kind == Kind::all_gather_uneven) change_kind();
  return other;
}

class Drawing {
 public:
  Drawing(uint64_t seed, bool faults) : dice_(seed) {
    schedule_.seed = seed;
    draw_layout(faults);
    draw_program(faults);
    if (faults && !dice_.one_in(8)) draw_fault();
    if (faults && dice_.one_in(6)) draw_fault();
  }
  Schedule& result() { return schedule_; }

 private:
  int ranks() const { return schedule_.size(); }
  int hosts() const { return schedule_.num_hosts(); }
  size_t length() const { return schedule_.operations.size(); }

  void draw_layout(bool faults) {
    const int size =
        int(faults ? dice_.between(2, dice_.one_in(4) ? 12 : 6) : dice_.between(1, 64));
    const int hosts = int(dice_.between(1, std::min(size, faults ? 4 : 17)));
    const int per_host = (size + hosts - 1) / hosts;
    const int64_t kind = dice_.below(3);
    for (int r = 0; r < size; ++r)
      schedule_.hosts.push_back(kind == 0   ? r % hosts
                                : kind == 1 ? r / per_host
                                            : (r < hosts ? r : int(dice_.below(hosts))));
    schedule_.chief_serves = dice_.one_in(3);
    if (dice_.one_in(2)) schedule_.jitter = dice_.time(1us, 200us);
    schedule_.timeout = dice_.one_of<nanoseconds>({2s, 3s, 5s});
    schedule_.heartbeat_timeout = 10s;
    // In some schedules a silent rank is reported before a call reaches its deadline.
    if (dice_.one_in(8)) {
      schedule_.timeout = 20s;
      schedule_.heartbeat_timeout = 3s;
    }
  }

  void draw_program(bool faults) {
    bool is_split = false, is_duplicated = false;
    for (int64_t n = dice_.between(1, faults ? 15 : 4); n > 0; --n) {
      Operation operation = draw_operation(dice_, ranks(), is_split, is_duplicated);
      if (ranks() == 1 && operation.kind == Kind::message) operation.kind = Kind::barrier;
      is_split |= operation.kind == Kind::split;
      is_duplicated |= operation.kind == Kind::duplicate;
      schedule_.operations.push_back(operation);
    }
  }

  void draw_moment(Fault& fault) {
    fault.operation = int(dice_.between(-1, int64_t(length())));
    fault.trigger = int(dice_.one_in(2) ? fault.rank : dice_.below(ranks()));
    fault.after =
        fault.operation < 0 ? nanoseconds(dice_.below(1'000'000)) : dice_.time(100ns, 2ms);
  }

  void draw_fault() {
    Fault fault;
    fault.rank = int(dice_.below(ranks()));
    fault.host = int(dice_.below(hosts()));
    fault.other = hosts() > 1 ? (fault.host + 1 + int(dice_.below(hosts() - 1))) % hosts() : 0;
    draw_moment(fault);
    const int64_t kind = dice_.below(100);
    using enum Fault::Kind;
    if (kind < 24) {
      fault.kind = kill;
    } else if (kind < 30) {
      fault.kind = kill_service;
    } else if (kind < 44) {
      // Without a launcher rank 0 runs the service, and is suspended like any other rank.
      fault.kind = kind < kSuspendService || schedule_.chief_serves ? suspend : suspend_service;
      draw_duration(fault);
    } else if (kind < 48) {
      fault.kind = suspend_all;
      fault.lasts = dice_.time(1s, 60s);
    } else if (kind < 60) {
      fault.kind = dice_.one_of({cut_off, cut_off, mute, deafen, part});
      draw_duration(fault);
    } else if (kind < 65) {
      fault.kind = slow;
      fault.factor = double(dice_.between(2, 100));
    } else if (kind < 69) {
      fault.kind = late;
      fault.operation = -1;
      fault.after = dice_.time(1ms, 200s);
    } else if (kind < 71) {
      fault.kind = absent;
      fault.operation = -1;
    } else if (kind < 74) {
      fault.kind = compute;
      fault.operation = int(dice_.below(int64_t(length())));
      fault.after = dice_.time(1ms, short_time());
    } else {
      fault.trigger = fault.rank;
      fault.operation = int(dice_.below(int64_t(length())));
      fault.after = {};
      const Operation& operation = schedule_.operations[size_t(fault.operation)];
      fault.kind = kind < 84 ? mismatch : kind < 88 ? skip : kind < 95 ? leave : abort;
      if (fault.kind == mismatch) {
        // Only collectives notice a mismatch: messages are matched by their tags, and groups by
        // their order.
        if (operation.kind >= Kind::message)
          fault.kind = leave;
        else
          fault.instead = draw_mismatch(dice_, operation, ranks());
      }
      if (fault.kind == skip) fault.kind = can_skip(size_t(fault.operation)) ? skip : leave;
    }
    // With one host there is no network to break.
    if (hosts() == 1 && (fault.kind == cut_off || fault.kind == mute || fault.kind == deafen ||
                         fault.kind == part || fault.kind == slow))
      fault.kind = kill;
    // There is one suspension at most, since to resume a process ends all its suspensions.
    for (const Fault& other : schedule_.faults)
      if (fault.suspends() && other.suspends()) return;
    schedule_.faults.push_back(fault);
  }

  static constexpr int64_t kSuspendService = 41;

  // Ranks notice that one has left out an operation if the next one is of another kind.
  bool can_skip(size_t at) const {
    const Operation& skipped = schedule_.operations[at];
    if (skipped.kind >= Kind::message || skipped.on != Operation::On::world) return false;
    for (size_t next = at + 1; next < length(); ++next) {
      const Operation& other = schedule_.operations[next];
      if (other.kind == Kind::message) return false;
      if (other.on == Operation::On::world)
        return other.kind != Kind::duplicate && other.kind != skipped.kind;
      return false;
    }
    return false;
  }

  nanoseconds short_time() const {
    return std::min(schedule_.timeout, schedule_.heartbeat_timeout) * 2 / 5;
  }
  // Half of the faults are over before any rank reaches a deadline.
  void draw_duration(Fault& fault) {
    if (dice_.one_in(2))
      fault.lasts = dice_.time(1ms, short_time());
    else if (dice_.one_in(2))
      fault.lasts = schedule_.timeout + dice_.time(2s, 30s);
  }

  Dice dice_;
  Schedule schedule_;
};

}  // namespace

std::string Operation::to_string() const {
  std::string text = name(kind);
  if (has_data()) text += fmt::format(" {}[{}]", tutti::name(dtype), count);
  if (reduces()) text += fmt::format(" {}", tutti::name(op));
  if (has_root(kind)) text += fmt::format(", root {}", root);
  if (kind == Kind::message) text += fmt::format(" from rank {} to rank {}", root, peer);
  if (on == On::part) text += ", in the parts";
  if (on == On::duplicate) text += ", in the other group";
  if (has_data())
    text += memory == Memory::own      ? ""
            : memory == Memory::shared ? ", in shared memory"
                                       : ", even ranks in shared memory";
  if (in_background) text += ", in the background";
  if (pause.count())
    text += fmt::format("; before it each rank computes up to {}", time_text(pause));
  return text;
}

bool Fault::is_harmless() const {
  switch (kind) {
    case Kind::suspend:
    case Kind::suspend_service:
    case Kind::cut_off:
    case Kind::mute:
    case Kind::deafen:
    case Kind::part: return lasts < 2s;
    case Kind::suspend_all:
    case Kind::slow:
    case Kind::late:
    case Kind::compute: return true;
    case Kind::kill:
    case Kind::kill_service:
    case Kind::absent:
    case Kind::mismatch:
    case Kind::skip:
    case Kind::leave:
    case Kind::abort: return false;
  }
  return false;
}

std::string Fault::to_string() const {
  const std::string when = operation < 0 ? fmt::format("{} after the beginning", time_text(after))
                                         : fmt::format("{} after rank {} comes to #{}",
                                                       time_text(after), trigger, operation);
  const std::string long_ =
      lasts == nanoseconds::max() ? "" : fmt::format(", for {}", time_text(lasts));
  switch (kind) {
    case Kind::kill: return fmt::format("rank {} is killed {}", rank, when);
    case Kind::kill_service: return fmt::format("the process with the service is killed {}", when);
    case Kind::suspend: return fmt::format("rank {} is suspended {}{}", rank, when, long_);
    case Kind::suspend_service: return fmt::format("the launcher is suspended {}{}", when, long_);
    case Kind::suspend_all: return fmt::format("all processes are suspended {}{}", when, long_);
    case Kind::cut_off: return fmt::format("host {} is cut off {}{}", host, when, long_);
    case Kind::mute: return fmt::format("nothing gets out of host {} {}{}", host, when, long_);
    case Kind::deafen: return fmt::format("nothing gets to host {} {}{}", host, when, long_);
    case Kind::part:
      return fmt::format("hosts {} and {} are parted {}{}", host, other, when, long_);
    case Kind::slow:
      return fmt::format("the network of host {} becomes {:g} times slower {}", host, factor, when);
    case Kind::late: return fmt::format("rank {} starts after {}", rank, time_text(after));
    case Kind::absent: return fmt::format("rank {} never starts", rank);
    case Kind::mismatch:
      return fmt::format("rank {} calls, instead of #{}, {}", rank, operation, instead.to_string());
    case Kind::skip: return fmt::format("rank {} leaves out #{}", rank, operation);
    case Kind::leave: return fmt::format("rank {} ends its program before #{}", rank, operation);
    case Kind::abort: return fmt::format("rank {} aborts before #{}", rank, operation);
    case Kind::compute:
      return fmt::format("rank {} computes for {} before #{}", rank, time_text(after), operation);
  }
  return "?";
}

int Schedule::num_hosts() const { return 1 + *std::ranges::max_element(hosts); }

int Schedule::color(int rank, size_t operation) const {
  size_t last = operation;
  while (last > 0 && operations[last].kind != Kind::split) --last;
  return int(base::mixed(seed + last, uint64_t(rank)) & 1);
}

std::vector<int> Schedule::members(int rank, size_t operation) const {
  std::vector<int> members;
  const bool in_part = operations[operation].on == Operation::On::part;
  for (int r = 0; r < size(); ++r)
    if (!in_part || color(r, operation) == color(rank, operation)) members.push_back(r);
  // The keys of a split reverse the order.
  if (in_part) std::ranges::reverse(members);
  return members;
}

std::string Schedule::to_string() const {
  std::string text =
      fmt::format("seed {}: {} ranks on hosts {}; the service is in {}\n", seed, size(),
                  fmt::join(hosts, " "), chief_serves ? "rank 0" : "the launcher, on host 0");
  text +=
      fmt::format("messages take up to {} longer at random; a call may wait {}, a silent rank {}\n",
                  time_text(jitter), time_text(timeout), time_text(heartbeat_timeout));
  for (size_t i = 0; i < operations.size(); ++i)
    text += fmt::format("  #{} {}\n", i, operations[i].to_string());
  if (faults.empty()) text += "  nothing goes wrong\n";
  for (const Fault& fault : faults) text += fmt::format("  fault: {}\n", fault.to_string());
  return text;
}

Schedule draw(uint64_t seed, bool faults) { return Drawing(seed, faults).result(); }

}  // namespace tutti::sim
