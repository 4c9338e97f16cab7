// SPDX-License-Identifier: Apache-2.0
// What both ends of a stream share: limits, conversions, and a queue of messages to send.
#pragma once

#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "cluster/coordination.h"
#include "cluster/grpc/coordination.grpc.pb.h"

namespace tutti::cluster {

using Clock = std::chrono::steady_clock;

// The Hello's key in the metadata, whose size gRPC limits on its own. The suffix lets it hold any
// bytes.
inline constexpr char kHelloKey[] = "tutti-hello-bin";
inline constexpr size_t kLargestHello = 16 << 10;
inline constexpr size_t kLargestToken = 4 << 10;
inline constexpr char kWrongToken[] =
    "wrong token; every worker of the job needs the TUTTI_TOKEN that the service has";

inline constexpr size_t kLargestName = 1 << 10;
inline constexpr size_t kLargestTotal = 64 << 20;  // of an exchange, and of all keys
inline constexpr size_t kLargestMessage = kLargestTotal + (1 << 20);

inline wire::Failure to_wire(const Failure& failure) {
  wire::Failure out;
  out.set_rank(failure.rank);
  out.set_code(static_cast<int32_t>(failure.code));
  out.set_text(failure.text);
  return out;
}

inline Failure from_wire(const wire::Failure& failure) {
  const bool known =
      failure.code() >= 0 && failure.code() <= static_cast<int32_t>(ErrorCode::internal);
  return {failure.rank(), known ? static_cast<ErrorCode>(failure.code()) : ErrorCode::internal,
          failure.text()};
}

inline std::string in_seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:g} s", std::chrono::duration<double>(time).count());
}

// `timeout` from now, without an overflow if it stands for "never".
inline Clock::time_point deadline_after(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
  return Clock::now() + std::clamp(timeout, std::chrono::nanoseconds(0), longest);
}

// A short timeout must not make the peer look dead between two heartbeats.
inline std::chrono::nanoseconds heartbeat_interval(const Job& job) {
  return std::min(job.heartbeat_interval, job.heartbeat_timeout / 4);
}

// A peer that has not been heard for longer is silent: one heartbeat may be late.
inline std::chrono::nanoseconds silent_after(const Job& job) {
  return 5 * heartbeat_interval(job) / 2;
}

// gRPC takes one message at a time. Not thread-safe; a message stays put while it is being written.
template <class Message>
class Outbox {
 public:
  explicit Outbox(std::function<void(const Message*)> start_write)
      : start_write_(std::move(start_write)) {}

  bool idle() const { return messages_.empty(); }

  void push(Message message) {
    messages_.push_back(std::move(message));
    if (messages_.size() == 1) start_write_(&messages_.front());
  }

  // The write that was started last is over. If it failed, so would the others.
  void written(bool ok) {
    messages_.pop_front();
    if (!ok) messages_.clear();
    if (!messages_.empty()) start_write_(&messages_.front());
  }

 private:
  std::function<void(const Message*)> start_write_;
  std::deque<Message> messages_;
};

}  // namespace tutti::cluster
