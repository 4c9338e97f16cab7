// SPDX-License-Identifier: Apache-2.0
#include "costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tutti::tools {

namespace {

// The median of some calls, in nanoseconds.
double time_of(const Group& group, int calls, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < 2 * calls; ++i) {
    group.barrier();
    const auto begin = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    if (i >= calls) times.push_back(took.count());  // the first ones warm up
  }
  std::ranges::nth_element(times, times.begin() + calls / 2);
  return times[size_t(calls / 2)];
}

// Parts go from every rank to every other, so each sends and receives a message for each other.
double time_of_parts(const Group& group, size_t bytes) {
  std::vector<std::byte> in(bytes * size_t(group.size())), out(in.size());
  const auto* const from = reinterpret_cast<const uint8_t*>(in.data());
  auto* const to = reinterpret_cast<uint8_t*>(out.data());
  return time_of(group, bytes > 4096 ? 10 : 200,
                 [&] { group.all_to_all(std::span(from, in.size()), std::span(to, out.size())); });
}

// n ranks take start + (n - 1) each.
struct Line {
  double start, each;
};
struct Times {
  double two, all;
};
// From the times of two and of all `n` ranks; if these are the same, in the proportions of `usual`.
Line line_through(Times times, size_t n, const Line& usual) {
  const double factor = times.two / (usual.start + usual.each);
  if (n <= 2) return {usual.start * factor, usual.each * factor};
  const double each = std::clamp((times.all - times.two) / double(n - 2), 0.0, times.two);
  return {times.two - each, each};
}

double rounded(double value) { return std::stod(fmt::format("{:.3g}", std::max(0.0, value))); }

}  // namespace

base::Costs measure_costs(const Group& job, const group::GroupTopology& topology) {
  base::Costs costs;
  constexpr size_t kMost = 16, kSmall = 4, kMedium = 64 << 10, kLarge = 1 << 20;
  // f(group) among the first `n` of these ranks; rank 0 is one of them.
  const auto among = [&](const std::vector<int>& ranks, size_t n,
                         const std::function<double(const Group&)>& f) {
    const auto end = ranks.begin() + ptrdiff_t(n);
    const bool takes_part = std::find(ranks.begin(), end, job.rank()) != end;
    const Group group = job.split(takes_part ? 0 : 1, job.rank());
    return takes_part ? f(group) : 1;
  };
  if (topology.hosts.size() > 1) {
    std::vector<int> leaders;
    for (const std::vector<int>& ranks : topology.hosts) leaders.push_back(ranks[0]);
    const size_t n = std::min(leaders.size(), kMost);
    const auto small = [&](const Group& group) { return time_of_parts(group, kSmall); };
    const Times times{among(leaders, 2, small), among(leaders, n, small)};
    const auto [latency, message] = line_through(times, n, {costs.latency, costs.message});
    costs.latency = rounded(latency);
    costs.message = rounded(message);
    costs.byte = rounded(among(leaders, 2, [&](const Group& group) {
      const double medium = time_of_parts(group, kMedium);
      return (time_of_parts(group, kLarge) - medium) / double(kLarge - kMedium);
    }));
  }
  if (const std::vector<int>& here = topology.hosts[0]; here.size() > 1) {
    const auto barrier = [](const Group& group) {
      return time_of(group, 200, [&] { group.barrier(); });
    };
    const Times times{among(here, 2, barrier), among(here, here.size(), barrier)};
    const auto [one, each] = line_through(
        times, here.size(), {costs.phase + costs.phase_per_rank, costs.phase_per_rank});
    costs.phase_per_rank = rounded(each);
    costs.phase = rounded(one - each);
  }
  return costs;
}

}  // namespace tutti::tools
