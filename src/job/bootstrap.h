// SPDX-License-Identifier: Apache-2.0
// How a process enters its job: it finds the coordination service, runs it if that is its task, and
// joins it.
#pragma once

#include <memory>

#include "cluster/coordination.h"
#include "cluster/membership.h"
#include "group/net/registry.h"
#include "job/announcement.h"

namespace tutti::group {

struct Bootstrap {
  cluster::Membership membership = {};              // with what was found out since
  std::unique_ptr<cluster::Service> service = {};   // if this process runs it
  std::unique_ptr<Announcement> announcement = {};  // of the service, until all have joined
  const Rendezvous* rendezvous = nullptr;           // of the launcher's library, if it is in use

  int size() const { return int(membership.addresses.size()); }
  const std::string& address() const { return membership.addresses[size_t(membership.rank)]; }
};

// Learns the address of the service if the membership lacks it, as under mpirun: from MPI, or
// without a module for it from an announcement on this host.
Bootstrap find_service(const cluster::Membership& membership);

// Runs the service if that is this process's task, and joins it.
std::unique_ptr<cluster::Coordination> join_service(Bootstrap& bootstrap);

// The module of a transport for this job, whose rendezvous it notes. FailedPreconditionError if it
// serves jobs of other launchers only, or if its library sees another job than the launcher's.
const TransportModule& load_transport(const RegisteredTransport& transport, Bootstrap& bootstrap);

// ResourceExhaustedError if this process may not open `more` files.
void expect_descriptors(int more, const Bootstrap& bootstrap);

}  // namespace tutti::group
