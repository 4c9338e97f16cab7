// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/cluster.h>
#include <tutti/error.h>

#include <algorithm>

#include "cluster/checks.h"

namespace tutti {

namespace {

using cluster::in_quotes;
using cluster::kExpectedAddress;
using cluster::kExpectedJobs;
using cluster::kMaxTasks;

std::map<int, std::string> numbered(auto begin, auto end) {
  std::map<int, std::string> tasks;
  for (; begin != end; ++begin) tasks.emplace_hint(tasks.end(), int(tasks.size()), *begin);
  return tasks;
}

std::string indices_of(const std::map<int, std::string>& tasks) {
  constexpr size_t kMost = 8;
  if (tasks.empty()) return "none";
  std::vector<std::string> indices;
  for (const auto& [index, address] : tasks) {
    if (indices.size() == kMost) {
      indices.push_back("…");
      break;
    }
    indices.push_back(std::to_string(index));
  }
  return fmt::format("{}", fmt::join(indices, ", "));
}

std::string jobs_of(const ClusterSpec& cluster) {
  return cluster ? fmt::format("{}", fmt::join(cluster.jobs(), ", ")) : "none";
}

int count_of(const ClusterSpec& cluster, const std::string& job) {
  return cluster.contains(job) ? cluster.num_tasks(job) : 0;
}

std::string first_task_of(const std::string& job) {
  return fmt::format("/job:{}/replica:0/task:0", job);
}

std::string chief_or_worker(const ClusterSpec& cluster) {
  for (const char* job : {"chief", "worker"})
    if (cluster.contains(job)) return first_task_of(job);
  throw InvalidArgumentError(
      fmt::format("the cluster has neither a chief nor a worker to lead it; its jobs are: {}",
                  jobs_of(cluster)));
}

}  // namespace

ClusterSpec::Tasks::Tasks(std::initializer_list<std::string> list)
    : addresses(numbered(list.begin(), list.end())) {}

ClusterSpec::Tasks::Tasks(const std::vector<std::string>& list)
    : addresses(numbered(list.begin(), list.end())) {}

ClusterSpec::ClusterSpec(std::map<std::string, Tasks> jobs) : jobs_(std::move(jobs)) {
  std::map<std::string_view, std::string> owners;
  for (const auto& [job, tasks] : jobs_) {
    if (job.empty()) throw InvalidArgumentError("cluster: a job has an empty name");
    for (const auto& [index, address] : tasks.addresses) {
      if (index < 0 || index >= kMaxTasks)
        throw InvalidArgumentError(fmt::format(
            "cluster: the job {} has the index {}; expected a whole number from 0 to {}",
            in_quotes(job), index, kMaxTasks - 1));
      if (address.empty()) continue;
      const std::string owner = fmt::format("task {} of the job {}", index, in_quotes(job));
      if (!cluster::is_address(address))
        throw InvalidArgumentError(fmt::format("cluster: {} has the address {}; {}", owner,
                                               in_quotes(address), kExpectedAddress));
      const auto [other, is_new] = owners.emplace(address, owner);
      if (!is_new)
        throw InvalidArgumentError(
            fmt::format("cluster: {} and {} have the same address {}; expected one for each",
                        other->second, owner, in_quotes(address)));
    }
  }
}

std::vector<std::string> ClusterSpec::jobs() const {
  std::vector<std::string> names;
  for (const auto& [job, tasks] : jobs_) names.push_back(job);
  return names;
}

const ClusterSpec::Tasks& ClusterSpec::tasks(const std::string& job) const {
  const auto found = jobs_.find(job);
  if (found == jobs_.end())
    throw InvalidArgumentError(
        fmt::format("the cluster has no job {}; its jobs are: {}", in_quotes(job), jobs_of(*this)));
  return found->second;
}

int ClusterSpec::num_tasks(const std::string& job) const {
  return int(tasks(job).addresses.size());
}

std::vector<int> ClusterSpec::task_indices(const std::string& job) const {
  std::vector<int> indices;
  for (const auto& [index, address] : tasks(job).addresses) indices.push_back(index);
  return indices;
}

const std::string& ClusterSpec::task_address(const std::string& job, int index) const {
  const auto& addresses = tasks(job).addresses;
  const auto found = addresses.find(index);
  if (found == addresses.end())
    throw InvalidArgumentError(fmt::format("the job {} has no task {}; its tasks are: {}",
                                           in_quotes(job), index, indices_of(addresses)));
  return found->second;
}

std::vector<std::optional<std::string>> ClusterSpec::job_tasks(const std::string& job) const {
  const auto& addresses = tasks(job).addresses;
  if (addresses.empty()) return {};
  std::vector<std::optional<std::string>> result(size_t(addresses.rbegin()->first) + 1);
  for (const auto& [index, address] : addresses) result[size_t(index)] = address;
  return result;
}

void validate_cluster_spec(const ClusterSpec& cluster, const std::string& task_type,
                           std::optional<int> task_id) {
  for (const auto& [job, tasks] : cluster.as_dict())
    if (!cluster::is_known_job(job))
      throw InvalidArgumentError(
          fmt::format("the cluster names the job {}; {}", in_quotes(job), kExpectedJobs));
  for (const char* job : {"chief", "evaluator"})
    if (const int count = count_of(cluster, job); count > 1)
      throw InvalidArgumentError(
          fmt::format("the cluster has {} {}s; expected 1 at most", count, job));
  if (task_type.empty()) return;
  if (!cluster::is_known_job(task_type))
    throw InvalidArgumentError(
        fmt::format("task_type is {}; {}", in_quotes(task_type), kExpectedJobs));
  if (!cluster.contains(task_type)) {
    if (task_type != "evaluator")
      throw InvalidArgumentError(
          fmt::format("task_type is \"{}\", which the cluster does not have; its jobs are: {}",
                      task_type, jobs_of(cluster)));
    if (task_id && *task_id < 0)
      throw InvalidArgumentError(fmt::format("task_id is {}; expected 0 or more", *task_id));
    return;
  }
  const auto& tasks = cluster.as_dict().at(task_type).addresses;
  if (task_id && !tasks.contains(*task_id))
    throw InvalidArgumentError(fmt::format("task_id is {}, but the tasks of the job \"{}\" are: {}",
                                           *task_id, task_type, indices_of(tasks)));
}

bool is_chief(const ClusterSpec& cluster, const std::string& task_type, int task_id) {
  validate_cluster_spec(cluster, task_type, task_id);
  if (task_type == "chief" || task_type == "evaluator") return true;
  return task_type == "worker" && task_id == 0 && !cluster.contains("chief");
}

int worker_count(const ClusterSpec& cluster, const std::string& task_type) {
  validate_cluster_spec(cluster, task_type);
  if (cluster.contains(task_type) && cluster.num_tasks(task_type) == 0)
    throw InvalidArgumentError(
        fmt::format("worker_count: the job \"{}\" has no tasks; list their addresses", task_type));
  if (task_type == "chief" || task_type == "worker")
    return count_of(cluster, "chief") + count_of(cluster, "worker");
  // An evaluator that is not listed counts itself.
  if (task_type == "evaluator") return std::max(count_of(cluster, task_type), 1);
  throw InvalidArgumentError(fmt::format(
      "worker_count: task_type is {}; expected chief, worker or evaluator", in_quotes(task_type)));
}

int id_in_cluster(const ClusterSpec& cluster, const std::string& task_type, int task_id) {
  validate_cluster_spec(cluster, task_type, task_id);
  if (task_type == "chief") return 0;
  if (task_type == "worker") return count_of(cluster, "chief") + task_id;
  if (task_type == "evaluator") return task_id;
  throw InvalidArgumentError(fmt::format(
      "id_in_cluster: task_type is {}; expected chief, worker or evaluator", in_quotes(task_type)));
}

std::string collective_leader(const ClusterSpec& cluster, const std::string& task_type,
                              int task_id) {
  if (!cluster) return "";
  validate_cluster_spec(cluster, task_type, task_id);
  return task_type == "evaluator" ? "" : chief_or_worker(cluster);
}

std::string coordination_leader(const ClusterSpec& cluster) {
  if (!cluster) return "";
  validate_cluster_spec(cluster);
  return cluster.contains("ps") ? first_task_of("ps") : chief_or_worker(cluster);
}

}  // namespace tutti
