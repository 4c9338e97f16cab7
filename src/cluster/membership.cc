// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/error.h>

#include <algorithm>

#include "base/settings.h"
#include "cluster/checks.h"
#include "cluster/launchers.h"
#include "cluster/tf_config.h"

namespace tutti::cluster {

namespace {

constexpr const char* kArguments = "arguments";

std::string coordinator() {
  std::string address = base::read_settings().coordinator;
  if (!address.empty() && !is_address(address))
    throw InvalidArgumentError(fmt::format("TUTTI_COORDINATOR={}: {}", address, kExpectedAddress));
  return address;
}

// Another host cannot reach this one by its loopback address.
void check_reachable(const std::vector<std::string>& addresses) {
  const auto loopback = [](const std::string& address) { return is_loopback(address); };
  const auto elsewhere = [](const std::string& address) {
    return !address.empty() && !is_loopback(address);
  };
  const auto here = std::ranges::find_if(addresses, loopback);
  const auto there = std::ranges::find_if(addresses, elsewhere);
  if (here == addresses.end() || there == addresses.end()) return;
  throw InvalidArgumentError(fmt::format(
      "the cluster has rank {} at {} and rank {} at {}: {} is reached from its own host "
      "only; give every rank the address that the other hosts know it by",
      here - addresses.begin(), *here, there - addresses.begin(), *there, *here));
}

// `addresses` are those of two ranks or more; the unknown ones are empty.
Membership membership_of(std::vector<std::string> addresses, int rank, const std::string& source) {
  const std::string given = coordinator();
  if (given.empty() && addresses[0].empty() && source == kArguments)
    throw InvalidArgumentError(fmt::format(
        "a cluster of {} ranks, but no address for the coordination service: set "
        "TUTTI_COORDINATOR=HOST:PORT to that of a service that runs already, or start the ranks "
        "with tutti run",
        addresses.size()));
  check_reachable(addresses);
  Membership member{.addresses = std::move(addresses),
                    .rank = rank,
                    .service = given,
                    .serves = given.empty() && rank == 0,
                    .source = source};
  if (given.empty()) member.service = member.addresses[0];
  for (size_t i = 0; i < member.addresses.size(); ++i)
    if (member.addresses[i].empty()) member.addresses[i] = fmt::format("rank {}", i);
  return member;
}

std::optional<Membership> membership_in(const ClusterSpec& cluster, const std::string& task_type,
                                        int task_id, const std::string& source) {
  if (!cluster) return {};
  validate_cluster_spec(cluster, task_type, task_id);
  if (task_type == "evaluator") return {};
  const int rank = id_in_cluster(cluster, task_type, task_id);
  std::vector<std::string> addresses;
  for (const char* job : {"chief", "worker"}) {
    if (!cluster.contains(job)) continue;
    const auto tasks = cluster.job_tasks(job);
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (!tasks[i])
        throw InvalidArgumentError(fmt::format(
            "the job \"{}\" has a task {}, but none {}; expected tasks without holes, from 0 on",
            job, tasks.size() - 1, i));
      addresses.push_back(*tasks[i]);
    }
  }
  if (addresses.size() == 1) return {};
  return membership_of(std::move(addresses), rank, source);
}

}  // namespace

std::optional<Membership> membership_from(const ClusterSpec& cluster, const std::string& task_type,
                                          int task_id) {
  if (cluster && task_type.empty())
    throw InvalidArgumentError(fmt::format("task_type is \"\"; {}", kExpectedJobs));
  return membership_in(cluster, task_type, task_id, kArguments);
}

std::optional<Membership> membership_from_environment() {
  if (const TFConfig config = tf_config(); config.cluster) {
    if (config.task_type.empty() || !config.task_id)
      throw InvalidArgumentError(
          "TF_CONFIG: there is a \"cluster\", but no \"task\" with \"type\" and \"index\" to say "
          "which of its tasks this process is");
    try {
      return membership_in(config.cluster, config.task_type, *config.task_id, "TF_CONFIG");
    } catch (const InvalidArgumentError& e) {
      throw InvalidArgumentError(fmt::format("TF_CONFIG: {}", e.what()));
    }
  }
  for (const auto find : {find_torchrun, find_slurm, find_mpi})
    if (std::optional<Launch> launch = find()) {
      Membership member =
          membership_of(std::move(launch->addresses), launch->rank, launch->launcher);
      member.host_job = launch->host_job;
      return member;
    }
  return {};
}

}  // namespace tutti::cluster
