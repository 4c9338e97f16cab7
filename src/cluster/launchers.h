// SPDX-License-Identifier: Apache-2.0
// What launchers that do not set TF_CONFIG say in the environment.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tutti::cluster {

// A job of two processes or more.
struct Launch {
  std::string launcher;                // "torchrun", "Slurm", "Open MPI", "MPICH"
  int rank = 0;                        // of this process
  std::vector<std::string> addresses;  // by rank; empty if the environment does not tell it
  // Under mpirun, if all processes are on this host: the name of the job on this host. Else empty.
  std::string host_job = {};
};

// Each is empty if this launcher started one process, or none. InvalidArgumentError, naming the
// variable, if it started more and a variable is missing or makes no sense.
std::optional<Launch> find_torchrun();
std::optional<Launch> find_slurm();
std::optional<Launch> find_mpi();

// The hosts of Slurm's shorthand: "n[1-2,04],gpu" is n1, n2, n04, gpu. `variable` is named in
// errors.
std::vector<std::string> expand_hosts(const std::string& variable, const std::string& list);

// How many tasks each node has: "2(x3),1" is 2, 2, 2, 1.
std::vector<int> expand_counts(const std::string& variable, const std::string& list);

}  // namespace tutti::cluster
