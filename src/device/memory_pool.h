// SPDX-License-Identifier: Apache-2.0
// Host memory that is kept for the next tensor when one is done with it.
//
// Allocation in a steady state neither calls the system nor touches a fresh page. The reserve is
// bounded by need: memory that is held, in use or not, exceeds the most that was in use at one time
// by at most a quarter (or `slack` bytes), plus what small blocks leave unused in their slabs.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace tutti::device {

// Thread-safe.
class MemoryPool {
 public:
  // The pool of the host's memory, shared by all logical CPUs. Never destroyed.
  static MemoryPool& host();

  explicit MemoryPool(size_t slack = 64 << 20) : slack_(slack) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // 64-byte aligned memory with unspecified contents. ResourceExhaustedError if the system has
  // none.
  void* allocate(size_t bytes);
  void deallocate(void* data, size_t bytes) noexcept;

  // Gives back to the system all that is not in use, partly used slabs aside.
  void release_cached() noexcept;

  struct Stats {
    size_t in_use = 0;        // bytes handed out, as rounded
    size_t held = 0;          // bytes had from the system
    size_t system_calls = 0;  // times the system was asked for memory
  };
  Stats stats() const;

  static constexpr size_t kLargestSmall = 16 << 10;
  static constexpr size_t kSlab = 256 << 10;

 private:
  struct Slab;

  void* allocate_small(size_t size);
  void* allocate_large(size_t bytes);
  size_t deallocate_small(void* data) noexcept;
  size_t deallocate_large(void* data) noexcept;
  void* map(size_t bytes, size_t alignment);
  void unmap(void* data, size_t bytes) noexcept;
  void make_room(size_t bytes) noexcept;
  void shrink_to(size_t target) noexcept;

  const size_t slack_;
  mutable std::mutex mutex_;
  std::map<size_t, std::vector<Slab*>> open_slabs_;  // with blocks left, by block size
  std::vector<Slab*> empty_slabs_;                   // for blocks of any size
  std::multimap<size_t, void*> free_large_;          // by size
  std::map<void*, size_t> used_large_;               // sizes
  size_t most_in_use_ = 0;
  Stats stats_;
};

}  // namespace tutti::device
