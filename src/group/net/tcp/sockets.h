// SPDX-License-Identifier: Apache-2.0
// What the parts of the module share.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
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
  std::vector<PeerAddress> ranks;        // by rank
  std::optional<bool> sends_apart = {};  // as in TransportOptions
};

struct Head {
  uint64_t bytes;
  uint32_t tag;
  uint32_t mark = kMark;
};

struct TcpMessage : Transport::Message {
  int peer;
  bool sending;
  Transport::State state;
  std::byte* data;
  size_t bytes;
  Head head;        // of what is sent; of what is received, the tag
  size_t done = 0;  // of head and data, sent
  bool is_written() const { return done == sizeof(Head) + bytes; }
};

// How many bytes the system took, of up to `most` of what is left of a message that is sent; -1: it
// will never take any.
ssize_t send_from(int socket, const TcpMessage& message, size_t most = SIZE_MAX);
// The same of a result of the system's calls.
inline ssize_t went(ssize_t result) {
  return result >= 0 ? result : errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
}

// Connects to another host first, if there is one: UnavailableError if that host cannot be reached.
// `check` throws if the job has failed meanwhile.
std::unique_ptr<Transport> make_transport(Place place, std::chrono::nanoseconds timeout,
                                          const std::function<void()>& check);

}  // namespace tutti::group::tcp
