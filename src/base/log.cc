// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <set>

#include "base/file.h"
#include "base/settings.h"
#include "base/world.h"

namespace tutti::base {

namespace {

struct State {
  std::mutex mutex;
  std::function<void(LogLevel, std::string_view)> sink;
  std::set<std::string, std::less<>> said;
};
State& state() {
  static State* const s = new State;  // outlives every thread that may still log at exit
  return *s;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: break;
  }
  return spdlog::level::err;
}

// A logger of our own, in no registry, so that it never mixes with a program's own spdlog.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* l = new spdlog::logger("tutti", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    l->set_pattern("%^tutti: %l:%$ %v");
    l->set_level(spdlog::level::from_str(read_settings().log_level));
    return l;
  }();
  return *instance;
}

}  // namespace

void log(LogLevel level, std::string_view text) {
  if (World* const simulated = world()) return simulated->log(level, std::string(text));
  std::function<void(LogLevel, std::string_view)> sink;
  {
    std::lock_guard lock(state().mutex);
    sink = state().sink;
  }
  if (sink) return sink(level, text);
  const NoFileSizeSignal quiet;  // stderr may be a file
  logger().log(spdlog_level(level), fmt::string_view(text.data(), text.size()));
}

void log_once(LogLevel level, const std::string& text) {
  if (world()) return log(level, text);  // the same in every run of a simulation
  {
    std::lock_guard lock(state().mutex);
    if (!state().said.insert(text).second) return;
  }
  log(level, text);
}

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  std::lock_guard lock(state().mutex);
  state().sink = std::move(sink);
  state().said.clear();
}

}  // namespace tutti::base
