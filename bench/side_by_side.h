// SPDX-License-Identifier: Apache-2.0
// Times several ways to do one thing, in turns: this tells them apart even if the machine's speed
// drifts.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

namespace tutti::bench {

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + long(values.size() / 2), values.end());
  return values[values.size() / 2];
}

struct Timings {
  std::vector<std::vector<double>> seconds;  // [way][round]

  double median_of(size_t way) const { return median(seconds[way]); }
  // The median over the rounds of how much longer `way` took than `base`.
  double ratio(size_t way, size_t base) const {
    std::vector<double> ratios;
    for (size_t i = 0; i < seconds[way].size(); ++i)
      ratios.push_back(seconds[way][i] / seconds[base][i]);
    return median(std::move(ratios));
  }
  double fastest(size_t way) const { return *std::ranges::min_element(seconds[way]); }
  double slowest(size_t way) const { return *std::ranges::max_element(seconds[way]); }
};

// Times each way `rounds` times, in turns; every timing is the mean of `calls` calls.
inline Timings side_by_side(int rounds, int calls, const std::vector<std::function<void()>>& ways) {
  Timings timings{std::vector<std::vector<double>>(ways.size())};
  for (int round = -1; round < rounds; ++round)
    for (size_t way = 0; way < ways.size(); ++way) {
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) ways[way]();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (round >= 0)
        timings.seconds[way].push_back(took.count() / calls);  // the first round warms up
    }
  return timings;
}

}  // namespace tutti::bench
