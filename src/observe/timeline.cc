// SPDX-License-Identifier: Apache-2.0
#include "observe/timeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <tutti/error.h>
#include <tutti/span.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/world.h"

namespace tutti::observe {

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

thread_local Span* innermost = nullptr;

// trace.json marked with "rank2" is trace.rank2.json. What is no file (/dev/null) keeps its name.
std::string marked(const std::string& path, const std::string& word) {
  const std::filesystem::path whole(path);
  std::error_code ignored;
  if (std::filesystem::is_other(whole, ignored)) return path;
  return (whole.parent_path() /
          fmt::format("{}.{}{}", whole.stem().string(), word, whole.extension().string()))
      .string();
}

[[noreturn]] void unwritable(const std::string& path, int error) {
  throw UnavailableError(
      fmt::format("TUTTI_TIMELINE={}: cannot write the file: {}", path, std::strerror(error)));
}

// A disk that is full costs the timeline, not the job.
void warn(const std::string& what) {
  base::log(base::LogLevel::warning, fmt::format("TUTTI_TIMELINE: {}", what));
}

constexpr int kTaken = -1, kNoSpace = -2;  // in place of a file descriptor

// Opens a file for this process alone; kTaken if another one is writing it, kNoSpace if the disk is
// full.
int open_alone(const std::string& path) {
  while (true) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 && (errno == ENOSPC || errno == EDQUOT)) {
      warn(fmt::format("cannot write {}: {}; there is no timeline", path, std::strerror(errno)));
      return kNoSpace;
    }
    if (fd < 0) unwritable(path, errno);
    struct stat mine {};
    if (fstat(fd, &mine) != 0 || !S_ISREG(mine.st_mode)) return fd;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      close(fd);
      return kTaken;
    }
    // Another process may have renamed it since we opened it.
    const bool named = base::is_at(fd, path);
    if (named && ftruncate(fd, 0) == 0) return fd;
    const int error = errno;
    close(fd);
    if (named) unwritable(path, error);
  }
}

std::mutex naming;
int named_after = -1;  // the rank; under `naming`

// The file is a JSON array that grows, with a line for each event. Every event is written at once,
// so a killed process leaves what it did; viewers accept an array without its closing bracket,
// which a clean exit writes. A forked child writes nothing: the file is its parent's.
class Writer {
 public:
  explicit Writer(const std::string& path) : path_(path) {
    fd_ = open_alone(path_);
    if (fd_ == kTaken) {
      path_ = marked(path_, fmt::format("pid{}", getpid()));
      fd_ = open_alone(path_);
    }
    if (fd_ == kTaken)
      throw UnavailableError(
          fmt::format("TUTTI_TIMELINE={}: another process writes {}", path, path_));
    // Wall-clock time, so that the files of several processes can be laid side by side.
    offset_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count() -
                 now_ns();
    append("[");
  }

  void write(const nlohmann::json& event) {
    if (is_other_process()) return;
    const std::string text = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    std::lock_guard lock(mutex_);
    append(fmt::format("{}\n{}", first_ ? "" : ",", text));
    first_ = false;
  }

  void close() {
    if (is_other_process()) return;
    std::lock_guard lock(mutex_);
    append("\n]\n");
    end();
  }

  void rename(const std::string& path) {
    if (is_other_process()) return;
    std::lock_guard lock(mutex_);
    if (fd_ < 0 || path == path_) return;
    if (std::rename(path_.c_str(), path.c_str()) != 0)
      return warn(fmt::format("{} keeps its name: cannot rename it to {}: {}", path_, path,
                              std::strerror(errno)));
    path_ = path;
  }

  int64_t offset_ns() const { return offset_ns_; }

 private:
  // Asked before the mutex is taken, which another thread may have held at the fork.
  bool is_other_process() const { return getpid() != process_; }

  // After a failure nothing more is written, and the file ends with its last complete event.
  void append(const std::string& text) {
    if (fd_ < 0) return;
    if (base::write_all(fd_, text)) {
      written_ += off_t(text.size());
      return;
    }
    warn(fmt::format("cannot write {}: {}; it ends here, and the job goes on", path_,
                     base::why_not_written(errno)));
    (void)!ftruncate(fd_, written_);
    end();
  }

