// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::Ints;
using testing::values;

Ints counting(int64_t n) {
  Ints all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

TEST(Shuffle, GivesEveryElementOnce) {
  for (int64_t n : {0, 1, 2, 7, 100})
    for (int64_t buffer : {1, 2, 3, 99, 100, 1000}) {
      Ints drawn = values(Dataset::range(n).shuffle(buffer, 5));
      std::ranges::sort(drawn);
      EXPECT_EQ(drawn, counting(n)) << "with a buffer of " << buffer;
    }
}

TEST(Shuffle, WithABufferOfOneKeepsTheOrder) {
  EXPECT_EQ(values(Dataset::range(20).shuffle(1, 3)), counting(20));
}

TEST(Shuffle, DrawsNoElementBeforeItIsInTheBuffer) {
  const Ints drawn = values(Dataset::range(100).shuffle(10, 3));
  for (int64_t i = 0; i < 100; ++i) EXPECT_LT(drawn[size_t(i)], i + 10);
}

TEST(Shuffle, FollowsItsSeed) {
  const Dataset n = Dataset::range(50);
  EXPECT_EQ(values(n.shuffle(50, 1)), values(n.shuffle(50, 1)));
  EXPECT_NE(values(n.shuffle(50, 1)), values(n.shuffle(50, 2)));
  EXPECT_NE(values(n.shuffle(50, 1)), counting(50));
}

// Orders are part of what a seed means, so they must not change from one release to the next.
TEST(Shuffle, HasTheSameOrderEverywhere) {
  EXPECT_EQ(values(Dataset::range(10).shuffle(10, 42)), (Ints{7, 3, 5, 4, 0, 6, 2, 9, 1, 8}));
}

TEST(Shuffle, HasTheSameOrderWhetherItsInputIsKnownByIndexOrNot) {
  const auto same = [](const std::vector<Tensor>& element) { return element; };
  for (const int64_t buffer : {1, 7, 50, 80})
    EXPECT_EQ(values(Dataset::range(50).shuffle(buffer, 4).repeat(2)),
              values(Dataset::range(50).map(same).shuffle(buffer, 4).repeat(2)));
}

// C199
TEST(Shuffle, DrawsAnotherOrderInEveryRepetitionIfAsked) {
  constexpr int64_t n = 20, epochs = 5;
  const auto orders = [](const Dataset& dataset) {
    std::set<Ints> different;
    const Ints all = values(dataset);
    for (int64_t i = 0; i < epochs; ++i)
      different.insert(Ints(all.begin() + i * n, all.begin() + (i + 1) * n));
    return different.size();
  };
  const Dataset dataset = Dataset::range(n);
  EXPECT_EQ(orders(dataset.shuffle(n, 1).repeat(epochs)), size_t(epochs));
  EXPECT_EQ(orders(dataset.shuffle(n, 1).repeat().take(n * epochs)), size_t(epochs));
  EXPECT_EQ(orders(dataset.shuffle(n, 1).batch(7).unbatch().repeat(epochs)), size_t(epochs));
  EXPECT_EQ(orders(dataset.shuffle(n, 1, /*reshuffle_each_iteration=*/false).repeat(epochs)), 1u);
  EXPECT_EQ(orders(dataset.shuffle(n, 1).cache().repeat(epochs)), 1u);
}

TEST(Shuffle, DrawsAnotherOrderInRepetitionsOfRepetitions) {
  const Ints all = values(Dataset::range(20).shuffle(20, 1).repeat(2).repeat(3));
  std::set<Ints> different;
  for (auto i = all.begin(); i != all.end(); i += 20) different.insert(Ints(i, i + 20));
  EXPECT_EQ(different.size(), 6u);
}

TEST(Shuffle, IsTheSameInEveryIteration) {
  const Dataset dataset = Dataset::range(30).shuffle(30, 9).repeat(2);
  EXPECT_EQ(values(dataset), values(dataset));
}

// Chi-squared over the 24 orders of four elements: 23 degrees of freedom, 49.7 at one in a
// thousand.
TEST(Shuffle, DrawsAllOrdersAlike) {
  std::map<Ints, int> counts;
  constexpr int draws = 24000;
  const Ints all = values(Dataset::range(4).shuffle(4, 17).repeat(draws));
  for (int i = 0; i < draws; ++i) ++counts[Ints(all.begin() + 4 * i, all.begin() + 4 * i + 4)];
  EXPECT_EQ(counts.size(), 24u);
  double chi_squared = 0;
  for (const auto& [order, count] : counts) chi_squared += (count - 1000) * (count - 1000) / 1000.;
  EXPECT_LT(chi_squared, 49.7);
}

TEST(Shuffle, RefusesNoBuffer) {
  EXPECT_ERROR(InvalidArgumentError, "shuffle: buffer_size is 0, expected 1 or more",
               Dataset::range(1).shuffle(0, 1));
}

}  // namespace
}  // namespace tutti
