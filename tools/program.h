// SPDX-License-Identifier: Apache-2.0
// What tutti run starts.
#pragma once

#include <string>
#include <vector>

#include "hosts.h"

namespace tutti::tools {

// A program that is started several times.
struct Program {
  int workers = 0;
  std::vector<Host> hosts;       // by rank; empty: all are on this machine
  std::vector<std::string> ssh;  // the command that connects to a host
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value", of --env
  std::string logs;                      // a folder; empty: none
  bool bind = false;                     // workers on this machine to their share of its cores
};

}  // namespace tutti::tools
