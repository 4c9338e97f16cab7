// SPDX-License-Identifier: Apache-2.0
#include "group/liveness/peer_monitor.h"

#include <fmt/format.h>

#include <algorithm>

#include "group/core/operation.h"

namespace tutti::group {

std::string PeerMonitor::name(int rank) const { return rank_name(number(rank), address(rank)); }

GroupMonitor::GroupMonitor(std::shared_ptr<const PeerMonitor> job,
                           std::shared_ptr<const std::vector<int>> ranks)
    : job_(std::move(job)), ranks_(std::move(ranks)), on_this_host_(false) {}

GroupMonitor::GroupMonitor(std::shared_ptr<const PeerMonitor> job,
                           std::shared_ptr<const std::vector<int>> ranks, std::vector<int> watched)
    : job_(std::move(job)),
      ranks_(std::move(ranks)),
      watched_(std::move(watched)),
      on_this_host_(true) {}

std::string GroupMonitor::address(int rank) const {
  const int of_job = outer(rank);
  const std::string address = job_->address(of_job);
  if (address.empty() || of_job == number(rank)) return address;
  return fmt::format("rank {} of the job, {}", of_job, address);
}

std::optional<cluster::Failure> GroupMonitor::failure() const {
  std::optional<cluster::Failure> failure = job_->failure();
  // A rank that is lost is no loss to a group that it is not in.
  if (failure && failure->rank >= 0 && std::ranges::find(*ranks_, failure->rank) == ranks_->end())
    return {};
  return failure;
}

}  // namespace tutti::group
