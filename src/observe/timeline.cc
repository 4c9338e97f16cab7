#include "observe/timeline.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <tutti/error.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "base/settings.h"

namespace tutti::observe {

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

thread_local Span* innermost = nullptr;

// The file is a JSON array that grows. Every event is flushed, so a killed process leaves what it
// did; viewers accept an array without its closing bracket, which a clean exit writes.
class Writer {
 public:
  explicit Writer(const std::string& path) : file_(std::fopen(path.c_str(), "w")) {
    if (!file_)
      throw UnavailableError(
          fmt::format("TUTTI_TIMELINE={}: cannot write the file: {}", path, std::strerror(errno)));
    // Wall-clock time, so that the files of several processes can be laid side by side.
    offset_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count() -
                 now_ns();
    std::fputs("[", file_);
  }

  void write(const nlohmann::json& event) {
    const std::string text = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    std::lock_guard lock(mutex_);
    if (!file_) return;
    std::fprintf(file_, "%s\n%s", first_ ? "" : ",", text.c_str());
    std::fflush(file_);
    first_ = false;
  }

  void close() {
    std::lock_guard lock(mutex_);
    if (!file_) return;
    std::fputs("\n]\n", file_);
    std::fclose(file_);
    file_ = nullptr;
  }

  int64_t offset_ns() const { return offset_ns_; }

 private:
  std::mutex mutex_;
  std::FILE* file_;
  int64_t offset_ns_ = 0;
  bool first_ = true;
};

Writer* open_writer() {
  const std::string& path = base::settings().timeline;
  if (path.empty()) return nullptr;
  auto* const writer = new Writer(path);
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

bool timeline_enabled() { return writer() != nullptr; }

Span* Span::current() { return innermost; }

void Span::begin(const char* name) {
  name_ = name;
  outer_ = std::exchange(innermost, this);
  start_ns_ = now_ns();
}

void Span::end() {
  const int64_t end_ns = now_ns();
  innermost = outer_;
  nlohmann::json args = nlohmann::json::object();
  for (const auto& [key, value] : texts_) args[key] = value;
  for (const auto& [key, value] : numbers_) args[key] = value;
  writer()->write({{"name", name_},
                   {"cat", "tutti"},
                   {"ph", "X"},
                   {"ts", double(start_ns_ + writer()->offset_ns()) / 1e3},
                   {"dur", double(end_ns - start_ns_) / 1e3},
                   {"pid", getpid()},
                   {"tid", syscall(SYS_gettid)},
                   {"args", std::move(args)}});
}

void Span::set(const char* key, std::string value) { texts_.emplace_back(key, std::move(value)); }
void Span::set(const char* key, int64_t value) { numbers_.emplace_back(key, value); }

}  // namespace tutti::observe
