// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/collective_strategy.h>
#include <tutti/compat.h>
#include <tutti/error.h>

#include <algorithm>

#include "strategy/context.h"
#include "strategy/workers.h"

namespace tutti {

namespace {

using detail::Roster;
using detail::Workers;

// Workers of one host take GPUs in turn, modulo those they see: a launcher may show each worker
// only its own.
std::vector<std::string> devices_for(const CollectiveAllReduceOptions& options, int local_rank) {
  const auto take = [](const char* type, const char* option, int count, int turn) {
    std::vector<std::string> names = list_logical_devices(type);
    if (count < 0)
      throw InvalidArgumentError(fmt::format("{} is {}, expected 0 or more", option, count));
    if (size_t(count) > names.size())
      throw InvalidArgumentError(
          fmt::format("{} is {}, but this machine has {} logical {} devices; set_logical_devices "
                      "makes more",
                      option, count, names.size(), type));
    if (count > 0)
      std::rotate(names.begin(), names.begin() + turn * count % ssize(names), names.end());
    names.resize(size_t(count));
    return names;
  };
  std::vector<std::string> names =
      take("GPU", "num_gpus_per_worker", options.num_gpus_per_worker, local_rank);
  if (!names.empty()) return names;
  names = take("CPU", "cpu_devices_per_worker", options.cpu_devices_per_worker, 0);
  if (names.empty()) throw InvalidArgumentError("cpu_devices_per_worker is 0, expected 1 or more");
  return names;
}

CollectiveAllReduceOptions all_gpus(const CommunicationOptions& communication) {
  return {.num_gpus_per_worker = int(list_logical_devices("GPU").size()),
          .communication = communication};
}

}  // namespace

CollectiveAllReduceStrategy::CollectiveAllReduceStrategy(const CollectiveAllReduceOptions& options,
                                                         Roster roster)
    : Strategy(devices_for(options, 0), nullptr, options.communication),
      options_(options),
      roster_(std::make_unique<Roster>(std::move(roster))) {
  options.communication.validate("CollectiveAllReduceStrategy");
  join(*roster_);
}

void CollectiveAllReduceStrategy::join(const Roster& roster) {
  auto workers = std::make_shared<Workers>(roster, options_.communication);
  extended().devices_ = devices_for(options_, workers->group().local_rank());
  extended().join(std::move(workers));
}

CollectiveAllReduceStrategy::CollectiveAllReduceStrategy(const CollectiveAllReduceOptions& options)
    : CollectiveAllReduceStrategy(options, Roster::from_environment()) {}

CollectiveAllReduceStrategy::CollectiveAllReduceStrategy(int num_gpus_per_worker)
    : CollectiveAllReduceStrategy({.num_gpus_per_worker = num_gpus_per_worker},
                                  Roster::from_environment()) {}

CollectiveAllReduceStrategy::CollectiveAllReduceStrategy(const Group& group,
                                                         const CollectiveAllReduceOptions& options)
    : CollectiveAllReduceStrategy(options, Roster{.group = group}) {}

CollectiveAllReduceStrategy::~CollectiveAllReduceStrategy() = default;

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const CommunicationOptions& communication)
    : CollectiveAllReduceStrategy(all_gpus(communication), Roster::from_environment()) {}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                                         const CommunicationOptions& communication)
    : CollectiveAllReduceStrategy(
          all_gpus(communication),
          Roster::from(resolver.cluster_spec(), resolver.task_type(), resolver.task_id())) {}

void CollectiveAllReduceStrategy::configure(const ConfigureOptions& options) {
  strategy::require_cross_replica(*this, "configure");
  if (options.cluster_spec) {
    Roster roster = Roster::from(options.cluster_spec, options.task_type, options.task_id);
    if (*extended().variables_ > 0)
      throw FailedPreconditionError(fmt::format(
          "configure: the strategy has {} variables, which the other workers know nothing of; "
          "configure it before the first",
          extended().variables_->load()));
    join(roster);
    *roster_ = std::move(roster);
  }
  if (options.session_config)
    *options.session_config = update_config_proto(*options.session_config);
}

std::unique_ptr<CollectiveAllReduceStrategy> CollectiveAllReduceStrategy::clone() const {
  strategy::require_cross_replica(*this, "clone");
  return std::unique_ptr<CollectiveAllReduceStrategy>(
      new CollectiveAllReduceStrategy(options_, *roster_));
}

void CollectiveAllReduceStrategy::experimental_initialize() {
  strategy::require_cross_replica(*this, "experimental_initialize");
  if (left_) extended().join(std::make_shared<Workers>(*roster_, options_.communication));
  left_ = false;
  extended().workers_->group().barrier(options_.communication);
}

void CollectiveAllReduceStrategy::experimental_finalize() {
  strategy::require_cross_replica(*this, "experimental_finalize");
  if (left_) return;
  left_ = true;
  const Group group = extended().workers_->group();
  extended().leave();
  group.barrier(options_.communication);
}

ConfigProto CollectiveAllReduceStrategy::update_config_proto(const ConfigProto& config) const {
  return roster_->updated(config);
}

void CollectiveAllReduceStrategy::check_health(const std::string& task_type, int task_id) const {
  roster_->check_health(roster_->rank_of(task_type, task_id));
}

void CollectiveAllReduceStrategy::check_health() const { roster_->check_health(-1); }

}  // namespace tutti
