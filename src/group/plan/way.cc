// SPDX-License-Identifier: Apache-2.0
#include "group/plan/way.h"

#include <algorithm>

#include "group/plan/doubling.h"

namespace tutti::group {

namespace {

// Up to this number of hosts, each sends every other all data that fits a greeting: one hop instead
// of two.
constexpr size_t kFewHosts = 4;
// Up to this size two hosts exchange all data. They send no more bytes than if each summed a half,
// but both sum all of it.
constexpr size_t kMuchForTwo = 256 << 10;
// The blocks of a direct exchange overlap, which the rounds of halving do not.
constexpr double kOverlap = 0.83;
// How many passes over the data halving makes for what does not fit a greeting.
constexpr double kHalvingWork = 3;
// The least that a shard of a large reduction has, and the least number of its blocks.
constexpr size_t kLeastShard = 256 << 10, kLeastBlocks = 8;
// The most that the ranks of a host reduce whole. Two ranks sum as much either way, but a share
// stays in the nearest cache.
constexpr size_t kMostWhole = 64 << 10;

bool is_whole(const WayOptions& options) {
  const size_t told = options.bytes * options.direct_values;
  return told <= kSmall || (options.hosts <= kFewHosts && told <= options.most_told) ||
         (options.hosts == 2 && options.direct_values == 1 && told <= kMuchForTwo);
}

double cost_of_whole(const WayOptions& options, const Costs& costs) {
  const double told = double(options.bytes * options.direct_values);
  return costs.latency +
         double(options.hosts - 1) * (costs.message + told * (costs.byte + costs.sum));
}

// The results take one more message to each host, and the values one if they do not fit a greeting.
double cost_of_shares(const WayOptions& options, const Costs& costs) {
  const double others = double(options.hosts - 1), bytes = double(options.bytes);
  const double values = double(options.direct_values);
  const double moved = bytes * others / double(options.hosts);
  const double messages =
      bytes * values / double(options.hosts) <= double(options.most_told) ? 2 : 3;
  return messages * (costs.latency + others * costs.message) +
         kOverlap * moved * ((values + 1) * costs.byte + values * costs.sum);
}

double cost_of_doubling(const WayOptions& options, const Costs& costs) {
  const double most =
      double(most_values_of_doubling(options.hosts, options.leaves_per_host) * options.wide);
  const double mean = (1 + most) / 2;
  return double(rounds_of_doubling(options.hosts)) *
         (costs.latency + costs.message + double(options.bytes) * mean * costs.byte);
}

double cost_of_halving(const WayOptions& options, const Costs& costs) {
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

// Whether all parts get to all hosts in rounds, instead of each to the rank that it is for.
bool goes_in_rounds(const PartsOptions& options, const Costs& costs) {
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

}  // namespace

std::optional<Way>& forced_way() {
  static std::optional<Way> way;
  return way;
}

Way choose_way(const WayOptions& options, const Costs& costs) {
  const Way direct = is_whole(options) ? Way::whole : Way::shares;
  const bool can_meet = options.hosts > 2 && options.leaves_per_host && options.sums_apart;
  const size_t values =
      can_meet ? most_values_of_doubling(options.hosts, options.leaves_per_host) : 0;
  const bool can_double =
      can_meet &&
      options.bytes * std::max(values * options.wide, options.most) <= options.most_told;
  const bool can_halve =
      can_meet && values == 1 && options.bytes * options.most <= options.most_halved;
  if (const std::optional<Way> forced = forced_way()) {
    const bool can = *forced == Way::doubling  ? can_double
                     : *forced == Way::halving ? can_halve
                                               : options.bytes > 0;
    return can ? *forced : direct;
  }
  if (!can_double && !can_halve) return direct;
  Way best = direct;
  double least =
      direct == Way::whole ? cost_of_whole(options, costs) : cost_of_shares(options, costs);
  const auto consider = [&](Way way, double cost) {
    if (cost >= least) return;
    best = way;
    least = cost;
  };
  if (can_double) consider(Way::doubling, cost_of_doubling(options, costs));
  if (can_halve) consider(Way::halving, cost_of_halving(options, costs));
  return best;
}

// Enough blocks that they overlap, unless they become so small that their number costs more.
size_t choose_block(const BlockOptions& options) {
  return std::min(options.room,
                  std::max(options.bytes / kLeastBlocks, options.hosts * kLeastShard));
}

Way choose_way_of_parts(const PartsOptions& options, const Costs& costs) {
  const bool can_meet = options.kind != Collective::all_to_all;
  if (can_meet && goes_in_rounds(options, costs)) return Way::rounds;
  if (options.bytes <= kSmall) return Way::handshake;
  switch (options.kind) {
    case Collective::broadcast: return options.ranks > 2 ? Way::relay : Way::direct;
    case Collective::all_gather:
    case Collective::split: return Way::relay;
    case Collective::barrier:
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all:
    case Collective::reduce_scatter:
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::send:
    case Collective::recv: break;
  }
  return Way::direct;
}

size_t most_whole_within_host(size_t ranks, const Costs& costs) {
  const double saved_per_byte = costs.whole_byte * double(ranks) - costs.share_byte;
  const double phases = 2 * (costs.phase + costs.phase_per_rank * double(ranks));
  return double(kMostWhole) * saved_per_byte > phases ? size_t(phases / saved_per_byte)
                                                      : kMostWhole;
}

}  // namespace tutti::group
