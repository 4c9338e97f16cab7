// SPDX-License-Identifier: Apache-2.0
// What happens in one simulated job, drawn from a seed: where its ranks are, the operations that
// they call, and what goes wrong on the way.
#pragma once

#include <tutti/dtype.h>
#include <tutti/reduce_op.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::sim {

using std::chrono::nanoseconds;

// An operation that all ranks call, each when it comes to it.
struct Operation {
  enum class Kind : uint8_t {
    barrier,
    all_reduce,
    all_reduce_list,
    reduce,
    broadcast,
    all_gather,
    all_gather_uneven,
    reduce_scatter,
    all_to_all,
    gather,
    scatter,
    message,  // from `root` to `peer`
    split,    // into two parts
    duplicate
  };
  // The group that is used: that of all ranks, the rank's part of the last split, or the last
  // duplicate of all ranks.
  enum class On : uint8_t { world, part, duplicate };
  enum class Memory : uint8_t { own, shared, mixed };  // mixed: even ranks share theirs

  Kind kind = Kind::barrier;
  On on = On::world;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::SUM;
  int root = 0, peer = 0;  // ranks of the job; in a part, modulo its size
  int64_t count = 0;       // elements that a rank gives, or a part of them for each rank
  Memory memory = Memory::own;
  bool in_background = false;
  nanoseconds pause = {};  // ranks compute for up to this long before it

  bool has_data() const {
    return kind != Kind::barrier && kind != Kind::split && kind != Kind::duplicate;
  }
  bool reduces() const {
    return kind == Kind::all_reduce || kind == Kind::all_reduce_list || kind == Kind::reduce ||
           kind == Kind::reduce_scatter;
  }
  std::string to_string() const;
};

struct Fault {
  enum class Kind : uint8_t {
    kill,             // `rank`
    kill_service,     // the launcher; or rank 0, if that serves
    suspend,          // `rank`
    suspend_service,  // the launcher alone
    suspend_all,      // all ranks, and the launcher
    cut_off,          // `host` from all others
    mute,             // nothing gets from `host` to others
    deafen,           // nothing gets to `host` from others
    part,             // `host` and `other` from each other
    slow,             // all that `host` sends and receives takes `factor` times as long
    late,             // `rank` starts `after` the others
    absent,           // `rank` never starts
    mismatch,         // `rank` calls `instead`
    skip,             // `rank` leaves out an operation
    leave,            // `rank` ends its program
    abort,            // `rank` aborts the group of all ranks
    compute,          // `rank` computes for `after` before it calls the operation
  };
  Kind kind = Kind::kill;
  int rank = 0, host = 0, other = 0;
  // Happens `after` rank `trigger` has come to `operation`. -1: after the start; the number of
  // operations: after the rank began to leave.
  int operation = -1, trigger = 0;
  nanoseconds after = {};
  nanoseconds lasts = nanoseconds::max();  // until it is mended, if it can be
  double factor = 1;
  Operation instead = {};

  bool suspends() const {
    return kind == Kind::suspend || kind == Kind::suspend_service || kind == Kind::suspend_all;
  }
  // Whether the fault may only cost time, and cause no error.
  bool is_harmless() const;
  std::string to_string() const;
};

struct Schedule {
  uint64_t seed = 0;
  std::vector<int> hosts = {};  // of each rank
  bool chief_serves = false;
  nanoseconds jitter = {}, timeout = {}, heartbeat_timeout = {};
  std::vector<Operation> operations = {};
  std::vector<Fault> faults = {};

  int size() const { return int(hosts.size()); }
  int num_hosts() const;
  // The colour of a rank in the last split before an operation.
  int color(int rank, size_t operation) const;
  // The ranks of the job that are in the rank's group of an operation, by rank of the group.
  std::vector<int> members(int rank, size_t operation) const;
  std::string to_string() const;
};

// The schedule of a seed. Without `faults` nothing goes wrong, and there may be more ranks.
Schedule draw(uint64_t seed, bool faults = true);

}  // namespace tutti::sim
