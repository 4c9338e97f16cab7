// SPDX-License-Identifier: Apache-2.0
#include "group/shm/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tutti/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/descriptors.h"
#include "base/file.h"
#include "base/fork.h"

namespace tutti::group {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kFirstSegment = 64 << 20;
// Pages of memory that was given back stay for the next tensor, up to this.
constexpr size_t kKeep = 256 << 20;

// At the beginning of the first segment: where the peers find the others.
struct Directory {
  struct {
    uint64_t start, bytes;
  } segments[kMostSegments];
};
static_assert(sizeof(Directory) <= kPage);

std::string why() {
  return base::out_of_descriptors(errno) ? base::describe_out_of_descriptors(errno)
                                         : std::strerror(errno);
}

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
  if (fd_ < 0) throw ResourceExhaustedError(fmt::format("group: no shared memory: {}", why()));
  limit_ = std::max(kFirstSegment, size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE)));
  try {
    grow(kPage);
  } catch (...) {
    close(fd_);
    throw;
  }
}

// Adds a segment with room for `bytes`. It doubles the arena if the address space allows that
// (ulimit -v).
void Arena::grow(size_t bytes) {
  const size_t index = count_.load(std::memory_order_relaxed);
  if (index == kMostSegments)
    throw ResourceExhaustedError(
        fmt::format("group: no room for {} bytes in the shared window, which has {} segments "
                    "already",
                    bytes, index));
  const uint64_t start = index ? segments_[index - 1].start + segments_[index - 1].bytes : 0;
  void* memory = MAP_FAILED;
  bytes = rounded_up(bytes, kPage);
  size_t size = std::max({kFirstSegment, size_t(start), bytes});
  while (true) {
    memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, off_t(start));
    if (memory != MAP_FAILED && resize(fd_, start + size)) break;
    const std::string reason = why();
    if (memory != MAP_FAILED) munmap(memory, size);
    if (size == bytes)
      throw ResourceExhaustedError(
          fmt::format("group: cannot map {} MiB of shared memory beside {} MiB: {}; ulimit -v and "
                      "ulimit -f must allow them together, {} KiB",
                      rounded_up(bytes, 1 << 20) >> 20, start >> 20, reason,
                      (start + rounded_up(bytes, 1 << 20)) >> 10));
    size = std::max(bytes, size / 2 / kPage * kPage);
  }
  segments_[index] = {static_cast<std::byte*>(memory), size, start};
  auto* const directory = reinterpret_cast<Directory*>(segments_[0].base);
  directory->segments[index] = {start, size};
  const size_t taken = index ? 0 : sizeof(Directory);
  free_[uint64_t(index) << kOffsetBits | taken] = size - taken;
  count_.store(index + 1, std::memory_order_release);
}

uint64_t Arena::take(size_t bytes, size_t alignment, bool sparse) {
  std::lock_guard lock(mutex_);
  if (!sparse && bytes > limit_ - std::min(used_, limit_))
    throw ResourceExhaustedError(fmt::format(
        "group: no room for {} bytes in the shared window, of which {} of {} MiB are used", bytes,
        used_ >> 20, limit_ >> 20));
  const auto find = [&] {
    return std::ranges::find_if(free_, [&](const auto& room) {
      const size_t skipped = size_t(rounded_up(room.first, alignment) - room.first);
      return skipped <= room.second && bytes <= room.second - skipped;
    });
  };
  auto found = find();
  if (found == free_.end()) {
    grow(bytes);
    found = find();
  }
  const auto [position, room] = *found;
  const uint64_t start = rounded_up(position, alignment);
  free_.erase(found);
  if (start > position) free_[position] = start - position;
  if (position + room > start + bytes) free_[start + bytes] = position + room - (start + bytes);
  if (!sparse) used_ += bytes;
  kept_ -= std::min(kept_, bytes);
  return start;
}

void Arena::give_back(uint64_t position, size_t bytes, bool sparse) {
  if (base::is_forked_child()) return;  // it is the parent's
  std::lock_guard lock(mutex_);
  if (abandoned_) return;
  if (!sparse) used_ -= bytes;
  kept_ += bytes;
  if (kept_ > kKeep) {
    drop_pages(position, bytes);
    kept_ -= bytes;
  }
  auto next = free_.lower_bound(position);
  if (next != free_.end() && next->first == position + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == position) {
      before->second += bytes;
      return;
    }
  }
  free_[position] = bytes;
}

