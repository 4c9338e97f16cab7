// SPDX-License-Identifier: Apache-2.0
// What both ends of a stream share: limits, conversions of messages, and a queue of messages to
// send.
#pragma once

#include <tutti/error.h>

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "cluster/grpc/coordination.grpc.pb.h"
#include "cluster/session.h"

namespace tutti::cluster {

using Clock = std::chrono::steady_clock;

// The Hello's key in the metadata, whose size gRPC limits on its own. The suffix lets it hold any
// bytes.
inline constexpr char kHelloKey[] = "tutti-hello-bin";
inline constexpr size_t kLargestHello = 16 << 10;
inline constexpr size_t kLargestToken = 4 << 10;
inline constexpr size_t kLargestName = 1 << 10;
inline constexpr size_t kLargestMessage = kLargestTotal + (1 << 20);
// gRPC measures the network with a ping and its reply for every message, unless it is told how much
// may be under way.
inline constexpr int kUnderWay = 1 << 20;

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

inline ToService from_wire(wire::ToService message) {
  switch (message.body_case()) {
    case wire::ToService::kExchange: {
      wire::Exchange& call = *message.mutable_exchange();
      return {message.id(),
              Exchange{std::move(*call.mutable_name()),
                       std::move(*call.mutable_value()),
                       std::chrono::nanoseconds(call.timeout_ns()),
                       {std::move(*call.mutable_host()), std::move(*call.mutable_place())}}};
    }
    case wire::ToService::kAbort: return {message.id(), Abort{from_wire(message.abort())}};
    case wire::ToService::kReport: return {message.id(), Report{from_wire(message.report())}};
    case wire::ToService::kGoodbye: return {message.id(), Goodbye{}};
    case wire::ToService::BODY_NOT_SET: break;
  }
  return {message.id(), Heartbeat{{message.living().begin(), message.living().end()}}};
}

inline wire::FromService to_wire(const FromService& message) {
  wire::FromService out;
  if (const auto* const failure = std::get_if<Failure>(&message))
    *out.mutable_failure() = to_wire(*failure);
  if (const auto* const reply = std::get_if<Reply>(&message)) {
    out.mutable_reply()->set_id(reply->id);
    if (reply->error) *out.mutable_reply()->mutable_error() = to_wire(*reply->error);
    if (reply->values)
      for (const std::string& value : *reply->values) out.mutable_reply()->add_values(value);
    out.mutable_reply()->set_place(reply->place);
  }
  return out;
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
