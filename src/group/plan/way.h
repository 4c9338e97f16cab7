// SPDX-License-Identifier: Apache-2.0
// The way of a reduction, between hosts and within one: that which should take the least time.
#pragma once

#include <cstddef>
#include <optional>

namespace tutti::group {

// This few hosts may tell each other all they have.
constexpr size_t kFewHosts = 4;

enum class Way {
  direct,    // every host tells every other its values, or those of its shard
  doubling,  // all values, in a logarithmic number of rounds
  halving,   // the same, of a half, a quarter, ... of the data; and the results back the same way
};

// In nanoseconds. All ranks choose by the same.
struct WayCosts {
  double latency = 1500;  // of a message, and of waiting for the slower of two
  double message = 5700;  // at both ends together
  double byte = 0.34;     // of a message, at both ends together
  double sum = 0.1;       // of a byte that is summed
};

// What is to be reduced, as all ranks know it.
struct WayOptions {
  size_t hosts;
  size_t leaves_per_host = 1;  // 0: not as many on each, or not one host's after the other's
  size_t bytes = 0;            // of a leaf
  size_t direct_values = 1;    // values of each element that a host has
  size_t wide = 1;             // bytes of a value for each byte of a leaf
  size_t most = 1;         // bytes of leaves, values or results of a host for each byte of a leaf
  size_t most_told = 0;    // bytes that travel with a greeting
  size_t most_halved = 0;  // bytes that there is memory for at once
  bool sums_apart = true;  // whether sums of some leaves can be told
};
Way choose_way(const WayOptions& options, const WayCosts& costs = {});

// Small parts that ranks have for each other, as all ranks know them.
struct SharingOptions {
  size_t hosts, ranks;
  size_t bytes = 0;  // that a rank has for another
  size_t total = 0;  // that all have for all
  size_t most_told = 0;
};
// Whether all of it gets to all hosts in rounds, instead of from every rank to every other.
bool shares_in_rounds(const SharingOptions& options, const WayCosts& costs = {});

// Whether the ranks of a host sum a share each, and show it in a phase more, instead of all of it.
bool is_summed_in_shares(size_t ranks, size_t bytes);

// For tests: every reduction that can goes this way.
std::optional<Way>& forced_way();

}  // namespace tutti::group
