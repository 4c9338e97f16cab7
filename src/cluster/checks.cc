// SPDX-License-Identifier: Apache-2.0
#include "cluster/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace tutti::cluster {

namespace {

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_host(std::string_view host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string_view others = bracketed ? ":.%-_" : ".-_";
  return !host.empty() && std::ranges::all_of(host, [&](char c) {
    return is_letter_or_digit(c) || others.find(c) != others.npos;
  });
}

}  // namespace

bool is_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos || !is_host(text.substr(0, colon))) return false;
  const std::string_view digits = text.substr(colon + 1);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return error == std::errc() && end == digits.data() + digits.size() && digits[0] != '0' &&
         port > 0 && port <= kMaxPort;
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address.starts_with("localhost:") ||
         address.starts_with("[::1]");
}

std::string address_of(std::string_view host, int port) {
  const bool bare_ipv6 = host.find(':') != host.npos && !host.starts_with('[');
  return bare_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

bool is_known_job(std::string_view name) {
  constexpr std::array<std::string_view, 4> jobs{"chief", "worker", "evaluator", "ps"};
  return std::ranges::find(jobs, name) != jobs.end();
}

std::string in_quotes(std::string_view text) {
  size_t most = std::min<size_t>(text.size(), 80);
  while (most > 0 && most < text.size() && (text[most] & 0xC0) == 0x80) --most;  // within UTF-8
  std::string result = "\"";
  for (const char c : text.substr(0, most)) {
    if (c == '"' || c == '\\')
      result.append({'\\', c});
    else if (static_cast<unsigned char>(c) < ' ' || c == '\x7f')
      result += fmt::format("\\x{:02x}", c);
    else
      result += c;
  }
  return result + (most < text.size() ? "…\"" : "\"");
}

}  // namespace tutti::cluster
