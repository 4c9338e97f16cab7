// SPDX-License-Identifier: Apache-2.0
// What may stand in a cluster, and how errors show what may not.
#pragma once

#include <string>
#include <string_view>

namespace tutti::cluster {

inline constexpr int kMaxPort = 65535;
// A limit, so that a wrong number in the environment is an error and not a list of two billion
// tasks.
inline constexpr int kMaxTasks = 1 << 20;

inline constexpr const char* kExpectedAddress = "expected HOST:PORT with a port from 1 to 65535";
inline constexpr const char* kExpectedJobs = "expected chief, worker, evaluator or ps";

// "host:port", with an IPv6 address in brackets.
bool is_address(std::string_view text);

// "127.0.0.1:5000", "localhost:5000", "[::1]:5000".
bool is_loopback(std::string_view address);

// Puts brackets around an IPv6 address that has none.
std::string address_of(std::string_view host, int port);

// chief, worker, evaluator or ps.
bool is_known_job(std::string_view name);

// In quotes, escaped, and shortened if it is long.
std::string in_quotes(std::string_view text);

}  // namespace tutti::cluster
