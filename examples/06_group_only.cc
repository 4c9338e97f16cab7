// SPDX-License-Identifier: Apache-2.0
// The collectives alone: workers that estimate pi together, with no strategy and no tensors.
// Run it alone, or as several workers: tutti run -n 4 06_group_only
#include <tutti/tutti.h>

#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

using namespace tutti;

int main() try {
  const Group world = Group::from_environment();
  const int rank = world.rank(), size = world.size();

  // Every rank throws darts, with a seed of its own, and all sum up what they hit.
  constexpr int kDarts = 1'000'000;
  std::mt19937_64 random(uint64_t(rank) + 1);
  std::uniform_real_distribution<double> along(0, 1);
  std::vector<int64_t> counts{0, kDarts};
  for (int i = 0; i < kDarts; ++i) {
    const double x = along(random), y = along(random);
    counts[0] += x * x + y * y < 1;
  }
  const int64_t mine = counts[0];
  world.all_reduce(counts, ReduceOp::SUM);  // in place: any contiguous range of a known type

  // Rank 0 gets what each of them hit, in rank order, to print it.
  std::vector<int64_t> hits(rank == 0 ? size_t(size) : 0);
  world.gather(std::vector<int64_t>{mine}, hits, /*root=*/0);
  if (rank == 0) {
    for (int r = 0; r < size; ++r)
      std::printf("rank %d: %lld hits\n", r, (long long)hits[size_t(r)]);
    std::printf("%d workers: pi is about %.4f\n", size, 4 * double(counts[0]) / double(counts[1]));
  }
} catch (const Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
