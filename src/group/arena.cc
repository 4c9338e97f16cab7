#include "group/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tutti/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file.h"

namespace tutti::group {

namespace {

constexpr size_t kLine = 64, kPage = 4096;
constexpr size_t kSmallest = 64 << 20;  // an arena below this is of no use
// Pages of memory that was given back stay for the next tensor, up to this.
constexpr size_t kKeep = 256 << 20;

std::string why() { return std::strerror(errno); }

// As ftruncate, but past the limit on file sizes (ulimit -f) it fails instead of raising SIGXFSZ.
bool resize(int fd, size_t bytes) {
  const base::NoFileSizeSignal quiet;
  return ftruncate(fd, off_t(bytes)) == 0;
}

constexpr size_t rounded_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

uint64_t inode_of(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return 0;
  return uint64_t(status.st_ino) ^ uint64_t(status.st_dev) << 48;
}

Arena& Arena::mine() {
  static Arena* const arena = new Arena;
  return *arena;
}

Arena::Arena() {
  fd_ = memfd_create("tutti", MFD_CLOEXEC);
  if (fd_ < 0) throw ResourceExhaustedError(fmt::format("group: memfd_create: {}", why()));
  size_ = std::max(kSmallest, size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE)));
  // Address space may be limited (ulimit -v).
  void* memory = MAP_FAILED;
  for (; size_ >= kSmallest; size_ /= 2) {
    size_ = size_ / kPage * kPage;
    if (!resize(fd_, size_)) continue;
    memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
    if (memory != MAP_FAILED) break;
  }
  if (memory == MAP_FAILED) {
    const std::string reason = why();
    close(fd_);
    throw ResourceExhaustedError(
        fmt::format("group: cannot map {} MiB of shared memory: {}; ulimit -v and ulimit -f must "
                    "allow that much, {} KiB",
                    kSmallest >> 20, reason, kSmallest >> 10));
  }
  base_ = static_cast<std::byte*>(memory);
  free_[0] = size_;
}

std::byte* Arena::take(size_t bytes, size_t alignment) {
  std::lock_guard lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const size_t offset = it->first, room = it->second;
    const size_t start = rounded_up(offset, alignment);
    if (start - offset > room || room - (start - offset) < bytes) continue;
    free_.erase(it);
    if (start > offset) free_[offset] = start - offset;
    if (offset + room > start + bytes) free_[start + bytes] = offset + room - (start + bytes);
    used_ += bytes;
    kept_ -= std::min(kept_, bytes);
    return base_ + start;
  }
  throw ResourceExhaustedError(fmt::format(
      "group: no room for {} bytes in the shared window, of which {} of {} MiB are used", bytes,
      used_ >> 20, size_ >> 20));
}

void Arena::give_back(std::byte* data, size_t bytes) {
  std::lock_guard lock(mutex_);
  size_t offset = size_t(data - base_);
  used_ -= bytes;
  if (abandoned_) return;
  kept_ += bytes;
  if (kept_ > kKeep) {
    drop_pages(offset, bytes);
    kept_ -= bytes;
  }
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

void Arena::abandon() {
  std::lock_guard lock(mutex_);
  abandoned_ = true;
}

void Arena::drop_pages(size_t offset, size_t bytes) {
  const size_t begin = rounded_up(offset, kPage), end = (offset + bytes) / kPage * kPage;
  if (begin < end)
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(begin), off_t(end - begin));
}

std::shared_ptr<void> Arena::allocate(size_t bytes) {
  bytes = rounded_up(std::max<size_t>(bytes, 1), kLine);
  return {take(bytes, bytes >= kPage ? kPage : kLine),
          [this, bytes](void* data) { give_back(static_cast<std::byte*>(data), bytes); }};
}

std::shared_ptr<void> Arena::allocate_zeroed(size_t bytes) {
  bytes = rounded_up(std::max<size_t>(bytes, 1), kPage);
  std::byte* const data = take(bytes, kPage);
  drop_pages(size_t(data - base_), bytes);
  return {data, [this, bytes](void* p) { give_back(static_cast<std::byte*>(p), bytes); }};
}

PeerArena::PeerArena(pid_t pid, int fd, size_t size, uint64_t inode) : size_(size) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    throw UnavailableError(
        fmt::format("group: cannot open the shared memory of process {} ({}): {}; workers on one "
                    "host must run as the same user, and see each other in /proc",
                    pid, path, why()));
  if (inode_of(file) != inode) {
    close(file);
    throw UnavailableError(
        fmt::format("group: {} is not the shared memory of the worker it belonged to", path));
  }
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  const std::string reason = why();
  close(file);
  if (memory == MAP_FAILED)
    throw ResourceExhaustedError(
        fmt::format("group: cannot map the shared memory of process {}, {} MiB: {}; see ulimit -v",
                    pid, size >> 20, reason));
  base_ = static_cast<std::byte*>(memory);
}

PeerArena::~PeerArena() { munmap(base_, size_); }

}  // namespace tutti::group
