// SPDX-License-Identifier: Apache-2.0
// What the parts of the module share.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "base/descriptors.h"
#include "group/net/transport.h"

namespace tutti::group::tcp {

// A call and every message begin with this.
constexpr uint32_t kMark = 0x7475'7474;

using File = base::Descriptor;

inline std::string problem(int error) { return std::generic_category().message(error); }

// The secret of a rank, known to the ranks that have its address. It never crosses a connection of
// this module.
using Secret = std::array<unsigned char, 16>;

// Where a rank listens.
struct PeerAddress {
  std::string text;  // as in errors: "10.0.0.3:4711"
  sockaddr_storage name{};
  socklen_t size = 0;
  Secret secret{};
};

// This rank's place among the others.
struct Place {
  int rank;
  File listener;
  std::vector<PeerAddress> ranks;  // by rank
  bool sends_in_bulk = false;      // as in TransportOptions
};

// How many bytes the system took, by the result of its call; -1: it will never take any.
inline ssize_t went(ssize_t result) {
  return result >= 0 ? result : errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
}

// Connects to another host first, if there is one: UnavailableError if that host cannot be reached.
// `check` throws if the job has failed meanwhile.
std::unique_ptr<Transport> make_transport(Place place, std::chrono::nanoseconds timeout,
                                          const std::function<void()>& check);

}  // namespace tutti::group::tcp
