// SPDX-License-Identifier: Apache-2.0
#include "job/clocks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>

#include "base/settings.h"
#include "observe/timeline.h"

namespace tutti::group {

namespace {

// The first ones open connections; of the rest, one is likely not to be held up.
constexpr int kRounds = 20;

using Differences = std::map<std::string, ClockDifference>;  // by clock, to the first rank's

void pass(Backend& group, Collective kind, int64_t& value, int peer, Timeouts timeouts) {
  const Description what{.kind = kind, .dtype = DType::int64, .root = peer, .extents = {1}};
  const detail::Memory memory{&value, 1, DType::int64};
  group.run(what, {.kind = kind, .in = memory, .out = memory, .root = peer}, timeouts);
}

// What ranks with the same steady clock have in common.
std::string clock_of(const Hello& hello) {
  return hello.memory.machine + " " + hello.timeline.clock;
}

// `askers`: for each clock the rank that compares it with that of rank `first`; all ranks hold the
// same.
Differences measure(const std::map<std::string, int>& askers, int first, int rank, Link& link,
                    Backend& group) {
  const Timeouts timeouts{base::settings().join_timeout, base::settings().warn_after};
  ClockDifference mine{0, 0};
  for (const auto& [clock, asker] : askers) {
    if (asker == rank) mine = ask_clock(group, first, timeouts);
    if (first == rank) answer_clock(group, asker, timeouts);
  }
  const std::vector<std::string> all =
      link.exchange("clocks", fmt::format("{} {}", mine.add_ns, mine.error_ns));
  Differences differences;
  for (const auto& [clock, asker] : askers) {
    ClockDifference& told = differences[clock];
    std::istringstream(all[size_t(asker)]) >> told.add_ns >> told.error_ns;
  }
  return differences;
}

}  // namespace

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(base::Clock::now().time_since_epoch())
      .count();
}

ClockDifference ask_clock(Backend& group, int peer, Timeouts timeouts, const ClockFunction& now) {
  ClockDifference best{0, std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kRounds; ++i) {
    int64_t theirs = 0;
    const int64_t before = now();
    pass(group, Collective::send, theirs, peer, timeouts);
    pass(group, Collective::recv, theirs, peer, timeouts);
    const int64_t after = now();
    // The peer looked at its clock some time in between.
    const int64_t half = (after - before + 1) / 2;
    if (half < best.error_ns) best = {theirs - (before + half), half};
  }
  return best;
}

void answer_clock(Backend& group, int peer, Timeouts timeouts, const ClockFunction& now) {
  for (int i = 0; i < kRounds; ++i) {
    int64_t value = 0;
    pass(group, Collective::recv, value, peer, timeouts);
    value = now();
    pass(group, Collective::send, value, peer, timeouts);
  }
}

TimelineHello open_timeline(int rank) {
  observe::name_timeline_after(rank);
  if (!observe::timeline_enabled()) return {};
  std::error_code ignored;
  const auto wall = std::chrono::system_clock::now().time_since_epoch().count();
  return {.enabled = true,
          .epoch = observe::timeline_epoch_ns(),
          .run = fmt::format("{:x}-{:x}", wall, getpid()),
          .clock = std::filesystem::read_symlink("/proc/self/ns/time", ignored).string()};
}

void align_timelines(const std::vector<Hello>& hellos, int rank, Link& link,
                     const std::function<std::unique_ptr<Backend>()>& new_group) {
  size_t first = 0;
  while (first < hellos.size() && !hellos[first].timeline.enabled) ++first;
  if (first == hellos.size()) return;
  const std::string base_clock = clock_of(hellos[first]);
  std::map<std::string, int> askers;
  for (size_t r = first; r < hellos.size(); ++r)
    if (hellos[r].timeline.enabled && clock_of(hellos[r]) != base_clock)
      askers.try_emplace(clock_of(hellos[r]), int(r));
  Differences differences;
  if (!askers.empty()) differences = measure(askers, int(first), rank, link, *new_group());
  differences[base_clock] = {0, 0};

  const Hello& mine = hellos[size_t(rank)];
  if (!mine.timeline.enabled) return;
  const ClockDifference& difference = differences.at(clock_of(mine));
  const int64_t epochs = hellos[first].timeline.epoch - mine.timeline.epoch;
  observe::describe_timeline({.rank = rank,
                              .ranks = int(hellos.size()),
                              .host = mine.hostname,
                              .job = hellos[first].timeline.run,
                              .add_ns = difference.add_ns + epochs,
                              .error_ns = difference.error_ns});
}

}  // namespace tutti::group
