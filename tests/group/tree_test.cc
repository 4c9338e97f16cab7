// SPDX-License-Identifier: Apache-2.0
// Sums that are cut at the borders between hosts.
#include "group/plan/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "group/samples.h"

namespace tutti::group {
namespace {

using namespace tutti::testing;
using ::testing::ElementsAre;

std::vector<Subtree> of_host(size_t leaves, const std::vector<int>& hosts, int host,
                             bool single = false) {
  auto found = largest_subtrees(
      leaves, [&](size_t leaf) { return hosts[leaf]; }, single);
  std::erase_if(found, [&](const Subtree& subtree) { return hosts[subtree.first] != host; });
  return found;
}

TEST(LargestSubtrees, OfContiguousRanksAreOneForAPowerOfTwo) {
  EXPECT_THAT(of_host(4, {0, 0, 1, 1}, 0), ElementsAre(Subtree{0, 2}));
  EXPECT_THAT(of_host(4, {0, 0, 1, 1}, 1), ElementsAre(Subtree{2, 2}));
  EXPECT_THAT(of_host(8, {0, 0, 0, 0, 1, 1, 1, 1}, 1), ElementsAre(Subtree{4, 4}));
}

TEST(LargestSubtrees, AreTwoForThreeOrSixContiguousRanks) {
  const std::vector<int> threes{0, 0, 0, 1, 1, 1};
  EXPECT_THAT(of_host(6, threes, 0), ElementsAre(Subtree{0, 2}, Subtree{2, 1}));
  EXPECT_THAT(of_host(6, threes, 1), ElementsAre(Subtree{3, 1}, Subtree{4, 2}));
  const std::vector<int> sixes{0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1};
  EXPECT_THAT(of_host(12, sixes, 0), ElementsAre(Subtree{0, 4}, Subtree{4, 2}));
  EXPECT_THAT(of_host(12, sixes, 1), ElementsAre(Subtree{6, 2}, Subtree{8, 4}));
}

TEST(LargestSubtrees, OfRanksDealtInTurnAreTheLeaves) {
  EXPECT_THAT(of_host(4, {0, 1, 0, 1}, 0), ElementsAre(Subtree{0, 1}, Subtree{2, 1}));
}

TEST(LargestSubtrees, OfOneHostAreTheWholeTree) {
  EXPECT_THAT(of_host(7, {0, 0, 0, 0, 0, 0, 0}, 0), ElementsAre(Subtree{0, 7}));
  EXPECT_THAT(of_host(1, {0}, 0), ElementsAre(Subtree{0, 1}));
}

TEST(LargestSubtrees, AreTheLeavesIfPartialSumsAreNotExact) {
  EXPECT_THAT(of_host(3, {0, 0, 1}, 0, true), ElementsAre(Subtree{0, 1}, Subtree{1, 1}));
}

// Whatever the hosts, the sum of their partial sums has the bits of the sum.
TEST(TreeSum, HasTheSameBitsHoweverTheLeavesAreSpread) {
  std::mt19937 random(7);
  for (const auto& [dtype, op] :
       {std::pair(DType::float32, ReduceOp::SUM), std::pair(DType::float64, ReduceOp::MEAN),
        std::pair(DType::bfloat16, ReduceOp::MEAN), std::pair(DType::float16, ReduceOp::PROD),
        std::pair(DType::int8, ReduceOp::MEAN), std::pair(DType::uint32, ReduceOp::MEAN),
        std::pair(DType::int64, ReduceOp::MEAN), std::pair(DType::int16, ReduceOp::SUM),
        std::pair(DType::float32, ReduceOp::MIN), std::pair(DType::boolean, ReduceOp::MAX)}) {
    for (const size_t leaves : {1, 2, 3, 5, 6, 7, 12}) {
      const int64_t count = 5000;  // more than a tile
      const Sample sample(dtype, op, count, int(leaves));
      const size_t hosts = 1 + random() % leaves;
      std::vector<int> host_of(leaves);
      for (int& host : host_of) host = int(random() % hosts);
      SCOPED_TRACE(fmt::format("{} of {}, {} leaves", name(op), name(dtype), leaves));

      TreeSum sum(op, dtype, leaves);
      std::vector<std::pair<Subtree, std::vector<std::byte>>> values;
      for (size_t h = 0; h < hosts; ++h)
        for (const Subtree& subtree : of_host(leaves, host_of, int(h), !has_partials(op, dtype))) {
          std::vector<const void*> inputs;
          for (size_t leaf = subtree.first; leaf < subtree.first + subtree.leaves; ++leaf)
            inputs.push_back(sample.inputs[leaf].data());
          auto& [key, value] = values.emplace_back(
              subtree, std::vector<std::byte>(size_t(count) * value_size(subtree, op, dtype)));
          sum.partial(inputs, value.data(), count);
        }
      std::ranges::sort(values, {}, [](const auto& value) { return value.first.first; });
      std::vector<Subtree> subtrees;
      std::vector<const void*> inputs;
      for (const auto& [subtree, value] : values) {
        subtrees.push_back(subtree);
        inputs.push_back(value.data());
      }
      Buffer one(count, sample.result), two(count, sample.result);
      void* const outputs[] = {one.data(), two.data()};
      sum.finish(subtrees, inputs, outputs, count);
      ASSERT_TRUE(one.is(sample.expected));
      ASSERT_TRUE(two.is(sample.expected));
    }
  }
}

}  // namespace
}  // namespace tutti::group
