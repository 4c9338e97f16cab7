// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/cluster.h>
#include <tutti/error.h>

#include "cluster/checks.h"
#include "cluster/launchers.h"

namespace tutti {

namespace {

void check_task_id(int task_id) {
  if (task_id < 0)
    throw InvalidArgumentError(fmt::format("task_id is {}; expected 0 or more", task_id));
}

}  // namespace

ClusterResolver::ClusterResolver(ClusterResolverOptions options) : options_(std::move(options)) {
  if (options_.task_id) check_task_id(*options_.task_id);
  for (const auto& [type, count] : options_.num_accelerators)
    if (count < 0)
      throw InvalidArgumentError(
          fmt::format("num_accelerators has {} of type {}; expected 0 or more", count,
                      cluster::in_quotes(type)));
}

std::string ClusterResolver::task_type() const {
  return options_.task_type ? *options_.task_type : find_task_type();
}

std::optional<int> ClusterResolver::task_id() const {
  return options_.task_id ? options_.task_id : find_task_id();
}

std::string ClusterResolver::rpc_layer() const {
  return options_.rpc_layer ? *options_.rpc_layer : find_rpc_layer();
}

int ClusterResolver::num_accelerators(const std::string& type) const {
  const auto found = options_.num_accelerators.find(type);
  return found == options_.num_accelerators.end() ? 0 : found->second;
}

void ClusterResolver::set_task_id(int task_id) {
  check_task_id(task_id);
  options_.task_id = task_id;
}

std::string ClusterResolver::master(const std::optional<std::string>& task_type,
                                    std::optional<int> task_id,
                                    const std::optional<std::string>& rpc_layer) const {
  if (const std::optional<std::string> found = find_master()) return *found;
  const ClusterSpec cluster = cluster_spec();
  const auto& jobs = cluster.as_dict();
  if (jobs.empty() || (jobs.size() == 1 && jobs.begin()->second.addresses.size() == 1)) return "";
  const std::string type = task_type ? *task_type : this->task_type();
  const std::optional<int> id = task_id ? task_id : this->task_id();
  if (type.empty() || !id)
    throw InvalidArgumentError(fmt::format(
        "master: the cluster {} has several tasks, and neither the call nor the resolver "
        "says which is meant: give task_type and task_id",
        cluster.to_string()));
  const std::string layer = rpc_layer ? *rpc_layer : this->rpc_layer();
  const std::string& address = cluster.task_address(type, *id);
  return layer.empty() || address.empty() ? address : fmt::format("{}://{}", layer, address);
}

SimpleClusterResolver::SimpleClusterResolver(ClusterSpec cluster, ClusterResolverOptions options)
    : ClusterResolver(std::move(options)), cluster_(std::move(cluster)) {}

LaunchedClusterResolver::LaunchedClusterResolver(Find find, ClusterResolverOptions options)
    : ClusterResolver(std::move(options)), find_(find) {}

ClusterSpec LaunchedClusterResolver::cluster_spec() const {
  const auto launch = find_();
  return launch ? ClusterSpec({{"worker", launch->addresses}}) : ClusterSpec();
}

std::string LaunchedClusterResolver::find_task_type() const { return find_() ? "worker" : ""; }

std::optional<int> LaunchedClusterResolver::find_task_id() const {
  const auto launch = find_();
  return launch ? std::optional(launch->rank) : std::nullopt;
}

TorchrunClusterResolver::TorchrunClusterResolver(ClusterResolverOptions options)
    : LaunchedClusterResolver(cluster::find_torchrun, std::move(options)) {}

SlurmClusterResolver::SlurmClusterResolver(ClusterResolverOptions options)
    : LaunchedClusterResolver(cluster::find_slurm, std::move(options)) {}

MPIClusterResolver::MPIClusterResolver(ClusterResolverOptions options)
    : LaunchedClusterResolver(cluster::find_mpi, std::move(options)) {}

}  // namespace tutti
