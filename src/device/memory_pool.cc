#include "device/memory_pool.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <tutti/error.h>

#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>

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

MemoryPool& MemoryPool::host() {
  static MemoryPool* const pool = new MemoryPool;  // tensors may outlive static destructors
  return *pool;
}

MemoryPool::~MemoryPool() {
  release_cached();
  for (void* slab : slabs_) unmap(slab, kSlab);
}

void* MemoryPool::allocate(size_t bytes) {
  if (bytes == 0) bytes = 1;
  std::lock_guard lock(mutex_);
  void* data = bytes <= kLargestSmall ? allocate_small(size_class(bytes)) : allocate_large(bytes);
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  return data;
}

void* MemoryPool::allocate_small(size_t size) {
  std::vector<void*>& free = small_[size];
  void* data;
  if (!free.empty()) {
    data = free.back();
    free.pop_back();
    stats_.cached -= size;
  } else {
    if (slab_left_ < size) {
      slab_ = static_cast<std::byte*>(map(kSlab));
      slab_left_ = kSlab;
      slabs_.push_back(slab_);
    }
    data = slab_;
    slab_ += size;
    slab_left_ -= size;
  }
  stats_.in_use += size;
  return data;
}

void* MemoryPool::allocate_large(size_t bytes) {
  const size_t wanted = round_up(bytes, kPage);
  void* data = nullptr;
  size_t size = wanted;
  if (const auto found = large_.lower_bound(wanted);
      found != large_.end() && found->first - wanted <= wanted / 8) {
    size = found->first;
    data = found->second;
    large_sizes_.emplace(data, size);
    large_.erase(found);
    stats_.cached -= size;
    large_cached_ -= size;
  } else {
    const size_t needed = stats_.in_use + wanted;
    high_water_ = std::max(high_water_, needed);
    shrink_reserve(high_water_ - needed);
    data = map(wanted);
    large_sizes_.emplace(data, size);
  }
  stats_.in_use += size;
  high_water_ = std::max(high_water_, stats_.in_use);
  return data;
}

void MemoryPool::deallocate(void* data, size_t bytes) noexcept {
  if (bytes == 0) bytes = 1;
  std::lock_guard lock(mutex_);
  if (bytes <= kLargestSmall) {
    const size_t size = size_class(bytes);
    ASAN_POISON_MEMORY_REGION(data, size);
    small_[size].push_back(data);
    stats_.in_use -= size;
    stats_.cached += size;
    return;
  }
  const auto found = large_sizes_.find(data);
  const size_t size = found->second;
  large_sizes_.erase(found);
  ASAN_POISON_MEMORY_REGION(data, size);
  large_.emplace(size, data);
  stats_.in_use -= size;
  stats_.cached += size;
  large_cached_ += size;
}

void MemoryPool::release_cached() noexcept {
  std::lock_guard lock(mutex_);
  high_water_ = stats_.in_use;
  shrink_reserve(0);
}

// The largest blocks go first: they are the least likely to be asked for again in just this size.
void MemoryPool::shrink_reserve(size_t target) noexcept {
  while (large_cached_ > target) {
    const auto largest = std::prev(large_.end());
    unmap(largest->second, largest->first);
    stats_.cached -= largest->first;
    large_cached_ -= largest->first;
    large_.erase(largest);
  }
}

// Blocks of some size start on a huge page and ask for them, which more than halves the time of the
// first touch and of address translation afterwards. The block's end is not rounded up, so no page
// is backed that was not asked for.
void* MemoryPool::map(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  const size_t mapped = bytes + alignment - kPage;
  ++stats_.system_calls;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
  return data;
}

void MemoryPool::unmap(void* data, size_t bytes) noexcept {
  ASAN_UNPOISON_MEMORY_REGION(data, bytes);
  munmap(data, bytes);
}

MemoryPool::Stats MemoryPool::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace tutti::device
