// SPDX-License-Identifier: Apache-2.0
// The hosts of a job, and the commands that start a worker on each.
#pragma once

#include <string>
#include <vector>

namespace tutti::tools {

inline constexpr int kMostWorkers = 4096;

struct Host {
  std::string name;  // as ssh takes it: "b", "user@b", "fd00::2"
  int workers = 1;
};

// "a,b:4": a host without a number gets one worker. InvalidArgumentError if it is malformed.
std::vector<Host> parse_hosts(const std::string& list);
// Lines "b", "b:4" or "b slots=4", and comments from # on. InvalidArgumentError that names the
// line; NotFoundError if the file cannot be read.
std::vector<Host> read_hostfile(const std::string& path);

bool is_this_machine(const Host& host);  // by name: localhost, or a loopback address
std::string without_user(const std::string& name);

// A worker to be started in a shell on another host.
struct RemoteWorker {
  std::string folder;
  std::vector<std::string> environment;  // "NAME=value"
  std::vector<std::string> command;
  int neighbours = 1;  // workers on that host, which share its cores for OpenMP
};

// The command that a host is given. It tells nothing of the job, since all users there can see it.
extern const char* const kRemoteCommand;
// What it reads: one line, after which every line is the name of a signal for the worker ("TERM").
// Before the worker's own output comes a line that begins_worker() knows.
std::string remote_script(const RemoteWorker& worker);
// The worker's process id on its host; 0 if this is not that line.
int begins_worker(const std::string& line);

}  // namespace tutti::tools
