// SPDX-License-Identifier: Apache-2.0
// A job, as this process takes part in it.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/world.h"
#include "group/net/backend.h"
#include "job/bootstrap.h"
#include "job/discovery.h"
#include "job/hello.h"
#include "job/job.h"
#include "job/link.h"
#include "job/site.h"

namespace tutti::group {

// The constructor joins. `failure` and `link` are safe to use from any thread; the rest, from one
// at a time.
class Job {
 public:
  Job(const cluster::Membership& membership, std::unique_ptr<Site> site);

  bool is(const cluster::Membership& other) const {
    return given_.addresses == other.addresses && given_.rank == other.rank;
  }
  std::string name() const {
    return fmt::format("rank {} of {} ({})", rank(), size(), boot_.membership.addresses[0]);
  }
  int stragglers() const { return hellos_[0].stragglers; }
  base::Costs costs() const { return base::parse_costs(hellos_[0].costs); }

  std::unique_ptr<Backend> new_group(const std::string& purpose);
  std::optional<cluster::Failure> failure() const;
  JobLayout layout();  // a collective
  Link& link() { return *link_; }
  // Says goodbye, and stays for the others if they need the service.
  void leave();

 private:
  int rank() const { return given_.rank; }
  int size() const { return boot_.size(); }

  void join_peers();
  void warn_of_other_settings() const;
  void share_memory(const Placement& placement);
  void connect_hosts(const Placement& placement);
  void make_progress();
  void stop_progress();
  std::string isolation() const;
  std::vector<std::string> introduce(int group, const std::string& mine,
                                     const std::string& purpose);

  const cluster::Membership given_;
  Bootstrap boot_;
  const std::unique_ptr<Site> site_;
  std::optional<Link> link_;
  std::vector<Hello> hellos_;                    // by rank
  HostPeers host_peers_;                         // of the ranks on this host
  std::shared_ptr<const JobTopology> topology_;  // between hosts
  int groups_ = 0, layouts_ = 0;
  std::mutex mutex_;
  base::Condition leaves_;
  bool leaving_ = false;
  base::Thread progress_;
};

}  // namespace tutti::group
