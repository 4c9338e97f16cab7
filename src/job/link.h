// SPDX-License-Identifier: Apache-2.0
// This process's connection to the coordination service of its job, and what it tells the service
// of failures.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/coordination.h"
#include "job/host_board.h"

namespace tutti::group {

// TUTTI_JOIN_TIMEOUT; nanoseconds::max() if it is 0.
std::chrono::nanoseconds join_timeout();

// Safe to use from any thread, until the process ends.
class Link {
 public:
  // `board`: what the ranks of this host share; may be null.
  Link(int rank, std::vector<std::string> addresses,
       std::shared_ptr<cluster::Coordination> coordination, std::unique_ptr<HostBoard> board);

  // Null once this process has left the service.
  std::shared_ptr<cluster::Coordination> get() const;
  void leave();

  // As Coordination's, before this process has left; one at a time. A failure is reported.
  std::vector<std::string> exchange(const std::string& name, const std::string& value);

  // Set when the job fails.
  const std::atomic<bool>& alarm() const { return alarm_; }

  // As report_failure and abort_job of job.h.
  void report(cluster::Failure failure);
  void abort(const std::string& reason);
  // Tells the peers why this rank does not take part.
  void refuse(const Error& error);

 private:
  std::vector<std::string> exchange_on_host(const std::string& name, const std::string& value,
                                            cluster::Failure& failure);

  const int rank_;
  const std::vector<std::string> addresses_;
  std::atomic<bool> alarm_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<cluster::Coordination> coordination_;
  std::unique_ptr<HostBoard> board_;
  bool shares_heartbeats_ = false;
  std::mutex reporting_;
  std::string reported_;  // the last
};

}  // namespace tutti::group
