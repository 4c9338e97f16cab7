// SPDX-License-Identifier: Apache-2.0
// The variables that the workers of a job get.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "program.h"

namespace tutti::tools {

// GOMP_SPINCOUNT of workers that share a host: a thread of OpenMP that has nothing to do sleeps
// after a millisecond, rather than after 13, and leaves its core to the exchange.
constexpr int kSpins = 20'000;

std::string random_token();

std::string_view name_of(std::string_view entry);  // "NAME" of "NAME=value"
bool has(const std::vector<std::string>& environment, std::string_view name);
// Whether each worker gets the variable from its job; one in our own environment does not count.
bool is_own(std::string_view name);

// Our environment without the variables of a job, and with those of the command line.
std::vector<std::string> outer_environment(const Program& program);
// The part of it that a worker on another host gets. The worker finds out itself which host that
// is.
std::vector<std::string> travelling_environment(const Program& program);

}  // namespace tutti::tools
