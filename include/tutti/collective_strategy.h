// SPDX-License-Identifier: Apache-2.0
// CollectiveAllReduceStrategy: synchronous training on many workers.
//
//   CollectiveAllReduceStrategy strategy;   // tutti run -n 4 ./program, Slurm, mpirun, torchrun
//   ...
//
// Every worker runs the same program, and the rest of it is as with MirroredStrategy. All workers
// call the methods that concern all replicas (reduce, gather, run with an all_reduce in it,
// Variable::create, save_variables, ...) in the same order. A worker that is lost, stuck or asks
// for something else becomes an error on every other one that names it.
#pragma once

#include <tutti/cluster.h>
#include <tutti/group.h>
#include <tutti/strategy.h>

#include <memory>
#include <optional>
#include <string>

namespace tutti::detail {
struct Roster;
}

#pragma GCC visibility push(default)

namespace tutti {

// What each worker runs on, and how it communicates.
struct CollectiveAllReduceOptions {
  // A replica on each; 0: on CPUs. Worker r of a host takes GPUs r * n to r * n + n - 1, modulo
  // those that it sees.
  int num_gpus_per_worker = 0;
  int cpu_devices_per_worker = 1;           // logical CPU devices, if there are no GPUs
  CommunicationOptions communication = {};  // for calls that do not set their own
};

// What configure is told.
struct ConfigureOptions {
  ConfigProto* session_config = nullptr;  // is overwritten with update_config_proto of itself
  ClusterSpec cluster_spec = {};          // empty: the workers stay as they are
  // This worker's task in `cluster_spec`.
  std::string task_type = {};
  std::optional<int> task_id = {};
};

// One replica per device and worker. The workers are those that the environment names (TF_CONFIG,
// torchrun, Slurm, mpirun; see cluster.h), or configure does; without any, this process is the only
// one. Worker 0, the chief if there is one, has the first replicas, and so on.
//
// Sums over all replicas have the same bits for every way to share them out to workers. A variable
// starts from the chief's initial value. A value that is not PerReplica is what this worker holds,
// and is reduced over the workers.
//
// An exception out of `run` ends the strategy on all workers, since they can no longer be matched:
// the others get an AbortedError that names the worker and its replica.
class CollectiveAllReduceStrategy : public Strategy {
 public:
  // Returns when all workers have come. InvalidArgumentError if devices are not there;
  // DeadlineExceededError naming the workers that did not come within TUTTI_JOIN_TIMEOUT.
  explicit CollectiveAllReduceStrategy(int num_gpus_per_worker = 0);
  explicit CollectiveAllReduceStrategy(const CollectiveAllReduceOptions& options);
  // The workers are the ranks of a group: a part of a job, or threads of this process.
  explicit CollectiveAllReduceStrategy(const Group& group,
                                       const CollectiveAllReduceOptions& options = {});
  ~CollectiveAllReduceStrategy() override;

  // Makes the tasks of a cluster the workers. InvalidArgumentError, which leaves the strategy as it
  // was, if the task is not in the cluster; FailedPreconditionError if variables were made.
  void configure(const ConfigureOptions& options);

  // A strategy of its own with the same devices, options and workers, and without variables. All
  // workers make it.
  std::unique_ptr<CollectiveAllReduceStrategy> clone() const;

  // initialize waits for all workers, and joins them if finalize has left. finalize waits for
  // all, too; what concerns all workers is a FailedPreconditionError from then on. Neither of them,
  // nor configure, may be called beside other methods.
  void experimental_initialize() override;
  void experimental_finalize() override;

  ConfigProto update_config_proto(const ConfigProto& config) const override;

  // Throws what is known to be wrong with a task, or with any: workers are watched all the time,
  // also while the program computes. UnavailableError if it is lost. InvalidArgumentError for a
  // task that is no worker of the job.
  void check_health(const std::string& task_type, int task_id) const;
  void check_health() const;

 protected:
  CollectiveAllReduceStrategy(const CollectiveAllReduceOptions& options, detail::Roster roster);

 private:
  void join(const detail::Roster& roster);  // and takes the devices of this worker's local rank

  CollectiveAllReduceOptions options_;
  std::unique_ptr<detail::Roster> roster_;
  bool left_ = false;
};

// The same under its later name: the workers are those that a resolver finds. A replica on each GPU
// that this worker sees, or on one CPU device; workers that see the same GPUs do not share them
// out.
class MultiWorkerMirroredStrategy : public CollectiveAllReduceStrategy {
 public:
  explicit MultiWorkerMirroredStrategy(const CommunicationOptions& communication = {});
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                       const CommunicationOptions& communication = {});
};

}  // namespace tutti

#pragma GCC visibility pop
