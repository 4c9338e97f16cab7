// SPDX-License-Identifier: Apache-2.0
// What a rank that waits does besides waiting: it hears of failures, notices lost peers, warns, and
// at its deadline names the rank that is late. Shared memory, the network and NCCL all wait by it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "group/core/operation.h"
#include "group/liveness/deadline.h"
#include "group/liveness/failure_latch.h"
#include "group/liveness/peer_monitor.h"

namespace tutti::group {

// The ranks that are waited for, as errors name them, and the one of them that is at fault.
struct LateRanks {
  std::string names = {};
  int culprit = -1;

  void add(const LateRanks& more) {
    names += (names.empty() ? "" : ", and for ") + more.names;
    if (culprit < 0) culprit = more.culprit;
  }
};

// Of the ranks of one group that one medium connects. Safe to use from any thread.
class Liveness {
 public:
  // `pump` may be null.
  Liveness(std::shared_ptr<const PeerMonitor> peers, FailureLatch& latch, Pump* pump)
      : peers_(std::move(peers)), latch_(latch), pump_(pump), alarm_(peers_->alarm()) {}

  const PeerMonitor& peers() const { return *peers_; }
  FailureLatch& latch() const { return latch_; }
  std::string name(int rank) const { return peers_->name(rank); }
  // "rank 2 is at #12"
  std::string progress(int rank, uint64_t operation) const;

  // Throws if the group has failed, as far as is known here.
  void check() const { latch_.check(); }
  // The group fails: all ranks are told, and the first failure is thrown. `rank` is at fault; -1:
  // no single one.
  [[noreturn]] void fail(int rank, ErrorCode code, const std::string& text) const {
    latch_.fail({rank < 0 ? -1 : peers_->job_rank(rank), code, text});
  }

  // Throws if the group has failed, or the job. An operation that begins asks this.
  void check_at_start(const Description& what, uint64_t number) const {
    if (latch_.is_set()) check();
    if (alarm_ && alarm_->load(std::memory_order_relaxed)) check_job(described(what, number));
  }
  // Takes in what has arrived, and throws if the group or the job has failed; `during` starts the
  // text.
  void check_now(const std::string& during) const;
  void check_job(const std::string& during) const;
  // Fails if `rank` is lost. left(): it said that it leaves; at(): the operation it was in last.
  void check_loss(const std::string& during, int rank, const std::function<bool()>& left,
                  const std::function<uint64_t()>& at) const;

  [[noreturn]] void fail_since_left(const std::string& during, int rank, uint64_t at) const;

  // The failure of the job that explains a loss, if there is a job and it becomes known in time.
  std::optional<cluster::Failure> await_reason() const;
  // `sleep` passes a short time.
  std::optional<cluster::Failure> await_reason(const std::function<void()>& sleep) const;

  // Warns of a wait that has become long, once, and fails at its deadline, unless missing() names
  // no ranks.
  void check_deadline(Deadline& deadline, std::chrono::nanoseconds slack, const Description& what,
                      uint64_t number, const std::function<LateRanks()>& missing, int me) const;

 private:
  const std::shared_ptr<const PeerMonitor> peers_;
  FailureLatch& latch_;
  Pump* const pump_;
  const std::atomic<bool>* const alarm_;
};

}  // namespace tutti::group
