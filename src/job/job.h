// SPDX-License-Identifier: Apache-2.0
// The job of this process: joined once, whatever the number of groups.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/coordination.h"
#include "cluster/membership.h"
#include "group/core/backend.h"

namespace tutti::group {

// A new group of all workers of a job, or without one of this process alone. The first call joins
// the job; FailedPreconditionError for any other job from then on.
struct JobGroup {
  std::unique_ptr<Backend> backend;
  int stragglers;  // TUTTI_STRAGGLERS of rank 0, which counts for all
};
// `purpose` must be the same on all workers, since groups are told apart by their order only.
JobGroup join(const std::optional<cluster::Membership>& membership, const std::string& purpose);

// The error of a forked child that uses its parent's groups.
constexpr std::string_view kForkedChild =
    "this process was forked from one that takes part in a job, and takes no part itself: start "
    "workers as programs of their own, or fork before the first group is made";

// Why the job that this process has joined cannot go on, as far as is known.
std::optional<cluster::Failure> job_failure();

// Tells the coordination service, and by it the launcher, why this process cannot go on. Never
// waits; nothing in a process that has not joined a job. Rank -1 stands for this rank. If ranks
// disagree (invalid_argument), none of them is at fault.
void report_failure(const cluster::Failure& failure);

// Tells all ranks of the job that this one has failed: "rank 1 failed: REASON", an AbortedError in
// every group that holds this rank. Waits up to a second until they know. Nothing in a process that
// has not joined a job.
void abort_job(const std::string& reason);

// Where the ranks of a job are, and what moves data between them.
struct JobLayout {
  struct Rank {
    std::string address;  // in the cluster
    std::string machine;  // the name that it has for itself
    std::string host;     // ranks with the same share memory
    bool named = false;   // by TUTTI_HOST_ID; else `host` is found out: "BOOT PROCESSES"
  };
  std::vector<Rank> ranks = {};  // empty: this process is alone
  int rank = 0;
  std::string source = {};     // what describes the job: "TF_CONFIG", "Slurm", ...
  std::string service = {};    // the address of the coordination service
  std::string network = {};    // the transport between hosts; empty: all ranks share memory
  std::string interface = {};  // that it uses here, and why
  base::Costs costs = {};      // of all ranks
};

// Of the job that the environment describes; a collective.
JobLayout layout_from_environment();

}  // namespace tutti::group
