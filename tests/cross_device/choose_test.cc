// SPDX-License-Identifier: Apache-2.0
#include "cross_device/choose.h"

#include <gtest/gtest.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <functional>

#include "cross_device/hierarchy.h"
#include "support/expect.h"
#include "support/fake_gpu.h"

namespace tutti::cross_device {

void PrintTo(const Choice& choice, std::ostream* os) {
  *os << choice.algorithm << " with " << choice.num_packs << " packs";
}

namespace {

const LinkTable kDgx1 = {{1, 2, 3, 4}, {0, 2, 3, 5}, {0, 1, 3, 6}, {0, 1, 2, 7},
                         {0, 5, 6, 7}, {1, 4, 6, 7}, {2, 4, 5, 7}, {3, 4, 5, 6}};

std::vector<std::string> gpus(size_t n) { return std::vector<std::string>(n, "GPU"); }

// C013
TEST(Choose, CopiesHierarchicallyOnTwoLinkedQuads) {
  EXPECT_EQ(choose(gpus(8), kDgx1), (Choice{"hierarchical_copy", 8}));
  EXPECT_EQ(choose(gpus(3), kDgx1), (Choice{"hierarchical_copy", 3}));
  LinkTable shuffled = kDgx1;
  for (std::vector<int>& row : shuffled) std::ranges::reverse(row);
  EXPECT_EQ(choose(gpus(8), shuffled), (Choice{"hierarchical_copy", 8}));
}

TEST(Choose, ToleratesSelfLinks) {
  LinkTable links = kDgx1;
  for (size_t gpu = 0; gpu < links.size(); gpu += 3) links[gpu].push_back(int(gpu));
  EXPECT_EQ(choose(gpus(8), links), (Choice{"hierarchical_copy", 8}));
}

TEST(Hierarchy, SendsOverTheLinksOfTwoQuadsOnly) {
  for (int n = 2; n <= 8; ++n)
    for (const std::vector<Transfer>& round : reduction_rounds(n))
      for (const auto& [from, to] : round)
        EXPECT_TRUE(std::ranges::count(kDgx1[size_t(from)], to))
            << n << " devices, " << from << " to " << to;
}

TEST(Hierarchy, AddsUpTheTree) {
  for (int n = 1; n <= 33; ++n) {
    std::vector<std::string> sums;
    for (int i = 0; i < n; ++i) sums.push_back(std::to_string(i));
    for (const std::vector<Transfer>& round : reduction_rounds(n))
      for (const auto& [from, to] : round)
        sums[size_t(to)] = "(" + sums[size_t(to)] + "+" + sums[size_t(from)] + ")";
    const std::function<std::string(int, int)> tree = [&](int first, int count) {
      if (count == 1) return std::to_string(first);
      int left = 1;
      while (2 * left < count) left *= 2;
      return "(" + tree(first, left) + "+" + tree(first + left, count - left) + ")";
    };
    EXPECT_EQ(sums[0], tree(0, n));
  }
}

TEST(Hierarchy, TakesAsManyRoundsAsTheTreeIsHigh) {
  EXPECT_EQ(reduction_rounds(8).size(), 3u);
  EXPECT_EQ(reduction_rounds(8)[0].size(), 4u);
  EXPECT_EQ(reduction_rounds(7).size(), 3u);
  EXPECT_TRUE(reduction_rounds(1).empty());
}

// C014
TEST(Choose, TakesNcclOnHalfOfTheTable) {
  EXPECT_EQ(choose(gpus(4), LinkTable(kDgx1.begin(), kDgx1.begin() + 4)), (Choice{"nccl", 1}));
}

// C016
TEST(Choose, TakesNcclOnARotatedTable) {
  LinkTable links = kDgx1;
  std::rotate(links.begin(), links.begin() + 1, links.end());
  EXPECT_EQ(choose(gpus(8), links), (Choice{"nccl", 1}));
}

TEST(Choose, TakesNcclIfALinkIsMissingOrTooMuch) {
  LinkTable missing = kDgx1, extra = kDgx1;
  missing[7].pop_back();
  extra[0].push_back(5);
  EXPECT_EQ(choose(gpus(8), missing), (Choice{"nccl", 1}));
  EXPECT_EQ(choose(gpus(8), extra), (Choice{"nccl", 1}));
  EXPECT_EQ(choose(gpus(2), {}), (Choice{"nccl", 1}));
}

TEST(Choose, MeetsOnOneDeviceUnlessAllAreGpus) {
  EXPECT_EQ(choose({"CPU"}, kDgx1).algorithm, "reduction_to_one_device");
  EXPECT_EQ(choose({"GPU", "CPU"}, kDgx1).algorithm, "reduction_to_one_device");
}

template <class Ops>
bool is(const std::unique_ptr<CrossDeviceOps>& ops) {
  return dynamic_cast<Ops*>(ops.get()) != nullptr;
}

TEST(ChooseTheBest, LooksAtTheDevicesOfThisProcess) {
  set_logical_devices("CPU", 2);
  testing::add_fake_gpus(2);
  EXPECT_TRUE(is<ReductionToOneDevice>(choose_the_best({"/cpu:0", "/cpu:1"})));
  EXPECT_TRUE(is<ReductionToOneDevice>(choose_the_best({"/gpu:0", "/cpu:1"})));
  EXPECT_TRUE(is<AllReduceCrossDeviceOps>(choose_the_best({"/gpu:0", "/gpu:1"})));
}

TEST(ChooseTheBest, RefusesDevicesThatAreNotThere) {
  EXPECT_ERROR(InvalidArgumentError, "choose_the_best: the list of devices is empty",
               choose_the_best({}));
  EXPECT_ERROR(InvalidArgumentError, "choose_the_best", choose_the_best({"/warp:0"}));
  EXPECT_ERROR(InvalidArgumentError, "/warp:0", choose_the_best({"/warp:0"}));
  EXPECT_ERROR(InvalidArgumentError, "CPU:9", choose_the_best({"/cpu:0", "/cpu:9"}));
}

}  // namespace
}  // namespace tutti::cross_device
