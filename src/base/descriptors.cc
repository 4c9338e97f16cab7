// SPDX-License-Identifier: Apache-2.0
#include "base/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <tutti/error.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

namespace tutti::base {

namespace {

rlim_t most_descriptors() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// The open descriptors, without the one that counting them takes.
rlim_t open_descriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  if (error) return out_of_descriptors(error.value()) ? most_descriptors() : 0;
  return rlim_t(std::distance(begin(all), end(all))) - 1;
}

}  // namespace

void expect_descriptors(int more, const std::string& what) {
  const rlim_t open = open_descriptors(), most = most_descriptors(), needed = open + rlim_t(more);
  if (needed <= most) return;
  throw ResourceExhaustedError(
      fmt::format("{} needs about {} descriptors in this process, of which {} are open, and "
                  "ulimit -n allows {}: raise it, as in ulimit -n {}",
                  what, needed, open, most, std::bit_ceil(needed)));
}

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

std::string describe_out_of_descriptors(int error) {
  const std::string reason = std::generic_category().message(error);
  if (error == ENFILE) return reason + ": the whole system has no more, see fs.file-max";
  return fmt::format("{}: {} are open, and ulimit -n allows {}: raise it", reason,
                     open_descriptors(), most_descriptors());
}

}  // namespace tutti::base
