// SPDX-License-Identifier: Apache-2.0
// How long collectives take in a simulated job: the library's own algorithms, on buffers that have
// a length and no data.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "group/net/backend.h"
#include "sim/transport.h"
#include "sim/world.h"

namespace tutti::detail {
class GroupImpl;
}

namespace tutti::sim {

// One call of a collective.
struct Timing {
  size_t bytes;      // of the larger buffer of a rank
  int calls;         // how many calls `time` is the median of
  nanoseconds time;  // from when all ranks begin until the last is done
  struct PerHost {
    double mean, most;
  };
  PerHost messages, sent;  // messages and bytes that leave a host
  int connections;         // that carry a message, on the rank with most
  size_t reserved;         // bytes, on the rank with most; see group::Backend
};

class TimedJob {
 public:
  struct Options {
    int hosts = 1;
    int ranks_per_host = 1;
    uint64_t seed = 1;
    Costs costs = {};
    base::Costs expected = {};  // the costs by which ranks choose algorithms
    // Timed as tutti bench does: on rank 0 alone, after a barrier of the group.
    bool as_bench = false;
    // Called now and then with what the simulation does.
    std::function<void(const std::string& what)> progress = {};
  };
  explicit TimedJob(const Options& options);
  ~TimedJob();
  TimedJob(const TimedJob&) = delete;

  int size() const { return options_.hosts * options_.ranks_per_host; }
  // Times a collective of float32; reductions are SUM, and rank 0 is the root. There are several
  // calls, each of which begins when all ranks are done with the one before.
  Timing time(group::Collective kind, size_t bytes);

 private:
  struct Buffers;

  void run_rank(int rank);
  std::unique_ptr<group::Backend> connect(int rank);
  // Waits until all ranks have come here.
  void meet();
  void await_ranks(const std::string& what);
  nanoseconds call(const std::string& what);

  const Options options_;
  World world_;
  std::unique_ptr<Fabric> fabric_;
  std::shared_ptr<const group::JobRanks> ranks_;
  std::vector<group::HostPeers> host_peers_;  // by host
  std::atomic<bool> alarm_{false};
  std::vector<group::Introduction> introductions_;
  std::vector<detail::GroupImpl*> groups_;
  std::function<void(int rank)> operation_;
  int done_ = 0;
  World::Time last_done_ = {};
  nanoseconds on_rank_0_ = {};
  std::exception_ptr error_;
};

}  // namespace tutti::sim
