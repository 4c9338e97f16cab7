// SPDX-License-Identifier: Apache-2.0
// Texts of TF_CONFIG. The input is the text.
#include <tutti/error.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "cluster/membership.h"
#include "cluster/tf_config.h"
#include "fuzz.h"

namespace tutti::fuzz {
namespace {

// None if it throws what a wrong input throws.
template <class F>
auto checked(F&& f) -> std::optional<decltype(f())> {
  try {
    return f();
  } catch (const InvalidArgumentError& e) {
    check(std::string_view(e.what()).size() < 1000, "an error quotes its input in part only");
    return {};
  }
}

void check_job(const ClusterSpec& cluster, const std::string& job) {
  const auto indices = cluster.task_indices(job);
  const auto tasks = cluster.job_tasks(job);
  check(int(indices.size()) == cluster.num_tasks(job), "a job has as many tasks as indices");
  check(std::ranges::count_if(tasks, [](const auto& task) { return task.has_value(); }) ==
            std::ptrdiff_t(indices.size()),
        "what is left of a padded job are holes");
  for (const int index : indices) {
    check(tasks[size_t(index)] == cluster.task_address(job, index), "a task has one address");
    check(!tasks[size_t(index)]->empty(), "TF_CONFIG leaves no address open");
  }
}

void check_task(const ClusterSpec& cluster, const std::string& job, int index) {
  const auto member = checked([&] { return cluster::membership_from(cluster, job, index); });
  if (!member || !*member) return;
  const cluster::Membership& found = **member;
  check(found.rank == id_in_cluster(cluster, job, index), "a rank is the id in the cluster");
  check(int(found.addresses.size()) == worker_count(cluster, job), "all workers are ranks");
  check(found.addresses[size_t(found.rank)] == cluster.task_address(job, index),
        "a rank has the address of its task");
  check(found.serves == is_chief(cluster, job, index), "the chief serves");
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti;
  using namespace tutti::fuzz;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  checked([&] { return ClusterSpec::from_json(text); });
  const auto config = checked([&] { return cluster::parse_tf_config(text); });
  if (!config) return 0;
  const ClusterSpec& cluster = config->cluster;
  check(ClusterSpec::from_json(cluster.to_string()) == cluster,
        "a cluster that is printed and parsed is the same");
  for (const std::string& job : cluster.jobs()) {
    check_job(cluster, job);
    for (const int index : cluster.task_indices(job)) check_task(cluster, job, index);
  }
  if (config->task_id) {
    check(*config->task_id >= 0, "no index is negative");
    checked([&] { return cluster::membership_from(cluster, config->task_type, *config->task_id); });
  }
  return 0;
}
