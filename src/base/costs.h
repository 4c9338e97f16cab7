// SPDX-License-Identifier: Apache-2.0
// What moving and summing data takes: what the plans of collectives (group/plan) go by.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tutti::base {

// In nanoseconds. The defaults were measured over TCP on the loopback interface, and in shared
// memory, of a machine with 16 cores.
struct Costs {
  // Between hosts.
  double latency = 1500;
  double message = 5700;
  double byte = 0.34;
  double sum = 0.1;
  // Within a host.
  double phase = 300;
  double phase_per_rank = 150;
  double whole_byte = 0.14;
  double share_byte = 0.35;

  friend bool operator==(const Costs&, const Costs&) = default;
};

struct CostDoc {
  const char* name;  // in TUTTI_COSTS
  double Costs::*value;
  const char* meaning;
};
// One entry per cost: what docs/settings.md and `tutti info --job` print.
std::span<const CostDoc> cost_docs();

// From "latency=1500,byte=0.34"; the others have their defaults. InvalidArgumentError, with what to
// write instead, for an unknown name or a bad number.
Costs parse_costs(std::string_view text);
// The inverse, without those that have their defaults.
std::string to_string(const Costs& costs);

}  // namespace tutti::base
