// SPDX-License-Identifier: Apache-2.0
// All hosts meet in a logarithmic number of rounds (plan/doubling.h). They check that all do the
// same, and the few bytes that each has for all reach every other.
#pragma once

#include <functional>

#include "group/net/peer_channels.h"
#include "group/net/topology.h"
#include "group/plan/doubling.h"

namespace tutti::group {

// As a host's leader sees it.
class Meeting {
 public:
  Meeting(PeerChannels& channels, const GroupTopology& topology);

  // `parts`: room for the parts of all hosts, with this host's own part in place. A host's part
  // begins at start(host), and the last part ends at start(number of hosts).
  void hold(std::byte* parts, const std::function<size_t(size_t host)>& start);

 private:
  PeerChannels& channels_;
  const GroupTopology& topology_;
  const Doubling plan_;  // with a leaf for each host
};

}  // namespace tutti::group
