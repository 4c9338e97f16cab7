// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <tutti/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

namespace tutti::base {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp.";

sigset_t file_size_signal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXFSZ);
  return set;
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The end of a temporary file's name, as this version makes it or "PID.NUMBER" as earlier ones did.
bool is_ours(std::string_view end) {
  return end.find_first_not_of("0123456789.") == end.npos ||
         (end.size() == 8 && end.find_first_not_of("0123456789abcdef") == end.npos);
}

// False if another process holds the lock. A file system without locks counts as locked;
// remove_leftovers then removes nothing.
bool lock(int fd) { return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

}  // namespace

NoFileSizeSignal::NoFileSizeSignal() {
  const sigset_t ours = file_size_signal();
  sigset_t pending;
  pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  pthread_sigmask(SIG_BLOCK, &ours, &before_);
}

NoFileSizeSignal::~NoFileSizeSignal() {
  const int error = errno;
  const sigset_t ours = file_size_signal();
  const timespec now{};
  if (!pending_) sigtimedwait(&ours, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = error;
}

bool write_all(int fd, std::string_view text) {
  const NoFileSizeSignal quiet;
  while (!text.empty()) {
    const ssize_t done = write(fd, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    text.remove_prefix(size_t(done));
  }
  return true;
}

std::string why_not_written(int error) {
  return fmt::format("{}{}", std::strerror(error),
                     error == EFBIG ? "; raise the limit on file sizes (ulimit -f)" : "");
}

bool is_at(int fd, const std::string& path) {
  struct stat open {
  }, named{};
  return fstat(fd, &open) == 0 && stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

NewFile::NewFile(std::string path) : path_(std::move(path)) {
  const std::string name = fs::path(path_).filename().string();
  remove_leftovers(folder_of(path_), [&](const std::string& other) { return other == name; });
  std::random_device random;
  while (true) {
    temporary_ = fmt::format("{}{}{:08x}", path_, kTemporary, random());
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno == EEXIST) continue;
    if (fd_ < 0) fail("create");
    // Before it was locked, another writer may have taken it for a leftover.
    if (lock(fd_) && is_at(fd_, temporary_)) return;
    close(fd_);
  }
}

NewFile::~NewFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
  close(fd_);  // after the unlink: once unlocked, the name may become another writer's
}

void NewFile::fail(const char* what) const {
  throw UnavailableError(fmt::format("cannot {} {}: {}", what, path_, why_not_written(errno)));
}

void NewFile::write(std::string_view text) {
  if (!write_all(fd_, text)) fail("write");
}

void NewFile::commit() {
  if (fsync(fd_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) fail("write");
  temporary_.clear();
  // Makes the name survive a crash of the machine, too.
  const int folder = open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);
  close(folder);
}

void remove_leftovers(const std::string& folder,
                      const std::function<bool(const std::string& name)>& of) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const size_t at = name.rfind(kTemporary);
    if (at == name.npos || !is_ours(std::string_view(name).substr(at + kTemporary.size())) ||
        !of(name.substr(0, at)))
      continue;
    const int fd = open(it->path().c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    // Under the lock the name cannot become that of a file that is being written.
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_at(fd, it->path())) unlink(it->path().c_str());
    close(fd);
  }
}

}  // namespace tutti::base
