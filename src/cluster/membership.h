// SPDX-License-Identifier: Apache-2.0
// Which job this process is part of, as which rank, and which process runs its coordination
// service.
#pragma once

#include <tutti/cluster.h>

#include <optional>
#include <string>
#include <vector>

namespace tutti::cluster {

struct Membership {
  // By rank: the chief, then the workers. A rank whose address is not known up front, as under
  // torchrun and mpirun, is "rank R" here: these are names for errors, and only the service's is
  // connected to. All ranks hold the same list.
  std::vector<std::string> addresses;
  int rank = 0;
  // Of the coordination service: rank 0's address, or TUTTI_COORDINATOR; empty under mpirun: MPI
  // passes it on.
  std::string service;
  std::string host_job = {};  // as Launch::host_job
  bool serves = false;        // this process runs it: it is rank 0 and TUTTI_COORDINATOR is empty
  std::string source;         // "arguments", "TF_CONFIG", "torchrun", "Slurm", "Open MPI", "MPICH"
};

// Empty for an evaluator, for a job of one rank and for no cluster at all. InvalidArgumentError if
// the task is no rank (ps), is not in the cluster, or the ranks have holes.
std::optional<Membership> membership_from(const ClusterSpec& cluster, const std::string& task_type,
                                          int task_id);

// From the first source that is there: TF_CONFIG, torchrun, an srun step, mpirun. Empty: this
// process is alone.
std::optional<Membership> membership_from_environment();

}  // namespace tutti::cluster
