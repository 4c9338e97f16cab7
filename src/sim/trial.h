// SPDX-License-Identifier: Apache-2.0
// One run of a schedule: what each rank saw, and what it should have seen.
#pragma once

#include <tutti/error.h>

#include <optional>
#include <string>
#include <vector>

#include "sim/schedule.h"

namespace tutti::sim {

// One call of an operation. Times are from the beginning of the trial.
struct Call {
  size_t operation = 0;
  nanoseconds began = {}, ended = {};
  nanoseconds waited = {};  // when the rank began to wait for a call in the background
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
  std::optional<Call> again = {};        // a call after its first error
  std::optional<nanoseconds> done = {};  // when its program was over
  nanoseconds ended = {};                // when its process ended
  std::optional<ErrorCode> code = {};    // of the error that ended its program
  std::string error = {};
};

struct Trial {
  Schedule schedule = {};
  std::vector<Story> ranks = {};
  std::vector<std::optional<nanoseconds>> injected = {};  // by fault; empty if it never happened
  std::vector<std::string> leaks = {};
  std::vector<std::string> violations = {};  // of the failure contract
  nanoseconds time = {};
  uint64_t hash = 0;
  std::string trace = {};
};

// Runs a schedule, and judges the trial.
Trial run(const Schedule& schedule, bool traces = false);

// What breaks the contract in docs/failures.md, given what was injected.
std::vector<std::string> judge(const Trial& trial);

// The checksum of this rank's call, if all goes well.
uint64_t expected_result(const Schedule& schedule, size_t operation, int rank);

// No trial takes longer.
constexpr nanoseconds kLongestTrial = std::chrono::seconds(2000);

}  // namespace tutti::sim
