// SPDX-License-Identifier: Apache-2.0
// Memory of this process that its peers on the same host map into theirs.
//
// One memfd for all groups: it has no name, so nothing is left when the process is killed, and it
// does not count against /dev/shm. It grows by segments, as they are needed; pages come when they
// are touched. A position is (segment, offset); a peer maps a segment when it first looks there.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/descriptors.h"
#include "group/shm/peer_memory.h"

namespace tutti::group {

constexpr size_t kMostSegments = 64;  // each as large as all before it, if there is room
constexpr int kOffsetBits = 58;       // of a position; the segment is in the bits above

constexpr size_t segment_of(uint64_t position) { return size_t(position >> kOffsetBits); }
constexpr size_t offset_of(uint64_t position) {
  return size_t(position & ((uint64_t{1} << kOffsetBits) - 1));
}

// Safe to use from any thread.
class Arena {
 public:
  // Never destroyed: tensors may outlive every group.
  static Arena& mine();

  int fd() const { return fd_; }
  size_t first_segment() const { return segments_[0].bytes; }
  // PeerMemory::kUnreachable if it is not in this arena.
  uint64_t position_of(const void* data, size_t bytes) const {
    const size_t count = count_.load(std::memory_order_acquire);
    for (size_t i = 0; i < count; ++i) {
      const size_t offset = size_t(static_cast<const std::byte*>(data) - segments_[i].base);
      if (offset < segments_[i].bytes && bytes <= segments_[i].bytes - offset)
        return uint64_t(i) << kOffsetBits | offset;
    }
    return PeerMemory::kUnreachable;
  }
  std::byte* at(uint64_t position) const {
    return segments_[segment_of(position)].base + offset_of(position);
  }

  // From now on nothing that is given back is used again.
  void abandon();

  // ResourceExhaustedError if there is no room.
  std::shared_ptr<void> allocate(size_t bytes);         // on a line of its own
  std::shared_ptr<void> allocate_zeroed(size_t bytes);  // on pages of its own; sparse

 private:
  struct Segment {
    std::byte* base = nullptr;
    size_t bytes = 0;
    uint64_t start = 0;  // in the file
  };

  Arena();
  uint64_t take(size_t bytes, size_t alignment, bool sparse);
  void grow(size_t bytes);
  void give_back(uint64_t position, size_t bytes, bool sparse);
  void drop_pages(uint64_t position, size_t bytes);

  int fd_ = -1;
  std::array<Segment, kMostSegments> segments_;
  std::atomic<size_t> count_{0};  // of segments, which never change once they are there
  std::mutex mutex_;
  std::map<uint64_t, size_t> free_;  // position to bytes, no two of them adjacent
  size_t used_ = 0, limit_ = 0;      // without what is sparse
  bool abandoned_ = false;
  size_t kept_ = 0;  // bytes given back whose pages are still there, at most
};

// A peer's arena, in this process. Safe to use from any thread.
class PeerArena {
 public:
  struct Origin {
    std::string name;  // of the peer, in errors
    pid_t pid;
    int fd;
    uint64_t inode;
    size_t first_segment;
    uid_t user;
    bool dumpable;  // others may look into the process
  };
  explicit PeerArena(Origin origin) : origin_(std::move(origin)) {}
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;

  // UnavailableError with the remedy if the peer's memory cannot be opened.
  void check() const { const base::Descriptor opened(open()); }
  // The same; from now on it can be mapped even if the peer's process has ended.
  void hold() { file_ = base::Descriptor(open()); }

  // As check(), and ResourceExhaustedError if the memory cannot be mapped.
  void* at(uint64_t position) const {
    std::byte* base = segments_[segment_of(position)].load(std::memory_order_acquire);
    if (!base) [[unlikely]]
      base = map(segment_of(position));
    return base + offset_of(position);
  }

 private:
  int open() const;
  std::byte* map(size_t segment) const;
  std::byte* mapped(size_t segment) const;  // needs the mutex
  std::string obstacle(int error) const;

  const Origin origin_;
  base::Descriptor file_;
  mutable std::mutex mutex_;
  mutable std::array<std::atomic<std::byte*>, kMostSegments> segments_{};
};

// What tells one memfd of this host from another.
uint64_t inode_of(int fd);

}  // namespace tutti::group
