// What the workers of a job write, line by line, with the rank before each line. Not thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace tutti::tools {

// The launcher's own stdout or stderr. Never blocks: what the reader does not take yet is kept, and
// whoever adds lines stops while it is full.
class Sink {
 public:
  explicit Sink(int fd);

  int fd() const { return fd_; }
  bool is_terminal() const { return terminal_; }
  bool pending() const { return written_ < text_.size(); }
  bool full() const { return text_.size() - written_ >= 256 << 10; }
  bool broken() const { return broken_; }  // nobody reads it any more; lines are dropped

  void add(std::string_view prefix, std::string_view line);  // and ends the line
  void write();                                              // as much as the reader takes now
  void drop();                                               // forgets what is pending

 private:
  int fd_;
  bool terminal_;
  bool broken_ = false;
  std::string text_;
  size_t written_ = 0;
};

// One worker's stdout or stderr, cut into lines. A line of more than 64 KiB goes out in pieces,
// each on a line of its own.
class Lines {
 public:
  Lines(int rank, Sink& sink);

  Sink& sink() const { return *sink_; }
  // Sees every line first; one for which it returns true goes no further.
  void watch(std::function<bool(const std::string&)> taken) { taken_ = std::move(taken); }
  void add(std::string_view bytes);
  void finish();  // the last line may lack its end

 private:
  void pass_on();

  Sink* sink_;
  std::string prefix_;
  std::function<bool(const std::string&)> taken_;
  std::string line_;        // its beginning
  bool continued_ = false;  // pieces of it are out already
};

}  // namespace tutti::tools
