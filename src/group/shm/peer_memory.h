// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group reach each other's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "group/shm/block.h"

namespace tutti::group {

// Safe to use from any thread.
class PeerMemory {
 public:
  static constexpr uint64_t kUnreachable = ~uint64_t{0};

  virtual ~PeerMemory() = default;
  // Where [data, data + bytes) is, in words that any rank understands; kUnreachable if only this
  // one can get there.
  virtual uint64_t position(const void* data, size_t bytes) const = 0;
  // That memory of `rank`, as this rank reaches it.
  virtual void* find(int rank, uint64_t position) const = 0;
  // Memory that all reach. Zeroed memory starts on a page, and may be larger than the machine's:
  // most of it is never touched.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;
  virtual std::shared_ptr<void> allocate_zeroed(size_t bytes) = 0;
  // A rank that is stopped may write to this process's memory whenever it goes on: what it can
  // reach is not used for anything else from now on.
  virtual void abandon() const {}
};

// Memory of this process, on a line of its own.
std::shared_ptr<void> allocate_private(size_t bytes);

// The blocks that this rank has made for groups. Others may still look at them when it has left the
// group, so they are given back when the next are made.
class BlockPool {
 public:
  // For all ranks of a group; the first one makes them. `extra` bytes follow them.
  Blocks make(PeerMemory& memory, int ranks, size_t extra = 0);

 private:
  struct Kept {
    std::shared_ptr<void> memory;
    int ranks;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

}  // namespace tutti::group
