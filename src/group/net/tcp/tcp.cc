// SPDX-License-Identifier: Apache-2.0
#include "group/net/registry.h"

namespace tutti::group::tcp {

constexpr TransportKind::Module kModules[] = {{.name = "tcp",
                                               .ranks = "ranks on several hosts",
                                               .purpose = "transport between hosts, by TCP",
                                               .library = "libssl3",
                                               .headers = "libssl-dev"}};
// The listener, the epoll, an eventfd, and a few for the moment. Collectives that few ranks take
// part in, or that move little, connect a logarithmic number of peers.
extern const TransportKind kKind{
    .modules = kModules, .descriptors = 6, .descriptors_per_peer = 1, .most_peers = 64};

}  // namespace tutti::group::tcp
