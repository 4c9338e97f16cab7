// SPDX-License-Identifier: Apache-2.0
// Children that a program forks without exec. A child has the descriptors of its parent and none of
// its threads: it takes no part in its parent's job, and must not keep the connections of the job
// open, since peers learn from their end that the parent is dead.
#pragma once

#include <atomic>
#include <span>
#include <vector>

namespace tutti::base {

namespace detail {
extern std::atomic<bool> forked;
}

// Whether this process was forked from one that had something to close in its children.
inline bool is_forked_child() { return detail::forked.load(std::memory_order_relaxed); }

// Closes these sockets in children that are forked later; their numbers stay taken there.
void close_in_children(std::span<const int> sockets);
// The same for TCP sockets that listen at this port, or are accepted there at any time.
void close_port_in_children(int port);

// Sockets of this process that are connected to a TCP port of others.
std::vector<int> sockets_to(int port);

}  // namespace tutti::base
