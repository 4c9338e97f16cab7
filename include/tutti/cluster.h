// SPDX-License-Identifier: Apache-2.0
// The tasks of a job: ClusterSpec, and the resolvers that find one.
//
// A cluster has jobs ("chief", "worker", "evaluator", "ps"), a job has tasks 0, 1, and so on, and a
// task has an address. Chief and workers are the ranks of a group, the chief first.
// InvalidArgumentError, quoting what is wrong and saying what is expected, is the only error here.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::cluster {
struct Launch;
}

#pragma GCC visibility push(default)

namespace tutti {

// The addresses of all tasks. A value type.
class ClusterSpec {
 public:
  // The addresses of a job's tasks: a list, or pairs of index and address if there are holes.
  struct Tasks {
    Tasks() = default;
    Tasks(std::initializer_list<std::string> list);
    Tasks(std::initializer_list<std::pair<const int, std::string>> pairs) : addresses(pairs) {}
    Tasks(const std::vector<std::string>& list);
    Tasks(std::map<int, std::string> pairs) : addresses(std::move(pairs)) {}

    std::map<int, std::string> addresses;  // by index
    friend bool operator==(const Tasks&, const Tasks&) = default;
  };

  ClusterSpec() = default;
  // ClusterSpec{{{"chief", {"a:5000"}}, {"worker", {"b:5000", "c:5000"}}}}. Any name will do for a
  // job. An address reads "host:port" and belongs to one task only; it is empty if it is not
  // known up front.
  ClusterSpec(std::map<std::string, Tasks> jobs);
  // From {"worker": ["a:5000", "b:5000"]} or {"worker": {"0": "a:5000", "1": "b:5000"}}.
  static ClusterSpec from_json(std::string_view text);

  explicit operator bool() const { return !jobs_.empty(); }
  std::vector<std::string> jobs() const;  // sorted
  // Whether it has a job of this name.
  bool contains(const std::string& job) const { return jobs_.contains(job); }

  // Of a job that the cluster has; anything else is an error.
  int num_tasks(const std::string& job) const;
  std::vector<int> task_indices(const std::string& job) const;
  const std::string& task_address(const std::string& job, int index) const;
  std::vector<std::optional<std::string>> job_tasks(const std::string& job) const;  // with holes

  // By the names of jobs; good as long as this object is.
  const std::map<std::string, Tasks>& as_dict() const { return jobs_; }
  std::string to_string() const;  // as JSON, with sorted jobs
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
  friend std::ostream& operator<<(std::ostream& os, const ClusterSpec& cluster) {
    return os << cluster.to_string();
  }

 private:
  const Tasks& tasks(const std::string& job) const;

  std::map<std::string, Tasks> jobs_;
};

// A ClusterSpec from all that converts to one.
inline ClusterSpec normalize_cluster_spec(ClusterSpec cluster) { return cluster; }

// Throws unless all jobs are chief, worker, evaluator or ps, with one chief and one evaluator at
// most, and the task is there. An evaluator need not be part of the cluster, and an empty task type
// stands for none.
void validate_cluster_spec(const ClusterSpec& cluster, const std::string& task_type = {},
                           std::optional<int> task_id = {});

// All of these validate the cluster first.
// True for the chief and the evaluator, and for worker 0 if there is no chief.
bool is_chief(const ClusterSpec& cluster, const std::string& task_type, int task_id);
// How many tasks work together with one of this type: chief and workers, or the evaluators.
int worker_count(const ClusterSpec& cluster, const std::string& task_type);
// The position among them; the rank, for chief and workers.
int id_in_cluster(const ClusterSpec& cluster, const std::string& task_type, int task_id);
// "/job:chief/replica:0/task:0", or worker 0; empty for an empty cluster and for an evaluator.
std::string collective_leader(const ClusterSpec& cluster, const std::string& task_type,
                              int task_id);
// As collective_leader, but ps 0 comes first.
std::string coordination_leader(const ClusterSpec& cluster);

// Values that a resolver takes as given, and need not find.
struct ClusterResolverOptions {
  // As the methods of ClusterResolver return them.
  std::optional<std::string> task_type = {};
  std::optional<int> task_id = {};
  std::optional<std::string> rpc_layer = {};
  std::map<std::string, int> num_accelerators = {};  // of every task, by type: {{"GPU", 2}}
};

// Finds the cluster and this process's place in it. Derive from it to ask a scheduler of your own.
// What its options or setters give goes before what it finds. Const members are safe to call from
// any thread as long as no thread changes the environment.
class ClusterResolver {
 public:
  explicit ClusterResolver(ClusterResolverOptions options = {});
  virtual ~ClusterResolver() = default;

