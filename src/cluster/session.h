// SPDX-License-Identifier: Apache-2.0
// What a rank and the coordination service of its job say to each other, and the times and limits
// that both go by.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/coordination.h"

namespace tutti::cluster {

// How a rank introduces itself.
struct Hello {
  std::string token, version;
  int rank = 0;
  int ranks = 0;  // of its job
};

struct Heartbeat {
  std::vector<int> living = {};  // to the service: other ranks of the host, which send none
};
struct Goodbye {};  // the last message of a rank
struct Exchange {
  std::string name, value;
  std::chrono::nanoseconds timeout;
  Sharing sharing = {};  // its host is empty: not shared
};
struct Abort {
  Failure failure;
};
struct Report {  // of a group: the job goes on
  Failure failure;
};
struct ToService {
  uint64_t id = 0;  // of a call that has a reply
  std::variant<Heartbeat, Exchange, Abort, Report, Goodbye> body = {};
};

struct Reply {
  uint64_t id = 0;
  std::optional<Failure> error = {};
  std::shared_ptr<const std::vector<std::string>> values = {};  // by rank
  std::string place = {};  // of the rank on the same host that has them instead
};
using FromService = std::variant<Heartbeat, Reply, Failure>;

inline constexpr char kWrongToken[] =
    "wrong token; every worker of the job needs the TUTTI_TOKEN that the service has";

inline constexpr size_t kLargestTotal = 64 << 20;  // of an exchange

// How long a rank that leaves waits for the end of its stream. A service that answers ends it
// within a millisecond.
inline constexpr std::chrono::nanoseconds kLeaveTimeout = std::chrono::milliseconds(100);
// How long an abort waits for the service to know which failure was the first.
inline constexpr std::chrono::nanoseconds kAbortTimeout = std::chrono::seconds(1);

inline std::string in_seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

// `timeout` from now, without an overflow if it stands for "never".
inline std::chrono::steady_clock::time_point deadline_after(
    std::chrono::steady_clock::time_point now, std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
  return now + std::clamp(timeout, std::chrono::nanoseconds(0), longest);
}

// A short timeout must not make the peer look dead between two heartbeats.
inline std::chrono::nanoseconds heartbeat_interval(const Job& job) {
  return std::min(job.heartbeat_interval, job.heartbeat_timeout / 4);
}

// A peer that has not been heard for longer is silent: one heartbeat may be late.
inline std::chrono::nanoseconds silent_after(const Job& job) {
  return 5 * heartbeat_interval(job) / 2;
}

// A rank sends heartbeats of its own once its speaker has not heard the service for longer, so that
// the service replies before the rank takes it for silent.
inline std::chrono::nanoseconds unspoken_after(const Job& job) {
  return 5 * heartbeat_interval(job) / 4;
}
// And now and then anyway: devices on the way forget connections on which nothing travels.
inline constexpr std::chrono::nanoseconds kOwnEvery = std::chrono::seconds(30);
// The speaker sends heartbeats for a rank that has beaten since: one beat may be late.
inline std::chrono::nanoseconds lifeless_after(const Job& job) {
  return 3 * heartbeat_interval(job) / 2;
}

// Why the job fails if only the connection of this rank to the service is broken.
inline Failure lost_connection(const Job& job, const std::string& service, int rank) {
  return {rank, ErrorCode::unavailable,
          fmt::format("rank {} ({}) is lost: its connection to the coordination service at {} is "
                      "broken, which answers the other ranks of its host",
                      rank, job.addresses[size_t(rank)], service)};
}

// Why the job fails if its service is lost.
inline Failure lost_service(const Job& job, const std::string& service, const std::string& why) {
  if (job.chief_serves)
    return {
        0, ErrorCode::unavailable,
        fmt::format("rank 0 ({}) is lost, and with it the coordination service: {}", service, why)};
  return {-1, ErrorCode::unavailable,
          fmt::format("the coordination service at {} is gone: {}", service, why)};
}

}  // namespace tutti::cluster
