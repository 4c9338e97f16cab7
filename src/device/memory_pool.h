// Host memory that is kept for the next tensor when one is done with it.
//
// Allocation in a steady state neither calls the system nor touches a fresh page. The reserve is
// bounded by need: memory in use plus memory kept never exceeds the most that was in use at one
// time.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace tutti::device {

class MemoryPool {
 public:
  // The pool of the host's memory, shared by all logical CPUs. Never destroyed.
  static MemoryPool& host();

  MemoryPool() = default;
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // 64-byte aligned memory with unspecified contents. ResourceExhaustedError where the system has
  // none.
  void* allocate(size_t bytes);
  void deallocate(void* data, size_t bytes) noexcept;

  // Gives all large blocks in reserve back to the system.
  void release_cached() noexcept;

  struct Stats {
    size_t in_use = 0;        // bytes handed out, as rounded
    size_t cached = 0;        // bytes in reserve
    size_t system_calls = 0;  // times the system was asked for memory
  };
  Stats stats() const;

 private:
  static constexpr size_t kLargestSmall = 64 << 10;
  static constexpr size_t kSlab = 256 << 10;

  void* allocate_small(size_t bytes);
  void* allocate_large(size_t bytes);
  void* map(size_t bytes);
  void unmap(void* data, size_t bytes) noexcept;
  void shrink_reserve(size_t target) noexcept;

  mutable std::mutex mutex_;
  std::map<size_t, std::vector<void*>> small_;  // by size class
  std::multimap<size_t, void*> large_;          // by size
  std::map<void*, size_t> large_sizes_;         // of the large blocks in use
  std::vector<void*> slabs_;
  std::byte* slab_ = nullptr;
  size_t slab_left_ = 0;
  size_t high_water_ = 0;
  size_t large_cached_ = 0;
  Stats stats_;
};

}  // namespace tutti::device
