// SPDX-License-Identifier: Apache-2.0
// A process beside the launcher that ends the workers if the launcher is killed.
#pragma once

#include <sys/types.h>

#include <string>

#include "fd.h"

namespace tutti::tools {

// Not thread-safe.
class Guard {
 public:
  // Forks, so call it before any thread starts. `mark` is "NAME=VALUE": processes are ended if
  // their environment holds it, or it with "/" and more behind, as that of a launcher within the
  // job does.
  explicit Guard(const std::string& mark);
  ~Guard();  // ends the guard alone
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  pid_t pid() const { return pid_; }
  void watch(pid_t group) { tell(group); }  // `group` is a worker's process group
  void forget() { tell(kForget); }          // the groups are gone; their ids may be reused

 private:
  static constexpr pid_t kForget = 0, kEnd = -1;

  [[noreturn]] static void stand_by(int launcher, const std::string& mark);
  void tell(pid_t message);

  pid_t pid_ = 0;
  Fd pipe_;
};

}  // namespace tutti::tools
