// SPDX-License-Identifier: Apache-2.0
// Signs of life of the ranks of a host, in memory that they share. One of them, the speaker, sends
// heartbeats for all to the coordination service, and shows when it has heard from the service. A
// rank that no longer sees that sends heartbeats of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tutti::cluster {

// Safe to use from any thread.
class HostPulse {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static size_t bytes(int ranks) { return sizeof(Beat) * size_t(1 + ranks); }

  // In `memory`: bytes(ranks), zero at first. `ranks`: of the job; `rank`: this one.
  HostPulse(std::shared_ptr<void> memory, int ranks, int rank, bool is_speaker)
      : memory_(std::move(memory)), ranks_(ranks), rank_(rank), is_speaker_(is_speaker) {}

  bool is_speaker() const { return is_speaker_; }

  // This rank lives.
  void beat(Time now) { set(1 + rank_, now); }
  // The other ranks that have beaten since then.
  std::vector<int> living(Time since) const {
    std::vector<int> living;
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank != rank_ && last(1 + rank) >= since) living.push_back(rank);
    return living;
  }

  // The speaker has heard from the service.
  void hear_service(Time now) { set(0, now); }
  // Not after `now`: the speaker may have been faster.
  Time service_heard(Time now) const { return std::min(last(0), now); }

 private:
  using Beat = std::atomic<int64_t>;  // nanoseconds of the clock that processes of a host share
  static_assert(Beat::is_always_lock_free);

  Beat& beat_at(int i) const { return static_cast<Beat*>(memory_.get())[i]; }
  void set(int i, Time now) {
    beat_at(i).store(std::chrono::nanoseconds(now.time_since_epoch()).count());
  }
  Time last(int i) const { return Time{std::chrono::nanoseconds(beat_at(i).load())}; }

  const std::shared_ptr<void> memory_;
  const int ranks_, rank_;
  const bool is_speaker_;
};

}  // namespace tutti::cluster