  virtual ClusterSpec cluster_spec() const = 0;  // empty if there is no cluster
  // The job that this process is in, and its index there; empty if it is in none.
  std::string task_type() const;
  std::optional<int> task_id() const;
  std::string rpc_layer() const;  // the protocol that master() names; empty: none
  // The number of accelerators of each task, from the options; 0 if they do not say.
  int num_accelerators(const std::string& type = "GPU") const;

  // "address" or "rpc_layer://address" of this task, or of the one that is named. Empty if the
  // cluster has one task or none.
  std::string master(const std::optional<std::string>& task_type = {},
                     std::optional<int> task_id = {},
                     const std::optional<std::string>& rpc_layer = {}) const;

  // Values to use from now on in place of those that are found. InvalidArgumentError for a negative
  // id.
  void set_task_type(std::string task_type) { options_.task_type = std::move(task_type); }
  void set_task_id(int task_id);
  void set_rpc_layer(std::string rpc_layer) { options_.rpc_layer = std::move(rpc_layer); }

 protected:
  // Asked in every call for what neither options nor setters give.
  virtual std::string find_task_type() const { return {}; }
  virtual std::optional<int> find_task_id() const { return {}; }
  virtual std::string find_rpc_layer() const { return {}; }
  virtual std::optional<std::string> find_master() const { return {}; }  // goes before all else

 private:
  ClusterResolverOptions options_;
};

// A cluster that is known to the program.
class SimpleClusterResolver : public ClusterResolver {
 public:
  explicit SimpleClusterResolver(ClusterSpec cluster, ClusterResolverOptions options = {});
  ClusterSpec cluster_spec() const override { return cluster_; }

 private:
  ClusterSpec cluster_;
};

// From the variable TF_CONFIG, read afresh at every call:
// {"cluster": {"worker": ["a:5000", "b:5000"]}, "task": {"type": "worker", "index": 1}}, and if
// need be "rpc_layer" and "session_master", which is what master() returns then.
class TFConfigClusterResolver : public ClusterResolver {
 public:
  explicit TFConfigClusterResolver(ClusterResolverOptions options = {});
  ClusterSpec cluster_spec() const override;

 protected:
  std::string find_task_type() const override;
  std::optional<int> find_task_id() const override;
  std::string find_rpc_layer() const override;
  std::optional<std::string> find_master() const override;
};

// From the variables of a launcher, read afresh at every call: a cluster of workers, each with its
// rank as its task_id. Empty if the launcher started one process, or none.
class LaunchedClusterResolver : public ClusterResolver {
 public:
  ClusterSpec cluster_spec() const override;

 protected:
  // What the variables of one launcher say; nothing if it did not start this process.
  using Find = std::optional<cluster::Launch> (*)();
  LaunchedClusterResolver(Find find, ClusterResolverOptions options);
  std::string find_task_type() const override;
  std::optional<int> find_task_id() const override;

 private:
  Find find_;
};

// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Only the address of rank 0 is known: the master's
// port, or the one after it if torchrun itself keeps that one.
class TorchrunClusterResolver : public LaunchedClusterResolver {
 public:
  explicit TorchrunClusterResolver(ClusterResolverOptions options = {});
};

// An srun step. A task's port follows from the numbers of the job, of the step and of the task on
// its node.
class SlurmClusterResolver : public LaunchedClusterResolver {
 public:
  explicit SlurmClusterResolver(ClusterResolverOptions options = {});
};

// Open MPI's or MPICH's mpirun. No address is known.
class MPIClusterResolver : public LaunchedClusterResolver {
 public:
  explicit MPIClusterResolver(ClusterResolverOptions options = {});
};

}  // namespace tutti

#pragma GCC visibility pop
