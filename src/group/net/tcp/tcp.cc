// SPDX-License-Identifier: Apache-2.0
#include "group/net/registry.h"

namespace tutti::group::tcp {

constexpr TransportKind::Module kModules[] = {{.name = "tcp",
                                               .ranks = "ranks on several hosts",
                                               .purpose = "transport between hosts, by TCP",
                                               .library = "the system alone"}};
// The listener, the epoll, an eventfd, and a few for the moment.
extern const TransportKind kKind{.modules = kModules, .descriptors = 6, .descriptors_per_peer = 1};

}  // namespace tutti::group::tcp
