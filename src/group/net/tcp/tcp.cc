// SPDX-License-Identifier: Apache-2.0
#include "group/net/registry.h"

namespace tutti::group::tcp {

constexpr TransportKind::Module kModules[] = {{.name = "tcp",
                                               .ranks = "ranks on several hosts",
                                               .purpose = "transport between hosts, by TCP",
                                               .library = "libssl3",
                                               .headers = "libssl-dev"}};
// The descriptors are the listener, the epoll, three eventfds, and a few that are soon closed; for
// a peer, the connection and two for large messages. Collectives of few ranks, or with little data,
// connect a logarithmic number of peers.
extern const TransportKind kKind{
    .modules = kModules, .descriptors = 8, .descriptors_per_peer = 3, .most_peers = 64};

}  // namespace tutti::group::tcp
