// SPDX-License-Identifier: Apache-2.0
// One attempt at a job, from the first worker's start to the last one's end.
#pragma once

#include <string>

#include "fd.h"
#include "guard.h"
#include "output.h"
#include "program.h"

namespace tutti::tools {

// What all attempts have in common.
struct Launcher {
  Fd& signals;
  Sink& out;
  Sink& err;
  Guard& guard;
  const std::string& mark;  // in the environment of all that the workers start
};

struct Outcome {
  int code = 0;
  bool again = false;  // whether a restart may help
};

// `number`: 1 for the first. Starts the workers, hosts their coordination service, passes on what
// they write and the signals we get, and says why the job failed.
Outcome attempt(const Program& program, const Launcher& launcher, int number);

}  // namespace tutti::tools
