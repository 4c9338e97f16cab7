// SPDX-License-Identifier: Apache-2.0
#include "cross_device/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tutti::cross_device {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Elements = std::vector<int64_t>;

std::vector<int64_t> sizes(const std::vector<Pack>& packs) {
  std::vector<int64_t> result;
  for (const Pack& pack : packs) {
    result.push_back(0);
    for (const Piece& piece : pack) result.back() += piece.end - piece.begin;
  }
  return result;
}

// Which tensors are in each pack.
std::vector<std::vector<size_t>> members(const std::vector<Pack>& packs) {
  std::vector<std::vector<size_t>> result;
  for (const Pack& pack : packs) {
    result.emplace_back();
    for (const Piece& piece : pack) result.back().push_back(piece.tensor);
  }
  return result;
}

PackingOptions small(int64_t max_bytes, int max_group) {
  return {.num_packs = 0,
          .agg_small_grads_max_bytes = max_bytes,
          .agg_small_grads_max_group = max_group};
}

// C058, C059, and more sizes. A limit of 0 is no limit.
TEST(GroupByBytes, StartsANewGroupOnceTheLastExceedsTheLimit) {
  const auto group = [](Elements bytes, int64_t limit) { return group_by_bytes(bytes, limit); };
  EXPECT_THAT(group({128, 32, 800, 4}, 200), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
  EXPECT_THAT(group({128, 32}, 0), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(group({100, 100, 100}, 100), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(group({4, 4, 4}, 1), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  EXPECT_THAT(group({}, 100), IsEmpty());
  EXPECT_THAT(group({0, 0}, 1), ElementsAre(ElementsAre(0, 1)));
}

TEST(PackingPlan, CutsTheBatchIntoEqualPacksAndTheRestGoesToTheLast) {
  EXPECT_THAT(packing_plan(Elements{10}, 4, {.num_packs = 3}),
              ElementsAre(Pack{{0, 0, 3}}, Pack{{0, 3, 6}}, Pack{{0, 6, 10}}));
  EXPECT_THAT(sizes(packing_plan(Elements{4, 0, 6}, 4, {.num_packs = 3})), ElementsAre(3, 3, 4));
  EXPECT_THAT(packing_plan(Elements{4, 6}, 4, {.num_packs = 3}),
              ElementsAre(Pack{{0, 0, 3}}, Pack{{0, 3, 4}, {1, 0, 2}}, Pack{{1, 2, 6}}));
  EXPECT_THAT(sizes(packing_plan(Elements{4, 6}, 4, {.num_packs = 1})), ElementsAre(10));
}

TEST(PackingPlan, LeavesPacksEmptyIfThereAreFewerElementsThanPacks) {
  EXPECT_THAT(sizes(packing_plan(Elements{2}, 4, {.num_packs = 8})),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 2));
  EXPECT_THAT(sizes(packing_plan(Elements{0, 0}, 4, {.num_packs = 2})), ElementsAre(0, 0));
  EXPECT_THAT(sizes(packing_plan(Elements{}, 4, {.num_packs = 2})), ElementsAre(0, 0));
}

TEST(PackingPlan, LeavesEveryTensorByItselfWithoutOptions) {
  EXPECT_THAT(members(packing_plan(Elements{3, 0, 5}, 4, {.num_packs = 0})),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  EXPECT_THAT(packing_plan(Elements{}, 4, {.num_packs = 0}), IsEmpty());
}

// "Smaller than": a tensor of exactly max_bytes is not small.
TEST(PackingPlan, AggregatesOnlyTensorsSmallerThanTheLimit) {
  EXPECT_THAT(members(packing_plan(Elements{24, 24, 25, 25, 24}, 4, small(100, 10))),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3), ElementsAre(4)));
  EXPECT_THAT(members(packing_plan(Elements{25, 25}, 4, small(101, 10))),
              ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(members(packing_plan(Elements{25, 25}, 2, small(100, 10))),
              ElementsAre(ElementsAre(0, 1)));
}

TEST(PackingPlan, PutsAtMostMaxGroupTensorsTogether) {
  const Elements twelve(12, 1);
  EXPECT_THAT(members(packing_plan(twelve, 4, small(100, 10))),
              ElementsAre(SizeIs(10), ElementsAre(10, 11)));
  EXPECT_THAT(members(packing_plan(Elements(11, 1), 4, small(100, 10))),
              ElementsAre(SizeIs(10), ElementsAre(10)));
  EXPECT_THAT(packing_plan(twelve, 4, small(100, 1)), SizeIs(12));
  EXPECT_THAT(packing_plan(twelve, 4, small(100, 12)), SizeIs(1));
}

// Groups come first, and only neighbours are grouped.
TEST(PackingPlan, PutsGroupsBeforeTheTensorsLeftAlone) {
  EXPECT_THAT(members(packing_plan(Elements{100, 1, 100, 1, 1, 100, 1, 1, 1}, 4, small(100, 10))),
              ElementsAre(ElementsAre(3, 4), ElementsAre(6, 7, 8), ElementsAre(0), ElementsAre(1),
                          ElementsAre(2), ElementsAre(5)));
}

TEST(PackingPlan, PrefersNumPacksOverSmallAggregation) {
  PackingOptions options = small(1000, 10);
  options.num_packs = 2;
  EXPECT_THAT(sizes(packing_plan(Elements{1, 1, 1, 1, 1, 1}, 4, options)), ElementsAre(3, 3));
}

TEST(PackingPlan, CutsEachPackByBytes) {
  // Two packs of 20 bytes; each is cut after the piece that takes it beyond 8.
  EXPECT_THAT(
      members(packing_plan(Elements{1, 2, 2, 1, 1, 3}, 4, {.num_packs = 2, .bytes_per_pack = 8})),
      ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3, 4, 5)));
  // Without packs to cut, the whole batch is one.
  EXPECT_THAT(
      members(packing_plan(Elements{32, 8, 200, 1}, 4, {.num_packs = 0, .bytes_per_pack = 200})),
      ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
}

TEST(PackingPlan, HoldsEveryElementExactlyOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    Elements elements(random() % 12);
    for (int64_t& n : elements) n = random() % 4 ? random() % 50 : 0;
    for (const int num_packs : {0, 1, 2, 3, 8, 1000})
      for (const int64_t max_bytes : {0, 1, 40, 1000})
        for (const int max_group : {0, 1, 2, 10})
          for (const int64_t bytes_per_pack : {0, 1, 30, 100000}) {
            const PackingOptions options{num_packs, max_bytes, max_group, bytes_per_pack};
            const std::vector<Pack> packs = packing_plan(elements, 4, options);
            std::vector<std::vector<int>> seen(elements.size());
            for (size_t t = 0; t < elements.size(); ++t) seen[t].resize(size_t(elements[t]));
            for (const Pack& pack : packs)
              for (const Piece& piece : pack) {
                ASSERT_LE(piece.begin, piece.end);
                for (int64_t i = piece.begin; i < piece.end; ++i)
                  ++seen.at(piece.tensor).at(size_t(i));
              }
            for (const std::vector<int>& counts : seen) ASSERT_THAT(counts, ::testing::Each(1));
            if (num_packs > 0 && bytes_per_pack == 0) {
              ASSERT_THAT(packs, SizeIs(num_packs));
            }
          }
  }
}

}  // namespace
}  // namespace tutti::cross_device
