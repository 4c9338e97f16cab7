// SPDX-License-Identifier: Apache-2.0
// Chooses the way of a collective, between hosts and within one, that should take the least time.
// All that decides between algorithms is here, so that all ranks choose alike from the same costs.
#pragma once

#include <cstddef>
#include <optional>

#include "base/costs.h"
#include "group/core/operation.h"
#include "group/core/way.h"

namespace tutti::group {

using base::Costs;

// Data of at most this size travels with a handshake to the rank that it is for, and is summed by
// the leaders of hosts alone.
constexpr size_t kSmall = 8 << 10;

// What is to be reduced between hosts, as all ranks know it.
struct WayOptions {
  size_t hosts;
  size_t leaves_per_host = 1;  // as that of HostSubtrees
  size_t bytes = 0;            // of a leaf
  size_t direct_values = 1;    // values of each element that a host has
  size_t wide = 1;             // bytes of a value for each byte of a leaf
  size_t most = 1;         // bytes of leaves, values or results of a host for each byte of a leaf
  size_t most_told = 0;    // bytes that travel with a greeting
  size_t most_halved = 0;  // bytes that there is memory for at once
  bool sums_apart = true;  // whether sums of some leaves can be told
};
Way choose_way(const WayOptions& options, const Costs& costs);

// The bytes of a block of a large reduction. Some blocks travel while others are summed.
struct BlockOptions {
  size_t hosts;
  size_t bytes;  // of a leaf
  size_t room;   // for a leaf's part of a block
};
size_t choose_block(const BlockOptions& options);

// Parts that ranks on several hosts have for each other, as all ranks know them.
struct PartsOptions {
  Collective kind;
  size_t hosts, ranks;
  size_t bytes = 0;  // of one part
  size_t total = 0;  // of all parts
  size_t most_told = 0;
};
Way choose_way_of_parts(const PartsOptions& options, const Costs& costs);

// The size up to which each rank of a host reduces all of the data; larger data is reduced in
// shares. A group asks once, since the smallest operations take less than a microsecond.
size_t most_whole_within_host(size_t ranks, const Costs& costs);

// For tests: every reduction that can goes this way, and parts go in rounds if it is doubling.
std::optional<Way>& forced_way();

}  // namespace tutti::group
