// SPDX-License-Identifier: Apache-2.0
// Ranks as processes of one host, over shared memory.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/coordination.h"
#include "group/shm/backend.h"

namespace tutti::group {

// What a process tells the others, so that they can reach its memory.
struct ShmHello {
  std::string host = {};        // processes with the same host reach each other's memory
  std::string machine = {};     // its boot
  std::vector<int> cores = {};  // that the process may use
  pid_t pid = 0;
  int fd = -1;  // the rest: of its arena
  uint64_t inode = 0;
  size_t first_segment = 0;
  uid_t user = 0;
  bool dumpable = false;  // others may look into the process
};
ShmHello shm_hello(const std::string& host);
// What the processes of one host have in common, and no others: the boot, and the process ids.
std::string this_host();

struct HostProcesses {
  int rank;                            // the index of this one among them
  std::vector<int> ranks;              // of the job
  std::vector<std::string> addresses;  // and what follows, in the order of `ranks`
  std::vector<ShmHello> hellos;
  const std::atomic<bool>* alarm;  // set when the job fails
  std::function<std::optional<cluster::Failure>()> failure;
};

// Checks that they reach each other's memory, which is mapped when it is first looked at.
// UnimplementedError if one of them is on another host.
HostPeers connect_processes(const HostProcesses& processes);

}  // namespace tutti::group
