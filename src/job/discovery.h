// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a job are, and what moves data between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "job/bootstrap.h"
#include "job/hello.h"
#include "job/link.h"

namespace tutti::group {

struct Placement {
  std::vector<std::string> hosts;     // of each rank; those with the same share memory
  std::vector<std::string> machines;  // the same, even if TUTTI_BACKEND makes each rank a host
  std::vector<int> local;             // the ranks that share memory with this one, itself included
  bool crowded = false;               // this machine has more ranks than cores
};
Placement place_ranks(const std::vector<Hello>& hellos, int rank);

// Whether there are two cores for each rank on the machine of this one, which may use two.
bool have_two_cores(const std::vector<Hello>& hellos, int rank);

// How this rank is connected.
TransportOptions transport_options(const Bootstrap& bootstrap);

// The transport that this network asks for and that can be loaded. Null: none, or TUTTI_BACKEND
// decides.
const RegisteredTransport* preferred_transport(Bootstrap& bootstrap,
                                               const TransportOptions& options);

// What all ranks use between hosts: the transport that TUTTI_BACKEND names, the one that all of
// them prefer, or the first of the table. InvalidArgumentError if TUTTI_BACKEND differs.
const RegisteredTransport& choose_transport(const std::vector<Hello>& hellos);

// Connects this rank with all others; a collective.
std::unique_ptr<Transport> connect(const RegisteredTransport& transport, Bootstrap& bootstrap,
                                   const TransportOptions& options, Link& link);

}  // namespace tutti::group
