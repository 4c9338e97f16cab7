// SPDX-License-Identifier: Apache-2.0
#include "base/idle_cores.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/world.h"

namespace tutti::base {

namespace {

thread_local bool in_background = false;

// Threads that run or are ready to, this one among them; 0: unknown.
long running_threads() {
  static const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
  char text[128];
  const ssize_t bytes = file < 0 ? -1 : pread(file, text, sizeof(text), 0);
  if (bytes <= 0) return 0;
  // "0.20 0.18 0.12 1/80 11206"
  const std::string_view all(text, size_t(bytes));
  const size_t slash = all.find('/');
  if (slash == std::string_view::npos) return 0;
  const size_t begin = all.rfind(' ', slash) + 1;
  long running = 0;
  std::from_chars(text + begin, text + slash, running);
  return running;
}

// The same of this process alone.
long own_running_threads() {
  long running = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; it != end && !error;
       it.increment(error)) {
    std::string stat;
    std::ifstream file(it->path() / "stat");
    std::getline(file, stat);
    running += stat.find(") R ") != std::string::npos;
  }
  return running;
}

}  // namespace

bool has_idle_core() {
  static const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (world()) return true;
  if (running_threads() > cores) return false;
  // A launcher may have bound this process to some of them, and the idle ones are others.
  cpu_set_t usable;
  return sched_getaffinity(0, sizeof(usable), &usable) != 0 || CPU_COUNT(&usable) >= cores ||
         own_running_threads() <= CPU_COUNT(&usable);
}

// The threads of a simulation are fibers of the program's own.
void mark_background_thread() { in_background = !world(); }
bool is_background_thread() { return in_background; }

}  // namespace tutti::base
