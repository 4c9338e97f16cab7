// SPDX-License-Identifier: Apache-2.0
#include "base/costs.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <charconv>
#include <vector>

namespace tutti::base {

namespace {

constexpr CostDoc kCosts[] = {
    {"latency", &Costs::latency,
     "of a message between hosts, and of waiting for the slower of two"},
    {"message", &Costs::message, "of a message between hosts, at both ends together"},
    {"byte", &Costs::byte, "of a byte of such a message, at both ends together"},
    {"sum", &Costs::sum, "of a byte that a host sums"},
    {"phase", &Costs::phase, "of a phase in which the ranks of a host wait for each other"},
    {"phase_per_rank", &Costs::phase_per_rank, "what each rank of the host adds to it"},
    {"whole_byte", &Costs::whole_byte,
     "of a byte of one rank, if every rank of the host sums all of it"},
    {"share_byte", &Costs::share_byte, "of a byte, if every rank of the host sums a share of it"},
};
constexpr double kLargest = 1e9;

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  std::vector<std::string_view> names;
  for (const CostDoc& doc : kCosts) names.emplace_back(doc.name);
  throw InvalidArgumentError(
      fmt::format("TUTTI_COSTS={}: {}; write it as in latency=1500,byte=0.34, in nanoseconds, with "
                  "any of {}",
                  text, why, fmt::join(names, ", ")));
}

}  // namespace

std::span<const CostDoc> cost_docs() { return kCosts; }

Costs parse_costs(std::string_view text) {
  Costs costs;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const size_t equals = std::min(one.size(), one.find('='));
    const std::string_view name = one.substr(0, equals);
    const auto found = std::ranges::find(kCosts, name, &CostDoc::name);
    if (found == std::end(kCosts)) refuse(text, fmt::format("there is no cost \"{}\"", name));
    const std::string_view number = one.substr(std::min(one.size(), equals + 1));
    double& value = costs.*found->value;
    const char* const last = number.data() + number.size();
    const auto [end, error] = std::from_chars(number.data(), last, value);
    if (error != std::errc() || end != last || !(value >= 0 && value <= kLargest))
      refuse(text,
             fmt::format("{} is \"{}\", expected a number from 0 to {:g}", name, number, kLargest));
  }
  return costs;
}

std::string to_string(const Costs& costs) {
  std::vector<std::string> given;
  for (const CostDoc& doc : kCosts)
    if (costs.*doc.value != Costs{}.*doc.value)
      given.push_back(fmt::format("{}={}", doc.name, costs.*doc.value));
  return fmt::format("{}", fmt::join(given, ","));
}

}  // namespace tutti::base
