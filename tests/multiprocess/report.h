// SPDX-License-Identifier: Apache-2.0
// What a worker tells the driver: lines of tab-separated fields on an inherited pipe, one write
// each, so that they arrive whole and in order. When the pipe ends, all processes of the job have.
#pragma once

#include <malloc.h>
#include <tutti/error.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <typeinfo>

namespace tutti::testing {

inline std::string class_of(const Error& error) {
  const auto is = [&](const std::type_info& type) { return typeid(error) == type; };
  if (is(typeid(UnavailableError))) return "UnavailableError";
  if (is(typeid(DeadlineExceededError))) return "DeadlineExceededError";
  if (is(typeid(InvalidArgumentError))) return "InvalidArgumentError";
  if (is(typeid(FailedPreconditionError))) return "FailedPreconditionError";
  if (is(typeid(UnauthenticatedError))) return "UnauthenticatedError";
  if (is(typeid(AbortedError))) return "AbortedError";
  if (is(typeid(ResourceExhaustedError))) return "ResourceExhaustedError";
  return typeid(error).name();
}

// event, rank, process, CLOCK_MONOTONIC in nanoseconds, subject, text.
inline void report(const std::string& event, int rank, const std::string& subject = "",
                   std::string text = "") {
  static const char* const descriptor = std::getenv("TUTTI_TEST_REPORT");
  if (!descriptor) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  text.resize(std::min<size_t>(text.size(), 3000));  // less than PIPE_BUF in all
  for (char& c : text)
    if (c == '\n' || c == '\t') c = ' ';
  const std::string line = event + "\t" + std::to_string(rank) + "\t" + std::to_string(getpid()) +
                           "\t" + std::to_string(now.tv_sec * 1'000'000'000 + now.tv_nsec) + "\t" +
                           subject + "\t" + text + "\n";
  if (write(std::atoi(descriptor), line.data(), line.size()) != ssize_t(line.size())) std::abort();
}

inline void report(const std::string& event, int rank, const Error& error) {
  report(event, rank, class_of(error), error.what());
}

// Memory and descriptors of this process. What malloc holds free is no part of it: how much that is
// depends on how the ranks fall out of step.
inline void report_usage(const std::string& when, int rank) {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kilobytes = 0;
  while (status >> word)
    if (word == "VmRSS:") status >> kilobytes;
  kilobytes -= int64_t(mallinfo2().fordblks >> 10);
  const std::filesystem::directory_iterator files("/proc/self/fd");
  report(when, rank, std::to_string(kilobytes),
         std::to_string(std::distance(begin(files), end(files))));
}

}  // namespace tutti::testing
