// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace tutti::tools {

namespace {
constexpr size_t kLongestLine = 64 << 10;
}

Sink::Sink(int fd) : fd_(fd), terminal_(isatty(fd)) {}

void Sink::add(std::string_view prefix, std::string_view line) {
  if (broken_) return;
  text_.append(prefix).append(line).append("\n");
}

void Sink::write() {
  while (pending()) {
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) break;
    // A pipe that is ready takes this much without blocking. We cannot make it non-blocking: it is
    // shared with the process that started us.
    const size_t count = std::min<size_t>(text_.size() - written_, PIPE_BUF);
    const ssize_t done = ::write(fd_, text_.data() + written_, count);
    if (done < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      broken_ = true;
      drop();
      return;
    }
    written_ += size_t(done);
  }
  if (!pending()) {
    drop();
  } else if (written_ > text_.size() / 2) {
    text_.erase(0, written_);
    written_ = 0;
  }
}

void Sink::drop() {
  text_.clear();
  written_ = 0;
}

Log::Log(const std::string& path, bool continued)
    : path_(path),
      fd_(checked(open(path.c_str(),
                       O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (continued ? 0 : O_TRUNC), 0666),
                  ("--logs: cannot write " + path).c_str())) {}

void Log::add(std::string_view text) {
  while (!text.empty() && trouble_.empty()) {
    const ssize_t done = ::write(fd_.get(), text.data(), text.size());
    if (done > 0)
      text.remove_prefix(size_t(done));
    else if (done == 0 || errno != EINTR)
      trouble_ = fmt::format("--logs: cannot write {}: {}", path_, std::strerror(errno));
  }
}

Lines::Lines(int rank, Sink& sink, std::shared_ptr<Log> log) : sink_(&sink), log_(std::move(log)) {
  constexpr int colours[] = {36, 33, 32, 35, 34, 31};
  prefix_ = sink.is_terminal() ? fmt::format("\033[{}m[{}]\033[0m ",
                                             colours[size_t(rank) % std::size(colours)], rank)
                               : fmt::format("[{}] ", rank);
}

void Lines::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t room = kLongestLine - line_.size();
    const size_t end = bytes.substr(0, room).find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view piece = bytes.substr(0, whole ? end : room);
    line_.append(piece);
    bytes.remove_prefix(piece.size() + (whole ? 1 : 0));
    const bool ended_before = whole && line_.empty() && continued_;
    if ((whole && !ended_before) || line_.size() == kLongestLine) pass_on(whole);
    if (ended_before && log_) log_->add("\n");
    continued_ = !whole && (continued_ || line_.empty());
  }
}

void Lines::finish() {
  if (!line_.empty()) pass_on(false);
}

void Lines::pass_on(bool whole) {
  if (!taken_ || !taken_(line_)) {
    sink_->add(prefix_, line_);
    if (whole) line_ += '\n';
    if (log_) log_->add(line_);
  }
  line_.clear();
}

}  // namespace tutti::tools