  void end() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::string path_;
  int fd_ = -1;
  off_t written_ = 0;
  int64_t offset_ns_ = 0;
  bool first_ = true;
};

Writer* opened = nullptr;  // under `naming`

Writer* open_writer() {
  const std::string& path = base::settings().timeline;
  if (path.empty()) return nullptr;
  std::lock_guard lock(naming);
  auto* const writer =
      new Writer(named_after < 0 ? path : marked(path, fmt::format("rank{}", named_after)));
  opened = writer;
  static Writer* closed_at_exit;
  closed_at_exit = writer;
  std::atexit([] { closed_at_exit->close(); });
  return writer;
}

Writer* writer() {
  static Writer* const instance = open_writer();
  return instance;
}

}  // namespace

bool timeline_enabled() { return writer() != nullptr && !base::world(); }

int64_t timeline_epoch_ns() { return timeline_enabled() ? writer()->offset_ns() : 0; }

void name_timeline_after(int rank) {
  if (base::settings().timeline.empty()) return;
  std::lock_guard lock(naming);
  named_after = rank;
  if (opened) opened->rename(marked(base::settings().timeline, fmt::format("rank{}", rank)));
}

void describe_timeline(const TimelinePart& part) {
  if (!timeline_enabled()) return;
  const auto write = [](const char* name, nlohmann::json args) {
    writer()->write({{"name", name}, {"ph", "M"}, {"pid", getpid()}, {"args", std::move(args)}});
  };
  write("process_name", {{"name", fmt::format("rank {} ({})", part.rank, part.host)}});
  write(kTimelinePart, {{"rank", part.rank},
                        {"ranks", part.ranks},
                        {"host", part.host},
                        {"job", part.job},
                        {"add_us", double(part.add_ns) / 1e3},
                        {"error_us", double(part.error_ns) / 1e3}});
}

namespace {

// A part of this thread's time, from `start_ns` on the steady clock until now.
void write_span(std::string_view name, int64_t start_ns, nlohmann::json args) {
  const int64_t end_ns = now_ns();
  writer()->write({{"name", name},
                   {"cat", "tutti"},
                   {"ph", "X"},
                   {"ts", double(start_ns + writer()->offset_ns()) / 1e3},
                   {"dur", double(end_ns - start_ns) / 1e3},
                   {"pid", getpid()},
                   {"tid", syscall(SYS_gettid)},
                   {"args", std::move(args)}});
}

}  // namespace

Span* Span::current() { return innermost; }

void Span::begin(const char* name) {
  name_ = name;
  outer_ = std::exchange(innermost, this);
  start_ns_ = now_ns();
}

void Span::end() {
  innermost = outer_;
  nlohmann::json args = nlohmann::json::object();
  for (const auto& [key, value] : texts_) args[key] = value;
  for (const auto& [key, value] : numbers_) args[key] = value;
  write_span(name_, start_ns_, std::move(args));
}

void Span::set(const char* key, std::string value) { texts_.emplace_back(key, std::move(value)); }
void Span::set(const char* key, int64_t value) { numbers_.emplace_back(key, value); }

}  // namespace tutti::observe

namespace tutti {

struct Span::Open {
  std::string name;
  nlohmann::json args = nlohmann::json::object();
  int64_t start_ns = observe::now_ns();
};

Span::Span(std::string_view name) {
  if (observe::timeline_enabled()) open_.reset(new Open{.name = std::string(name)});
}

Span::~Span() {
  if (open_) observe::write_span(open_->name, open_->start_ns, std::move(open_->args));
}

void Span::set(std::string_view key, std::string_view value) {
  if (open_) open_->args[std::string(key)] = value;
}
void Span::set_integer(std::string_view key, int64_t value) {
  if (open_) open_->args[std::string(key)] = value;
}
void Span::set_number(std::string_view key, double value) {
  if (open_) open_->args[std::string(key)] = value;
}

}  // namespace tutti
