// SPDX-License-Identifier: Apache-2.0
#include "cross_device/packing.h"

#include <algorithm>
#include <numeric>

namespace tutti::cross_device {

namespace {

Pack whole(size_t tensor, int64_t elements) { return {{tensor, 0, elements}}; }

std::vector<Pack> concat_and_split(std::span<const int64_t> elements, int num_packs) {
  const int64_t total = std::accumulate(elements.begin(), elements.end(), int64_t(0));
  const int64_t size = total / num_packs;
  std::vector<Pack> packs{size_t(num_packs)};
  size_t pack = 0;
  int64_t left = num_packs == 1 ? total : size;
  for (size_t t = 0; t < elements.size(); ++t)
    for (int64_t at = 0; at < elements[t];) {
      while (left == 0) left = ++pack + 1 == packs.size() ? total - size * (num_packs - 1) : size;
      const int64_t take = std::min(left, elements[t] - at);
      packs[pack].push_back({t, at, at + take});
      at += take;
      left -= take;
    }
  return packs;
}

std::vector<Pack> aggregate_small(std::span<const int64_t> elements, size_t element_size,
                                  int64_t max_bytes, int max_group) {
  std::vector<Pack> packed, single;
  Pack run;
  const auto end_run = [&] {
    (run.size() > 1 ? packed : single).push_back(run);
    run.clear();
  };
  for (size_t t = 0; t < elements.size(); ++t) {
    const bool small = elements[t] * int64_t(element_size) < max_bytes;
    if (!run.empty() && (!small || int(run.size()) == max_group)) end_run();
    if (small)
      run.push_back({t, 0, elements[t]});
    else
      single.push_back(whole(t, elements[t]));
  }
  if (!run.empty()) end_run();
  packed.insert(packed.end(), single.begin(), single.end());
  return packed;
}

}  // namespace

std::vector<std::vector<size_t>> group_by_bytes(std::span<const int64_t> bytes,
                                                int64_t bytes_per_pack) {
  std::vector<std::vector<size_t>> groups;
  int64_t current = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (groups.empty() || (bytes_per_pack > 0 && current > bytes_per_pack)) {
      groups.emplace_back();
      current = 0;
    }
    groups.back().push_back(i);
    current += bytes[i];
  }
  return groups;
}

std::vector<Pack> packing_plan(std::span<const int64_t> elements, size_t element_size,
                               const PackingOptions& options) {
  std::vector<Pack> packs;
  if (options.num_packs > 0) {
    packs = concat_and_split(elements, options.num_packs);
  } else if (options.agg_small_grads_max_bytes > 0 && options.agg_small_grads_max_group > 0) {
    packs = aggregate_small(elements, element_size, options.agg_small_grads_max_bytes,
                            options.agg_small_grads_max_group);
  } else if (options.bytes_per_pack > 0) {
    packs = concat_and_split(elements, 1);
  } else {
    for (size_t t = 0; t < elements.size(); ++t) packs.push_back(whole(t, elements[t]));
  }
  if (options.bytes_per_pack == 0) return packs;

  std::vector<Pack> cut;
  for (const Pack& pack : packs) {
    std::vector<int64_t> bytes;
    for (const Piece& piece : pack)
      bytes.push_back((piece.end - piece.begin) * int64_t(element_size));
    for (const std::vector<size_t>& group : group_by_bytes(bytes, options.bytes_per_pack)) {
      cut.emplace_back();
      for (const size_t i : group) cut.back().push_back(pack[i]);
    }
    if (pack.empty()) cut.emplace_back();
  }
  return cut;
}

}  // namespace tutti::cross_device
