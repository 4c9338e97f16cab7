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

namespace tutti::strategy {

// Who they are, as far as that is known without asking them.
struct Cast {
  std::optional<cluster::Membership> membership = {};  // none: this process is alone
  std::optional<Group> group = {};                     // or the ranks of this one
  bool has_chief = false;  // a job "chief" of one task, before the workers
  // Empty where no cluster was given: "/job:worker/replica:0/task:0", "/job:worker/task:1".
  std::string leader = {}, own_task = {};

  // From the first that there is: TF_CONFIG, torchrun, Slurm, mpirun.
  static Cast from_environment();
  // InvalidArgumentError where the task is not in the cluster, or is no worker.
  static Cast from(const ClusterSpec& cluster, const std::string& task_type,
                   std::optional<int> task_id);

  int size() const;
  // The rank of a task. InvalidArgumentError where it is no worker of the job.
  int rank_of(const std::string& task_type, int task_id) const;
  ConfigProto updated(const ConfigProto& config) const;
};

// Throws what is known to be wrong with a worker of the job; -1: with any.
void check_health(int rank);

// The workers, joined. Its methods that need all of them are collectives; they may be called from
// several threads in the same order on all workers.
class Workers {
 public:
  explicit Workers(Cast cast);

  int size() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  const Group& group() const { return group_; }

  // A group of its own for another use, which fails with this one.
  Group new_group();

  // The chief's value, here. The others give one of the same dtype and shape.
  Tensor from_chief(const Tensor& value) const;
  Value from_chief(const Value& value) const;
  std::string from_chief(const std::string& text) const;
  // What every worker gives, by rank.
  std::vector<std::string> from_all(const std::string& text) const;

  // fn() on the chief; what it throws, every worker does.
  void on_chief(const std::function<void()>& fn) const;

  // Tells the others that this worker cannot go on.
  void abandon(const std::string& why) const;

 private:
  const Cast cast_;
  Group group_;
  mutable std::mutex mutex_;
  mutable std::vector<std::weak_ptr<detail::GroupImpl>> others_;
};

// Of a strategy; null where it is of one process.
struct WorkersOf {
  static const Workers* of(const StrategyExtended& extended) { return extended.workers_.get(); }
};

}  // namespace tutti::strategy
