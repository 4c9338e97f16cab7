// SPDX-License-Identifier: Apache-2.0
#include "simulate_faults.h"

#include <fmt/format.h>
#include <tutti/error.h>
#include <unistd.h>

#include <charconv>
#include <thread>

#include "sim/campaign.h"
#include "sim/trial.h"

namespace tutti::tools {

namespace {

uint64_t seed_of(const std::string& text, const std::string& whole) {
  uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    throw InvalidArgumentError(
        fmt::format("--seeds: \"{}\", expected a number, or two as in 0:499", whole));
  return seed;
}

int trace(const sim::Schedule& schedule) {
  const sim::Trial trial = sim::run(schedule, true);
  fmt::print("{}\n{}\n", schedule.to_string(), trial.trace);
  for (const std::string& violation : trial.violations) fmt::print("violated: {}\n", violation);
  fmt::print("seed {}: {}; {:.3f} ms, hash {:016x}\n", schedule.seed,
             trial.violations.empty() ? "all is well" : "failed", double(trial.time.count()) / 1e6,
             trial.hash);
  return trial.violations.empty() ? 0 : 1;
}

}  // namespace

int simulate_faults(const FaultOptions& options) {
  const std::string& seeds = options.seeds;
  const size_t colon = seeds.find(':');
  const uint64_t first = seed_of(seeds.substr(0, colon), seeds);
  const uint64_t last = colon == seeds.npos ? first : seed_of(seeds.substr(colon + 1), seeds);
  if (last < first)
    throw InvalidArgumentError(fmt::format("--seeds: {} is less than {}", last, first));
  const bool faults = !options.without_faults;
  if (options.trace) {
    int failed = 0;
    for (uint64_t seed = first;; ++seed) {
      failed |= trace(sim::draw(seed, faults));
      if (seed == last) return failed;
    }
  }

  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  };
  const bool is_terminal = isatty(STDERR_FILENO);
  double said = 0;
  const int cores = int(std::thread::hardware_concurrency());
  const std::vector<sim::Finding> findings =
      sim::run({.first = first,
                .last = last,
                .jobs = options.jobs ? options.jobs : std::max(cores, 1),
                .faults = faults,
                .progress =
                    [&](uint64_t done, uint64_t failed) {
                      if (seconds() - said < (is_terminal ? 0.2 : 5)) return;
                      said = seconds();
                      fmt::print(stderr, "{}{} of {} schedules, {} failed, {:.0f} s{}",
                                 is_terminal ? "\r" : "", done, last - first + 1, failed, said,
                                 is_terminal ? "" : "\n");
                    },
                .found =
                    [&](const sim::Finding& finding) {
                      fmt::print("seed {} failed:\n", finding.seed);
                      for (const std::string& violation : finding.violations)
                        fmt::print("  {}\n", violation);
                      fmt::print("  again: tutti simulate --faults --seeds {0}:{0}{1} --trace\n",
                                 finding.seed, faults ? "" : " --none");
                      std::fflush(stdout);
                    }});
  if (is_terminal && said > 0) fmt::print(stderr, "\n");
  fmt::print("{} schedules in {:.1f} s, {} failed\n", last - first + 1, seconds(), findings.size());
  return findings.empty() ? 0 : 1;
}

}  // namespace tutti::tools
