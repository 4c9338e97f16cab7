// SPDX-License-Identifier: Apache-2.0
// Where the workers of a job run: their hosts and addresses, and their shares of the cores.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

#include "hosts.h"

namespace tutti::tools {

// The host of a rank and its place there.
struct Place {
  std::string address;
  bool here = true;                // on this machine
  int local_rank = 0, locals = 1;  // among the workers of its host
};

// Workers on several hosts. Nothing listens at their ports, since the service is here.
std::vector<Place> places_on(const std::vector<Host>& hosts, const std::string& this_machine);
std::vector<Place> places_here(const std::vector<std::string>& addresses);

// Addresses on this host that were free a moment ago.
std::vector<std::string> free_addresses(const std::string& host, int count);
// The address at which the hosts reach this machine: that of TUTTI_INTERFACES if it is set, else
// the one that leads to the first other host, else our first.
std::string outside_address(const std::vector<Host>& hosts);

// The cores that we may use.
std::vector<int> cores();
// A worker's share of them, next to each other; if there are more workers than cores, some share
// one.
std::vector<int> share_of(const std::vector<int>& cores, const Place& place);
std::string text_of(const std::vector<int>& cores);

// Binds this thread, and what it starts, to some cores while it lives.
class Bound {
 public:
  explicit Bound(const std::vector<int>& cores);
  ~Bound() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

}  // namespace tutti::tools
