// SPDX-License-Identifier: Apache-2.0
#include "device/memory_pool.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <tutti/error.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  // how GCC says it
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) ((void)(data), (void)(bytes))
#endif

namespace tutti::device {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2 << 20;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Eight classes per doubling, so at most an eighth is lost.
size_t size_class(size_t bytes) {
  if (bytes <= 512) return round_up(bytes, 64);
  return round_up(bytes, std::bit_ceil(bytes) / 16);
}

}  // namespace

// Blocks of one size, cut from an aligned piece of memory whose first bytes are this header; so a
// block finds its slab by its address. Blocks that were never used are not listed, since listing
// them would touch their pages.
struct alignas(64) MemoryPool::Slab {
  size_t block_size = 0;
  size_t used = 0;
  size_t fresh = sizeof(Slab);  // offset of the first block that was never used
  void* free = nullptr;         // the first free block; each starts with the address of the next

  static Slab* of(void* block) { return reinterpret_cast<Slab*>(uintptr_t(block) / kSlab * kSlab); }
  bool full() const { return !free && fresh + block_size > kSlab; }
};

MemoryPool& MemoryPool::host() {
  static MemoryPool* const pool = new MemoryPool;  // tensors may outlive static destructors
  return *pool;
}

MemoryPool::~MemoryPool() { release_cached(); }

void* MemoryPool::allocate(size_t bytes) {
  if (bytes > size_t(PTRDIFF_MAX) - kHugePage)
    throw ResourceExhaustedError(fmt::format("cannot allocate {} bytes of host memory", bytes));
  bytes = std::max<size_t>(bytes, 1);
  std::lock_guard lock(mutex_);
  void* data = bytes <= kLargestSmall ? allocate_small(size_class(bytes))
                                      : allocate_large(round_up(bytes, kPage));
  most_in_use_ = std::max(most_in_use_, stats_.in_use);
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  return data;
}

void MemoryPool::deallocate(void* data, size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  const size_t size = bytes <= kLargestSmall ? deallocate_small(data) : deallocate_large(data);
  ASAN_POISON_MEMORY_REGION(data, size);
  stats_.in_use -= size;
}

void* MemoryPool::allocate_small(size_t size) {
  std::vector<Slab*>& open = open_slabs_[size];
  if (open.empty()) {
    if (empty_slabs_.empty()) {
      make_room(kSlab);
      void* const memory = map(kSlab, kSlab);
      ASAN_UNPOISON_MEMORY_REGION(memory, sizeof(Slab));
      empty_slabs_.push_back(new (memory) Slab);
    }
    open.push_back(empty_slabs_.back());
    empty_slabs_.pop_back();
    open.back()->block_size = size;
    open.back()->fresh = sizeof(Slab);
    open.back()->free = nullptr;
  }
  Slab& slab = *open.back();
  void* data;
  if (slab.free) {
    data = slab.free;
    ASAN_UNPOISON_MEMORY_REGION(data, sizeof slab.free);
    std::memcpy(&slab.free, data, sizeof slab.free);
  } else {
    data = reinterpret_cast<std::byte*>(&slab) + slab.fresh;
    slab.fresh += size;
  }
  ++slab.used;
  if (slab.full()) open.pop_back();
  stats_.in_use += size;
  return data;
}

size_t MemoryPool::deallocate_small(void* data) noexcept {
  Slab& slab = *Slab::of(data);
  std::vector<Slab*>& open = open_slabs_[slab.block_size];
  if (slab.full()) open.push_back(&slab);
  ASAN_UNPOISON_MEMORY_REGION(data, sizeof slab.free);  // the block may be smaller than a pointer
  std::memcpy(data, &slab.free, sizeof slab.free);
  slab.free = data;
  if (--slab.used == 0) {
    open.erase(std::ranges::find(open, &slab));
    empty_slabs_.push_back(&slab);
  }
  return slab.block_size;
}

void* MemoryPool::allocate_large(size_t bytes) {
  void* data;
  size_t size = bytes;
  if (const auto found = free_large_.lower_bound(bytes);
      found != free_large_.end() && found->first - bytes <= bytes / 8) {
    std::tie(size, data) = *found;
    free_large_.erase(found);
  } else {
    make_room(bytes);
    data = map(bytes, bytes >= kHugePage ? kHugePage : kPage);
  }
  used_large_.emplace(data, size);
  stats_.in_use += size;
  return data;
}

size_t MemoryPool::deallocate_large(void* data) noexcept {
  const auto found = used_large_.find(data);
  const size_t size = found->second;
  used_large_.erase(found);
  free_large_.emplace(size, data);
  return size;
}

// Before the system is asked for more: gives back what the bound does not allow to be kept beside
// it.
void MemoryPool::make_room(size_t bytes) noexcept {
  const size_t most = std::max(most_in_use_, stats_.in_use + bytes);
  const size_t bound = most + std::max(most / 4, slack_);
  shrink_to(bound > bytes ? bound - bytes : 0);
}

// The largest blocks go first: they are the least likely to be asked for again in just this size.
void MemoryPool::shrink_to(size_t target) noexcept {
  while (stats_.held > target && !free_large_.empty()) {
    const auto largest = std::prev(free_large_.end());
    unmap(largest->second, largest->first);
    free_large_.erase(largest);
  }
  while (stats_.held > target && !empty_slabs_.empty()) {
    unmap(empty_slabs_.back(), kSlab);
    empty_slabs_.pop_back();
  }
}

void MemoryPool::release_cached() noexcept {
  std::lock_guard lock(mutex_);
  most_in_use_ = stats_.in_use;
  shrink_to(0);
}

// Blocks of some size start on a huge page and ask for them, which more than halves the time of the
// first touch and of address translation afterwards. The block's end is not rounded up, so no page
// is backed that was not asked for.
void* MemoryPool::map(size_t bytes, size_t alignment) {
  const size_t mapped = bytes + alignment - kPage;
  ++stats_.system_calls;
  const auto ask = [&] {
    return mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  };
  void* raw = ask();
  if (raw == MAP_FAILED) {  // giving back the reserve may make room
    shrink_to(0);
    raw = ask();
  }
  if (raw == MAP_FAILED)
    throw ResourceExhaustedError(
        fmt::format("cannot allocate {} bytes of host memory: {}", bytes, std::strerror(errno)));
  std::byte* const begin = static_cast<std::byte*>(raw);
  std::byte* const data = begin + (round_up(uintptr_t(begin), alignment) - uintptr_t(begin));
  if (data != begin) munmap(begin, size_t(data - begin));
  const size_t tail = size_t(begin + mapped - (data + bytes));
  if (tail) munmap(data + bytes, tail);
  if (alignment == kHugePage) madvise(data, bytes, MADV_HUGEPAGE);
  ASAN_POISON_MEMORY_REGION(data, bytes);
  stats_.held += bytes;
  return data;
}

void MemoryPool::unmap(void* data, size_t bytes) noexcept {
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  munmap(data, bytes);
  stats_.held -= bytes;
}

MemoryPool::Stats MemoryPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace tutti::device
