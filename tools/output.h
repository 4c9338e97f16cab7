// SPDX-License-Identifier: Apache-2.0
// What the workers of a job write, line by line, with the rank before each line. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "fd.h"

namespace tutti::tools {

// The launcher's own stdout or stderr. Never blocks: what the reader does not take yet is kept, and
// the caller adds no lines while it is full.
class Sink {
 public:
  explicit Sink(int fd);

  int fd() const { return fd_; }
  bool is_terminal() const { return terminal_; }
  bool pending() const { return written_ < text_.size(); }
  bool full() const { return text_.size() - written_ >= 256 << 10; }
  bool broken() const { return broken_; }  // its reader is gone; lines are dropped

  void add(std::string_view prefix, std::string_view line);  // appends the end of the line, too
  void write();                                              // as much as the reader takes now
  void drop();                                               // forgets what is pending

 private:
  int fd_;
  bool terminal_;
  bool broken_ = false;
  std::string text_;
  size_t written_ = 0;
};

// A file that gets what a worker writes, unchanged.
class Log {
 public:
  // Empties it, unless it is to be `continued`. std::system_error if it cannot be written.
  Log(const std::string& path, bool continued);

  void add(std::string_view text);
  const std::string& trouble() const { return trouble_; }  // why something is missing in it

 private:
  std::string path_;
  Fd fd_;
  std::string trouble_;
};

// One worker's stdout or stderr, cut into lines. A line of more than 64 KiB goes out in pieces,
// each on a line of its own.
class Lines {
 public:
  Lines(int rank, Sink& sink, std::shared_ptr<Log> log);  // the log may be null

  Sink& sink() const { return *sink_; }
  // Calls `taken` with every line first; one for which it returns true goes no further.
  void watch(std::function<bool(const std::string&)> taken) { taken_ = std::move(taken); }
  void add(std::string_view bytes);
  void finish();  // the last line may lack its end

 private:
  void pass_on(bool whole);

  Sink* sink_;
  std::shared_ptr<Log> log_;
  std::string prefix_;
  std::function<bool(const std::string&)> taken_;
  std::string line_;        // the current one, so far
  bool continued_ = false;  // pieces of it are out already
};

}  // namespace tutti::tools
