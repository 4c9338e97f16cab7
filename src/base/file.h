// SPDX-License-Identifier: Apache-2.0
// Writes files as a whole or not at all, without dying of SIGXFSZ.
#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <string_view>

namespace tutti::base {

// While it lives, a write of this thread past the limit on file sizes (`ulimit -f`) is an error,
// EFBIG, and not a SIGXFSZ that ends the process. What the process does with signals stays as it
// is; so does errno.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal();
  ~NoFileSizeSignal();
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;

 private:
  sigset_t before_;
  bool pending_;  // SIGXFSZ was pending before, so it is not ours to take
};

// Writes all of the text. False, with errno, if it cannot. Never raises SIGXFSZ.
bool write_all(int fd, std::string_view text);

// The text of strerror; for a file that is too large it names the limit.
std::string why_not_written(int error);

// Is the open file `fd` what `path` names?
bool is_at(int fd, const std::string& path);

// A file that appears under its name as a whole or not at all: it is written to a temporary file
// beside it, path.tmp.*, which is synchronised to the disk and renamed. The temporary file is
// locked while it is written, so that leftovers of dead writers can be told from it; they are
// removed before a new one is made. UnavailableError, naming the file, if the system refuses.
class NewFile {
 public:
  explicit NewFile(std::string path);
  ~NewFile();  // removes what was not committed
  NewFile(const NewFile&) = delete;

  void write(std::string_view text);
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  int fd_ = -1;
};

// Removes the temporary files in `folder` that writers of the files with these names left behind.
void remove_leftovers(const std::string& folder,
                      const std::function<bool(const std::string& name)>& of);

}  // namespace tutti::base
