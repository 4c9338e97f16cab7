// SPDX-License-Identifier: Apache-2.0
#include "environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/random.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <iterator>
#include <system_error>

extern char** environ;

namespace tutti::tools {

namespace {

constexpr std::string_view kOwn[] = {
    "TF_CONFIG",  "TUTTI_TOKEN", "TUTTI_COORDINATOR", "TUTTI_LAUNCHER", "RANK",
    "WORLD_SIZE", "LOCAL_RANK",  "LOCAL_WORLD_SIZE",  "MASTER_ADDR",    "MASTER_PORT"};

// Sets a variable, replacing its old value.
void set(std::vector<std::string>& environment, const std::string& entry) {
  std::erase_if(environment,
                [&](const std::string& other) { return name_of(other) == name_of(entry); });
  environment.push_back(entry);
}

}  // namespace

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != ssize_t(sizeof(bytes)))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

bool has(const std::vector<std::string>& environment, std::string_view name) {
  return std::ranges::any_of(environment,
                             [&](const std::string& entry) { return name_of(entry) == name; });
}

bool is_own(std::string_view name) { return std::ranges::find(kOwn, name) != std::end(kOwn); }

std::vector<std::string> outer_environment(const Program& program) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry)
    if (!is_own(name_of(*entry))) result.emplace_back(*entry);
  for (const std::string& entry : program.environment) set(result, entry);
  // stdout is a pipe, which Python would buffer.
  if (!has(result, "PYTHONUNBUFFERED")) result.emplace_back("PYTHONUNBUFFERED=1");
  return result;
}

std::vector<std::string> travelling_environment(const Program& program) {
  std::vector<std::string> result;
  for (const std::string& entry : outer_environment(program)) {
    const std::string_view name = name_of(entry);
    const bool travels = (name.starts_with("TUTTI_") && name != "TUTTI_HOST_ID") ||
                         name.starts_with("UCX_") || name == "OMP_NUM_THREADS" ||
                         name == "OMP_WAIT_POLICY" || name == "GOMP_SPINCOUNT" ||
                         name == "PYTHONUNBUFFERED" || has(program.environment, name);
    if (travels &&
        std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      result.push_back(entry);
  }
  return result;
}

}  // namespace tutti::tools
