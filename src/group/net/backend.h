// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts: a window on each, and channels between them.
#pragma once

#include <functional>
#include <optional>

#include "group/core/backend.h"
#include "group/net/collectives.h"
#include "group/shm/backend.h"

namespace tutti::group {

// All ranks of a job.
struct JobRanks {
  std::vector<std::string> addresses;  // for errors
  std::vector<std::string> hosts;      // of each rank; ranks with the same name share memory
  std::vector<std::string> machines;   // the same, even if TUTTI_BACKEND keeps each rank alone
  std::shared_ptr<const GroupHosts> all = std::make_shared<const GroupHosts>(hosts);
};

// One process's way to all others of its job.
struct JobTopology {
  int rank;                               // in the job
  std::shared_ptr<const JobRanks> ranks;  // shared by those of a simulated job
  std::shared_ptr<ControlPlane> control;
  // The ranks on this host, in their order; empty if there is no other.
  HostPeers host_peers;
  bool crowded;  // are there more ranks than cores?
  const std::atomic<bool>* alarm;
  std::function<std::optional<cluster::Failure>()> failure;
  std::function<std::string()> isolation;  // as that of PeerMonitor
  Costs costs = {};                        // rank 0's, for all ranks
};

// What a rank tells the others of a new group.
struct Introduction {
  uint64_t blocks;  // where the blocks are; the first rank of a host tells its other ranks
  uint64_t id;      // of the group; the one from the first rank counts
};

class NetworkBackend : public Backend {
 public:
  // A backend is made in two steps, since the others' introductions must be known in between.
  class Plan {
   public:
    // The group of all ranks of the job.
    explicit Plan(std::shared_ptr<const JobTopology> job);
    // `ranks`: of the job, by rank of the group.
    Plan(std::shared_ptr<const JobTopology> job, std::vector<int> ranks);
    const Introduction& introduction() const { return introduction_; }
    // Introductions by rank of the group.
    std::unique_ptr<Backend> finish(std::span<const Introduction> all) const;

   private:
    friend class NetworkBackend;
    Plan(std::shared_ptr<const JobTopology> job, std::shared_ptr<const GroupHosts> hosts);

    std::shared_ptr<const JobTopology> job_;
    GroupTopology topology_;
    Introduction introduction_;
  };

  const char* name() const override;
  int rank() const override { return channels_.rank(); }
  int size() const override { return channels_.size(); }
  std::string address(int rank) const override { return channels_.peers().address(rank); }
  const Way& way() const override { return algorithms_.way(); }
  bool is_local(int rank) const override {
    const std::vector<std::string>& machines = job_->ranks->machines;
    return machines[size_t(ranks()[size_t(rank)])] == machines[size_t(job_->rank)];
  }
  using Backend::run;
  void run(const Description& what, const detail::GroupCall& call, Timeouts timeouts,
           std::span<const Piece> list) override;
  void all_reduce(const Description& what, const LeafReduction& reduction,
                  Timeouts timeouts) override;
  void all_gather_uneven(const Description& what, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts,
                         Timeouts timeouts) override;
  std::unique_ptr<Backend> split(std::span<const int> ranks, Timeouts timeouts) override;
  std::shared_ptr<void> allocate(size_t bytes) override;
  size_t reserved() const override;
  void check(const std::string& during) override { channels_.check_ranks(during); }
  void poison(ErrorCode code, const std::string& text) override { channels_.fail_all(code, text); }
  std::optional<cluster::Failure> failure() const override { return latch_.failure(); }

 private:
  NetworkBackend(const Plan& plan, uint32_t id, const Blocks& blocks);
  const std::vector<int>& ranks() const { return topology_.shared->ranks; }
  std::shared_ptr<const std::vector<int>> shared_ranks() const {
    return {topology_.shared, &ranks()};
  }
  // Makes the window, if there are other ranks on this host. Returns the group's latch.
  FailureLatch& connect_host(const Blocks& blocks);
  // Runs `operation`. If it fails on this rank, it fails on all.
  template <class F>
  void telling_all(const F& operation);

  std::shared_ptr<const JobTopology> job_;
  GroupTopology topology_;
  std::optional<Window> window_;
  // The memory of the group's latch, if this rank is the only one on its host.
  std::unique_ptr<SharedFailure> own_failure_;
  std::optional<FailureLatch> own_latch_;
  FailureLatch& latch_;
  PeerChannels channels_;
  NetworkCollectives algorithms_;
};

}  // namespace tutti::group
