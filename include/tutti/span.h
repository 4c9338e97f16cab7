// SPDX-License-Identifier: Apache-2.0
// Span: a part of a program's time in the timeline, beside the operations of Tutti.
//
//   {
//     Span span("forward");
//     span.set("epoch", epoch);
//     loss = net.forward(batch);
//   }
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>

#pragma GCC visibility push(default)

namespace tutti {

// From construction to destruction, both on one thread. Does nothing without a timeline
// (TUTTI_TIMELINE). UnavailableError if it is the first use of a timeline whose file cannot be
// opened.
class Span {
 public:
  explicit Span(std::string_view name);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // An argument, which viewers show with the span. The last value of a key counts.
  void set(std::string_view key, std::string_view value);
  void set(std::string_view key, std::integral auto value) { set_integer(key, int64_t(value)); }
  void set(std::string_view key, std::floating_point auto value) { set_number(key, double(value)); }

 private:
  void set_integer(std::string_view key, int64_t value);
  void set_number(std::string_view key, double value);

  struct Open;
  std::unique_ptr<Open> open_;  // null without a timeline
};

}  // namespace tutti

#pragma GCC visibility pop
