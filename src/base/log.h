// SPDX-License-Identifier: Apache-2.0
// The log, on stderr, filtered by TUTTI_LOG. For what a person should know and no call can return;
// errors are thrown.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tutti::base {

enum class LogLevel { debug, info, warning, error };

void log(LogLevel level, std::string_view text);

// As log, but only for the first call with this text in the process.
void log_once(LogLevel level, const std::string& text);

// Hands every message to `sink` instead of stderr, at all levels, until it is set to null; also
// forgets what log_once has said. For tests.
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace tutti::base