void Arena::abandon() {
  std::lock_guard lock(mutex_);
  abandoned_ = true;
}

void Arena::drop_pages(uint64_t position, size_t bytes) {
  const uint64_t offset = segments_[segment_of(position)].start + offset_of(position);
  const uint64_t begin = rounded_up(offset, kPage), end = (offset + bytes) / kPage * kPage;
  if (begin < end)
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(begin), off_t(end - begin));
}

std::shared_ptr<void> Arena::allocate(size_t bytes) {
  bytes = rounded_up(std::max<size_t>(bytes, 1), kLine);
  const uint64_t position = take(bytes, bytes >= kPage ? kPage : kLine, false);
  return {at(position), [this, position, bytes](void*) { give_back(position, bytes, false); }};
}

std::shared_ptr<void> Arena::allocate_zeroed(size_t bytes) {
  bytes = rounded_up(std::max<size_t>(bytes, 1), kPage);
  const uint64_t position = take(bytes, kPage, true);
  drop_pages(position, bytes);
  return {at(position), [this, position, bytes](void*) { give_back(position, bytes, true); }};
}

// Why the memory cannot be opened, with the remedy.
std::string PeerArena::obstacle(int error) const {
  const bool refused = error == EACCES || error == EPERM;
  if (refused && !origin_.dumpable)
    return "that process is not dumpable, so no other may open its files: its program has file "
           "capabilities, is setuid, or called prctl(PR_SET_DUMPABLE, 0); take those away (setcap "
           "-r), call prctl(PR_SET_DUMPABLE, 1) before the first group is made, or set "
           "TUTTI_BACKEND=tcp on all workers";
  if (refused && origin_.user != geteuid())
    return fmt::format(
        "that process runs as user {} and this one as user {}: workers on one host must run as the "
        "same user",
        origin_.user, geteuid());
  if (refused)
    return "workers on one host must run as the same user and group, with the same capabilities";
  return "that process is gone, or the workers do not see each other in /proc";
}

int PeerArena::open() const {
  const std::string path = fmt::format("/proc/{}/fd/{}", origin_.pid, origin_.fd);
  base::Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0) {
    const int error = errno;
    const std::string text = fmt::format("group: cannot open the shared memory of {} ({}): {}",
                                         origin_.name, path, why());
    if (base::out_of_descriptors(error)) throw ResourceExhaustedError(text);
    throw UnavailableError(fmt::format("{}; {}", text, obstacle(error)));
  }
  if (inode_of(file.get()) != origin_.inode)
    throw UnavailableError(
        fmt::format("group: {} is lost: {} is not its shared memory", origin_.name, path));
  return file.release();
}

std::byte* PeerArena::map(size_t segment) const {
  std::lock_guard lock(mutex_);
  mapped(0);  // where the others are found
  return mapped(segment);
}

std::byte* PeerArena::mapped(size_t segment) const {
  if (std::byte* const base = segments_[segment].load()) return base;
  uint64_t start = 0;
  size_t bytes = origin_.first_segment;
  if (segment) {
    const auto& entry = reinterpret_cast<const Directory*>(segments_[0].load())->segments[segment];
    start = entry.start;
    bytes = entry.bytes;
  }
  const base::Descriptor opened(file_.get() < 0 ? open() : -1);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                            file_.get() < 0 ? opened.get() : file_.get(), off_t(start));
  if (memory == MAP_FAILED)
    throw ResourceExhaustedError(
        fmt::format("group: cannot map the shared memory of {}, {} MiB: {}; see ulimit -v",
                    origin_.name, bytes >> 20, why()));
  segments_[segment].store(static_cast<std::byte*>(memory), std::memory_order_release);
  return static_cast<std::byte*>(memory);
}

PeerArena::~PeerArena() {
  if (std::byte* const first = segments_[0].load()) {
    const auto* const directory = reinterpret_cast<const Directory*>(first);
    for (size_t i = 1; i < kMostSegments; ++i)
      if (std::byte* const base = segments_[i].load()) munmap(base, directory->segments[i].bytes);
    munmap(first, origin_.first_segment);
  }
}

}  // namespace tutti::group
