// SPDX-License-Identifier: Apache-2.0
// Runs the folder's helper program in an environment of its own: settings are read once per
// process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace tutti::testing {

struct ProgramResult {
  int status;  // as the shell sees it: 128 + n if signal n ended it
  std::string output;
};

// `environment` is "NAME=value ..." as a shell takes it.
inline ProgramResult run_program(const std::string& environment, const std::string& arguments) {
  const std::string command =
      environment + " '" + TUTTI_TEST_PROGRAM + "' " + arguments + " 2>&1; exit $?";
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (!pipe) {
    ADD_FAILURE() << "cannot run " << command;
    return {-1, ""};
  }
  ProgramResult result{};
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe))
    result.output.append(buffer, n);
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace tutti::testing
