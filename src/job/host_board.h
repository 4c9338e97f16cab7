// SPDX-License-Identifier: Apache-2.0
// The values of exchanges, as the ranks of a host share them: one of them gets them from the
// coordination service, and the others read them in its memory. So a table of all ranks travels
// once per host. The ranks that share it have a pulse in common.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/coordination.h"
#include "group/shm/arena.h"

namespace tutti::group {

// All ranks show or read the tables of all exchanges, in the same order. Not thread-safe.
class HostBoard {
 public:
  HostBoard();
  ~HostBoard();

  const cluster::Sharing& sharing() const { return sharing_; }  // of this rank
  // For the others. The table before is not needed any more: all have come to this exchange.
  void show(const std::vector<std::string>& values);
  // What the rank at `place` shows; empty if its memory cannot be opened, or has no room for it.
  // Waits until it is there: check() may throw, and DeadlineExceededError after `timeout`.
  std::optional<std::vector<std::string>> read(const std::string& place,
                                               std::chrono::nanoseconds timeout,
                                               const std::function<void()>& check);
  // Of the ranks that share the first table, as rank `rank` of the job; after that. Null: there was
  // no room for it.
  std::shared_ptr<cluster::HostPulse> pulse(int rank) const;

 private:
  struct Head;
  void put(const std::vector<std::string>& values);

  const std::shared_ptr<void> memory_;  // of the head
  Head& head_;
  const cluster::Sharing sharing_;
  uint32_t tables_ = 0;
  std::shared_ptr<void> shown_;
  std::shared_ptr<PeerArena> holder_;  // null: this rank shows
  std::shared_ptr<void> pulse_;
  int ranks_ = 0;  // of the job
};

}  // namespace tutti::group
