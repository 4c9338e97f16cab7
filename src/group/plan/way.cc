// SPDX-License-Identifier: Apache-2.0
#include "group/plan/way.h"

#include <algorithm>

#include "group/plan/doubling.h"

namespace tutti::group {

namespace {

// What every host sums wholly, if there are more than a few of them. Beyond it a direct exchange is
// cut into shards, whose results take one more message for each host; and another one if their
// values are too many for a greeting.
constexpr size_t kWholeDirect = 8 << 10;
// The blocks of a direct exchange overlap, which the rounds of halving do not.
constexpr double kOverlap = 0.83;
// How often halving works on what does not fit a greeting, besides.
constexpr double kHalvingWork = 3;

double cost_of_direct(const WayOptions& options, const WayCosts& costs) {
  const double others = double(options.hosts - 1), bytes = double(options.bytes);
  const double values = double(options.direct_values), told = double(options.most_told);
  if (bytes * values <= kWholeDirect || (options.hosts <= kFewHosts && bytes * values <= told))
    return costs.latency + others * (costs.message + bytes * values * (costs.byte + costs.sum));
  const double moved = bytes * others / double(options.hosts);
  const double messages = bytes * values / double(options.hosts) <= told ? 2 : 3;
  return messages * (costs.latency + others * costs.message) +
         kOverlap * moved * ((values + 1) * costs.byte + values * costs.sum);
}

double cost_of_doubling(const WayOptions& options, const WayCosts& costs) {
  const double most =
      double(most_values_of_doubling(options.hosts, options.leaves_per_host) * options.wide);
  const double mean = (1 + most) / 2;
  return double(rounds_of_doubling(options.hosts)) *
         (costs.latency + costs.message + double(options.bytes) * mean * costs.byte);
}

double cost_of_halving(const WayOptions& options, const WayCosts& costs) {
  const double moved = double(options.bytes) * (1 - 1 / double(options.hosts));
  const double told = double(options.most_told);
  double messages = 0;
  for (size_t parts = 2; parts <= options.hosts; parts *= 2)
    messages += double(options.bytes) / double(parts) > told ? 2 : 1;
  return 2 * (double(rounds_of_doubling(options.hosts)) * costs.latency +
              messages * costs.message) +
         moved * double(1 + options.wide) * costs.byte +
         kHalvingWork * std::max(0.0, moved - told) * costs.sum;
}

// Within a host, in nanoseconds: a byte of one rank that another sums, and one that goes through
// the window to be summed in shares; a phase, and what each rank adds to it.
constexpr double kSummed = 0.14, kShared = 0.35, kPhase = 300, kPhaseOfRank = 150;
// Two ranks sum as much either way; but a share stays in the nearest cache.
constexpr size_t kMostWhole = 64 << 10;

}  // namespace

bool is_summed_in_shares(size_t ranks, size_t bytes) {
  const double phase = kPhase + kPhaseOfRank * double(ranks);
  return bytes > kMostWhole ||
         double(bytes) * kSummed * double(ranks) > double(bytes) * kShared + 2 * phase;
}

std::optional<Way>& forced_way() {
  static std::optional<Way> way;
  return way;
}

bool shares_in_rounds(const SharingOptions& options, const WayCosts& costs) {
  if (options.hosts < 2 || options.total > options.most_told) return false;
  if (forced_way()) return *forced_way() == Way::doubling;
  const double direct = costs.latency + double(options.ranks - 1) *
                                            (costs.message + double(options.bytes) * costs.byte);
  // What a host knows doubles with each round.
  const double in_rounds =
      double(rounds_of_doubling(options.hosts)) * (costs.latency + costs.message) +
      2 * double(options.total) * costs.byte;
  return in_rounds < direct;
}

Way choose_way(const WayOptions& options, const WayCosts& costs) {
  if (options.hosts < 3 || !options.leaves_per_host || !options.sums_apart) return Way::direct;
  const size_t values = most_values_of_doubling(options.hosts, options.leaves_per_host);
  const bool can_double =
      options.bytes * std::max(values * options.wide, options.most) <= options.most_told;
  const bool can_halve = values == 1 && options.bytes * options.most <= options.most_halved;
  const auto can = [&](Way way) {
    return way == Way::direct || (way == Way::doubling ? can_double : can_halve);
  };
  if (forced_way()) return can(*forced_way()) ? *forced_way() : Way::direct;
  Way best = Way::direct;
  double least = cost_of_direct(options, costs);
  const auto consider = [&](Way way, double cost) {
    if (!can(way) || cost >= least) return;
    best = way;
    least = cost;
  };
  consider(Way::doubling, cost_of_doubling(options, costs));
  consider(Way::halving, cost_of_halving(options, costs));
  return best;
}

}  // namespace tutti::group
