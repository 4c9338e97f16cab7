// SPDX-License-Identifier: Apache-2.0
#include "group/plan/doubling.h"

#include <algorithm>
#include <bit>

namespace tutti::group {

namespace {

struct Leaves {
  size_t begin, end;
};

// The largest subtrees of [first, first + n) in any of the ranges.
void add_subtrees(std::span<const Leaves> known, size_t first, size_t n,
                  std::vector<Subtree>& found) {
  size_t inside = 0;
  for (const Leaves& range : known) {
    const size_t begin = std::max(first, range.begin), end = std::min(first + n, range.end);
    if (begin < end) inside += end - begin;
  }
  if (inside == n) return found.push_back({first, n});
  if (!inside) return;
  const size_t p = base::left_part(n);
  add_subtrees(known, first, p, found);
  add_subtrees(known, first + p, n - p, found);
}

}  // namespace

Doubling doubling_of(int host, int hosts, size_t leaves_per_host) {
  const int p = int(std::bit_floor(unsigned(hosts)));
  const auto leaves = [&](int begin, int end) {
    return Leaves{size_t(begin) * leaves_per_host, size_t(std::min(end, hosts)) * leaves_per_host};
  };
  const auto subtrees_of = [&](std::initializer_list<Leaves> known) {
    std::vector<Subtree> found;
    add_subtrees(known, 0, size_t(hosts) * leaves_per_host, found);
    return found;
  };
  Doubling plan;
  plan.own = subtrees_of({leaves(host, host + 1)});
  if (host >= p) {
    plan.gives_to = host - p;
    return plan;
  }
  if (host + p < hosts) {
    plan.takes_from = host + p;
    plan.taken = subtrees_of({leaves(host + p, host + p + 1)});
  }
  for (int distance = 1; distance < p; distance *= 2) {
    // The hosts that have exchanged all they know, and those that gave their values to them.
    const auto known_to = [&](int one) {
      const int first = one / distance * distance;
      return subtrees_of({leaves(first, first + distance),
                          leaves(std::min(first + p, hosts), first + p + distance)});
    };
    const int peer = host ^ distance;
    plan.rounds.push_back({peer, known_to(host), known_to(peer)});
  }
  return plan;
}

size_t most_values_of_doubling(size_t hosts, size_t leaves_per_host) {
  const size_t odd = leaves_per_host >> std::countr_zero(leaves_per_host);
  if (odd > 1) return 4 * (size_t(std::bit_width(odd)) - 1);  // at both ends of two ranges
  return std::has_single_bit(hosts) ? 1 : 2;
}

size_t rounds_of_doubling(size_t hosts) {
  return size_t(std::bit_width(hosts)) - 1 + (std::has_single_bit(hosts) ? 0 : 2);
}

}  // namespace tutti::group
