// SPDX-License-Identifier: Apache-2.0
// This process among the workers of a strategy.
#pragma once

#include <tutti/cluster.h>
#include <tutti/compat.h>
#include <tutti/group.h>
#include <tutti/values.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cluster/membership.h"

namespace tutti::detail {

// The workers as far as they are known without asking them.
struct Roster {
  std::optional<cluster::Membership> membership = {};  // none: this process is alone
  std::optional<Group> group = {};                     // or the ranks of this one
  bool has_chief = false;  // a job "chief" of one task, before the workers
  // Empty if no cluster was given: "/job:worker/replica:0/task:0", "/job:worker/task:1".
  std::string leader = {}, own_task = {};

  // From the first that there is: TF_CONFIG, torchrun, Slurm, mpirun.
  static Roster from_environment();
  // InvalidArgumentError if the task is not in the cluster, or is no worker.
  static Roster from(const ClusterSpec& cluster, const std::string& task_type,
                     std::optional<int> task_id);

  int size() const;
  // The rank of a task. InvalidArgumentError if it is no worker of the job.
  int rank_of(const std::string& task_type, int task_id) const;
  // Throws what is known to be wrong with a worker; -1: with any.
  void check_health(int rank) const;
  ConfigProto updated(const ConfigProto& config) const;
};

// The workers, joined. What needs all of them is a collective, in the same order on all, and a
// FailedPreconditionError once this worker has left.
class Workers {
 public:
  // This process is the only worker, of no job.
  Workers() = default;
  // Waits for all of them. `options` has the timeout of what follows.
  Workers(const Roster& roster, const CommunicationOptions& options);

  int size() const { return size_; }
  int rank() const { return rank_; }
  const Group& group() const;  // of the workers of a job
  const CommunicationOptions& options() const { return options_; }
  void leave() {
    group_.reset();
    left_ = true;
  }

  // A group of its own for another use, which fails with this one.
  Group new_group() const;

  // The chief's value, here. The others give one of the same dtype and shape.
  Tensor from_chief(const Tensor& value) const;
  Value from_chief(const Value& value) const;
  std::string from_chief(const std::string& text) const;
  // What every worker gives, by rank.
  std::vector<std::string> from_all(const std::string& text) const;

  // InvalidArgumentError on all workers if they do not say the same; `what` starts its text.
  void agree(const char* what, const std::string& text) const;
  // fn() on the chief, or on all: what it throws on one worker, all workers throw.
  void on_chief(const std::function<void()>& fn) const;
  void on_all(const std::function<void()>& fn) const;

  // Tells the others that this worker cannot go on.
  void abandon(const std::string& why) const;

 private:
  bool alone() const;  // FailedPreconditionError once this worker has left

  const Roster roster_ = {};
  const CommunicationOptions options_ = {};
  std::optional<Group> group_;
  const int size_ = 1, rank_ = 0;
  bool left_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<std::weak_ptr<GroupImpl>> others_;
};

// Of a strategy.
struct WorkersOf {
  static const Workers& of(const StrategyExtended& extended) { return *extended.workers_; }
  static std::shared_ptr<const Workers> shared(const StrategyExtended& extended) {
    return extended.workers_;
  }
};

}  // namespace tutti::detail
