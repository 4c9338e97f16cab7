// SPDX-License-Identifier: Apache-2.0
// What each process of a job tells the others when it joins.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "group/shm/processes.h"

namespace tutti::group {

struct TimelineHello {
  bool enabled = false;  // the rest: if so
  int64_t epoch = 0;     // timeline_epoch_ns()
  std::string run = {};  // names this run of the job
  std::string clock =
      {};  // with the boot, what processes with the same steady clock have in common
};

struct Hello {
  ShmHello memory = {};
  std::string local = {};  // memory.host, even if TUTTI_BACKEND makes every rank a host of its own
  std::string hostname = {};   // the name that the machine has for itself
  bool host_is_named = false;  // by TUTTI_HOST_ID
  int stragglers = 0;          // TUTTI_STRAGGLERS
  std::string costs = {};      // TUTTI_COSTS
  std::string backend = {};    // TUTTI_BACKEND
  std::string preferred = {};  // the transport that its network asks for; empty: none
  TimelineHello timeline = {};
};

// This process's. `preferred` and `timeline` are left to the caller.
Hello own_hello(int rank);

// Every rank reads those of all others, so they are not text. DataLossError if `bytes` are none.
std::string to_bytes(const Hello& hello);
Hello from_bytes(std::string_view bytes);

std::string machine_name();

}  // namespace tutti::group
