// Memory of this process that its peers on the same host map into theirs.
//
// One memfd for all groups: it has no name, so nothing is left when the process is killed, and it
// does not count against /dev/shm. It is as large as the machine's memory; pages come when they are
// touched. Peers map all of it once, so that an offset is enough to find anything.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace tutti::group {

// Safe to use from any thread.
class Arena {
 public:
  // Never destroyed: tensors may outlive every group.
  static Arena& mine();

  int fd() const { return fd_; }
  size_t size() const { return size_; }
  uint64_t offset_of(const void* data) const {
    return uint64_t(static_cast<const std::byte*>(data) - base_);
  }
  std::byte* at(uint64_t offset) const { return base_ + offset; }
  bool contains(const void* data, size_t bytes) const {
    const auto* const p = static_cast<const std::byte*>(data);
    return p >= base_ && p < base_ + size_ && bytes <= size_t(base_ + size_ - p);
  }

  // From now on nothing that is given back is used again.
  void abandon();

  // ResourceExhaustedError where there is no room.
  std::shared_ptr<void> allocate(size_t bytes);         // on a line of its own
  std::shared_ptr<void> allocate_zeroed(size_t bytes);  // on pages of its own

 private:
  Arena();
  std::byte* take(size_t bytes, size_t alignment);
  void give_back(std::byte* data, size_t bytes);
  void drop_pages(size_t offset, size_t bytes);

  int fd_ = -1;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset to bytes, no two of them adjacent
  size_t used_ = 0;
  bool abandoned_ = false;
  size_t kept_ = 0;  // bytes given back whose pages are still there, at most
};

// A peer's arena, in this process.
class PeerArena {
 public:
  // UnavailableError with the remedy where it cannot be mapped.
  PeerArena(pid_t pid, int fd, size_t size, uint64_t inode);
  ~PeerArena();
  PeerArena(const PeerArena&) = delete;

  void* at(uint64_t offset) const { return base_ + offset; }

 private:
  std::byte* base_;
  size_t size_;
};

// What tells one memfd of this host from another.
uint64_t inode_of(int fd);

}  // namespace tutti::group
