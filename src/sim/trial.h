// SPDX-License-Identifier: Apache-2.0
// One run of a schedule: what each rank saw, and what it should have seen.
#pragma once

#include <tutti/error.h>

#include <optional>
#include <string>
#include <vector>

#include "sim/schedule.h"

namespace tutti::sim {

// Times are from the beginning.
struct Call {
  size_t operation = 0;
  nanoseconds began = {}, ended = {};
  nanoseconds waited = {};  // for what is in the background: since when
  bool is_over = false, is_dropped = false;
  std::optional<ErrorCode> code = {};  // of its error
  std::string error = {};
  uint64_t result = 0;  // a checksum of what it left in memory
};

// What one rank saw.
struct Story {
  enum class Ending { none, left, killed, suspended, absent };
  Ending ending = Ending::none;
  std::optional<nanoseconds> started = {}, joined = {};
  std::vector<Call> calls = {};
  std::optional<Call> again = {};        // after its first error
  std::optional<nanoseconds> done = {};  // with its program
  nanoseconds ended = {};                // its process
  std::optional<ErrorCode> code = {};    // of the error that ended its program
  std::string error = {};
};

struct Trial {
  Schedule schedule = {};
  std::vector<Story> ranks = {};
  std::vector<std::optional<nanoseconds>> injected = {};  // by fault; none: it never came to it
  std::vector<std::string> leaks = {};
  std::vector<std::string> violations = {};  // of the failure contract
  nanoseconds time = {};
  uint64_t hash = 0;
  std::string trace = {};
};

// Runs it, and judges it.
Trial run(const Schedule& schedule, bool traces = false);

// What breaks the contract in docs/failures.md, given what was injected.
std::vector<std::string> judge(const Trial& trial);

// The checksum that a call of this rank must leave, if all goes well.
uint64_t expected_result(const Schedule& schedule, size_t operation, int rank);

// No trial takes longer.
constexpr nanoseconds kLongestTrial = std::chrono::seconds(2000);

}  // namespace tutti::sim
