// SPDX-License-Identifier: Apache-2.0
// What is known of a group's ranks from outside of its operations.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/coordination.h"

namespace tutti::group {

// Queries without effect: what they answer from is brought up to date elsewhere (see Pump). Safe to
// use from any thread.
class PeerMonitor {
 public:
  virtual ~PeerMonitor() = default;
  virtual std::string address(int rank) const = 0;  // "127.0.0.1:5002"; empty for a thread
  // What errors call a rank, if those watched are only some of a group.
  virtual int number(int rank) const { return rank; }
  virtual int job_rank(int rank) const = 0;  // -1 for a thread
  // Why nothing more can come from this rank, which did not say so itself; empty while it may.
  virtual std::string loss(int rank) const = 0;
  // Why the whole job cannot go on; asked when `alarm` is set, or null.
  virtual std::optional<cluster::Failure> failure() const = 0;
  virtual const std::atomic<bool>* alarm() const = 0;
  // The same, also if that is no loss to the ranks that are watched.
  virtual std::optional<cluster::Failure> failure_anywhere() const { return failure(); }
  // Why this process suspects its own network instead of the ranks it does not hear, as what
  // follows its name; empty if it does not.
  virtual std::string isolation() const { return {}; }
  virtual bool crowded() const = 0;  // are there more ranks than cores to run them on?
  virtual bool separate_processes() const = 0;

  // "rank 2 (127.0.0.1:5002)"
  std::string name(int rank) const;
};

// Some ranks of a job, numbered as those of a group.
class GroupMonitor : public PeerMonitor {
 public:
  // `ranks`: of the job, by rank of the group.
  GroupMonitor(std::shared_ptr<const PeerMonitor> job,
               std::shared_ptr<const std::vector<int>> ranks);
  // `watched`: only these ranks of the group, which are on this host.
  GroupMonitor(std::shared_ptr<const PeerMonitor> job,
               std::shared_ptr<const std::vector<int>> ranks, std::vector<int> watched);

  std::string address(int rank) const override;
  int number(int rank) const override { return on_this_host_ ? watched_[size_t(rank)] : rank; }
  int job_rank(int rank) const override { return job_->job_rank(outer(rank)); }
  std::string loss(int rank) const override { return job_->loss(outer(rank)); }
  std::optional<cluster::Failure> failure() const override;
  std::optional<cluster::Failure> failure_anywhere() const override {
    return job_->failure_anywhere();
  }
  const std::atomic<bool>* alarm() const override { return job_->alarm(); }
  // The ranks of one host reach each other without its network.
  std::string isolation() const override { return on_this_host_ ? "" : job_->isolation(); }
  bool crowded() const override { return job_->crowded(); }
  bool separate_processes() const override { return job_->separate_processes(); }

 private:
  int outer(int rank) const { return (*ranks_)[size_t(number(rank))]; }

  const std::shared_ptr<const PeerMonitor> job_;
  const std::shared_ptr<const std::vector<int>> ranks_;
  const std::vector<int> watched_;  // if on_this_host_
  const bool on_this_host_;
};

// Takes in what has arrived for all groups of this process: failures of other ranks, and whether
// other hosts are heard. A thread that waits calls it every timing::kPoll.
class Pump {
 public:
  virtual void pump() = 0;

 protected:
  ~Pump() = default;
};

}  // namespace tutti::group
