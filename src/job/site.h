// SPDX-License-Identifier: Apache-2.0
// What a job needs of the machine that its rank runs on; a simulated one has another.
#pragma once

#include <memory>
#include <vector>

#include "group/net/transport.h"
#include "group/shm/processes.h"
#include "job/bootstrap.h"
#include "job/hello.h"
#include "job/host_board.h"
#include "job/job.h"
#include "job/link.h"

namespace tutti::group {

class Site {
 public:
  virtual ~Site() = default;
  // Finds the coordination service, runs it if that is this process's task, and joins it.
  virtual std::unique_ptr<cluster::Coordination> join(Bootstrap& bootstrap) = 0;
  // After that. The board may be null.
  virtual std::unique_ptr<HostBoard> board() = 0;
  virtual Hello hello(int rank) = 0;
  virtual HostPeers share_memory(const HostProcesses& processes, const Bootstrap& bootstrap) = 0;
  // The way to the ranks on other hosts; a collective.
  virtual std::unique_ptr<Transport> connect(const std::vector<Hello>& hellos, Bootstrap& bootstrap,
                                             Link& link) = 0;
  virtual void describe_network(const Bootstrap& bootstrap, JobLayout& layout) = 0;
};

std::unique_ptr<Site> this_machine();

}  // namespace tutti::group
