// SPDX-License-Identifier: Apache-2.0
// The cases of the reference's native collectives, as far as they are about ranks.
#include <numeric>

#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;

// C247
TEST(GroupCases, AllGatherOfOneTwoAndSixteenIsInOrder) {
  for (const int n : {1, 2, 16})
    on_ranks(Group::in_process(n), [n](const Group& group) {
      std::vector<int> all(static_cast<size_t>(n)), expected(static_cast<size_t>(n));
      std::iota(expected.begin(), expected.end(), 0);
      group.all_gather(std::vector{group.rank()}, all, kLong);
      EXPECT_EQ(all, expected);
    });
}

// C248
TEST(GroupCases, BroadcastOfThreeNumbers) {
  on_ranks(Group::in_process(2), [](const Group& group) {
    std::vector<float> data =
        group.rank() == 0 ? std::vector<float>{1, 2, 3} : std::vector<float>(3);
    group.broadcast(data, 0, kLong);
    EXPECT_EQ(data, (std::vector<float>{1, 2, 3}));
  });
}

// C250: the same operation number in two groups.
TEST(GroupCases, TwoGroupsHaveNumbersOfTheirOwn) {
  on_ranks(Group::in_process(4), [](const Group& group) {
    const Group pair = group.split(group.rank() / 2, 0);
    std::vector<int> data{group.rank() + 1};
    pair.all_reduce(data, ReduceOp::SUM, kLong);
    EXPECT_EQ(data[0], group.rank() < 2 ? 3 : 7);
  });
}

// C251
TEST(GroupCases, AGroupOfOneReturnsItsInput) {
  const Group group = Group::in_process(1)[0];
  for (const ReduceOp op : kOps) {
    std::vector<float> data{1.5f, -2, 3};
    group.all_reduce(data, op, kLong);
    EXPECT_EQ(data, (std::vector<float>{1.5f, -2, 3}));
  }
}

// C253
TEST(GroupCases, GroupsOfTwoAndThreeSumTheirKeyTimesTheirSize) {
  on_ranks(Group::in_process(5), [](const Group& group) {
    const int key = group.rank() < 2 ? 10 : 20;
    const Group part = group.split(key, 0);
    std::vector<int> data{key};
    part.all_reduce(data, ReduceOp::SUM, kLong);
    EXPECT_EQ(data[0], key * (key == 10 ? 2 : 3));
  });
}

// C254, C259: hints change nothing.
TEST(GroupCases, HintsDoNotChangeTheResult) {
  on_ranks(Group::in_process(2), [](const Group& group) {
    for (const auto implementation :
         {CommunicationImplementation::AUTO, CommunicationImplementation::RING,
          CommunicationImplementation::NCCL})
      for (const int64_t bytes_per_pack : {0, 1, 16}) {
        std::vector<float> data{1};
        group.all_reduce(data, ReduceOp::SUM,
                         {.bytes_per_pack = bytes_per_pack,
                          .timeout = kLong.timeout,
                          .implementation = implementation});
        EXPECT_EQ(data[0], 2);
      }
  });
}

// C257: one side gives up, so both do.
TEST(GroupCases, LeavingEndsBothSides) {
  Groups groups = Group::in_process(2);
  std::vector<float> a(3), b(3);
  Work work = groups[0].all_reduce_async(a, ReduceOp::SUM, kLong);
  groups.erase(groups.begin());
  EXPECT_TRUE(caught([&] { work.wait(); }).code);
  EXPECT_EQ(caught([&] { groups[0].all_reduce(b, ReduceOp::SUM, kLong); }).code,
            ErrorCode::aborted);
}

// C262: W workers with D devices each, so W * D leaves, with data whose sum and mean are exact.
struct RingCase {
  int workers, devices;
  std::vector<int64_t> lengths;
};

class RingCases : public ::testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(, RingCases, ::testing::ValuesIn(kWorlds), name_of_world);

template <class T>
void expect_ring(const World& world, int workers, int devices, int64_t length, ReduceOp op) {
  SCOPED_TRACE(fmt::format("{} workers, {} devices, {} of {}", workers, devices, name(op), length));
  const int leaves = workers * devices;
  const Groups groups = world.make(workers);
  std::vector<int> owners;
  for (int leaf = 0; leaf < leaves; ++leaf) owners.push_back(leaf / devices);
  const auto element = [](int leaf, int64_t i) {
    if constexpr (std::is_integral_v<T>) return T(leaf * 10 + i);
    return T(float(std::pow(10.f, float(leaf % 4)) * float(i % 64)));
  };
  std::vector<std::vector<T>> inputs;
  std::vector<const void*> in;
  for (int leaf = 0; leaf < leaves; ++leaf) {
    std::vector<T>& mine = inputs.emplace_back();
    for (int64_t i = 0; i < length; ++i) mine.push_back(element(leaf, i));
  }
  for (const auto& one : inputs) in.push_back(one.data());
  const std::vector<std::byte> expected =
      reference(dtype_of<T>::value, op, in, size_t(length), leaves);
  on_ranks(groups, [&](const Group& group) {
    std::vector<std::vector<T>> mine;
    for (int d = 0; d < devices; ++d) mine.push_back(inputs[size_t(group.rank() * devices + d)]);
    std::vector<const void*> from;
    std::vector<void*> to;
    for (std::vector<T>& one : mine) {
      from.push_back(one.data());
      to.push_back(one.data());
    }
    const group::Piece piece{from, to, length, dtype_of<T>::value};
    detail::GroupAccess::impl(group).all_reduce_leaves({{&piece, 1}, owners, op}, kLong);
    for (const std::vector<T>& one : mine)
      EXPECT_TRUE(same_bits(dtype_of<T>::value, one.data(), expected.data(), size_t(length)));
  });
}

TEST_P(RingCases, AreExactOnEveryLeaf) {
  const int64_t large = TUTTI_TEST_SANITIZED ? 104'599 : 1'045'991;
  const RingCase cases[] = {{1, 2, {1, 2, 8, 16, 1001}},
                            {2, 4, {128}},
                            {2, 8, {1001, 4096, 9408, 4095, large}},
                            {4, 4, {large}}};
  for (const RingCase& one : cases)
    for (const int64_t length : one.lengths)
      expect_ring<float>(GetParam(), one.workers, one.devices, length, ReduceOp::MEAN);
  expect_ring<double>(GetParam(), 2, 8, 1001, ReduceOp::MEAN);
  expect_ring<bfloat16>(GetParam(), 2, 8, 4095, ReduceOp::MEAN);
  expect_ring<float16>(GetParam(), 2, 8, 4095, ReduceOp::MEAN);
  expect_ring<int32_t>(GetParam(), 2, 8, 9408, ReduceOp::SUM);
  expect_ring<int64_t>(GetParam(), 2, 8, 4096, ReduceOp::SUM);
}

// The contract's own program, once more with every number of ranks.
class Contract : public Ranks {};
TUTTI_ON_RANKS(Contract);

TEST_P(Contract, SumsAndMeansOfRankNumbers) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<float> sum(1000, float(group.rank())), mean(sum);
    group.all_reduce(sum, ReduceOp::SUM, kLong);
    group.all_reduce(mean, ReduceOp::MEAN, kLong);
    EXPECT_EQ(sum[999], float(n * (n - 1) / 2));
    EXPECT_EQ(mean[0], float(n * (n - 1) / 2) / float(n));
    std::vector<int32_t> ints{group.rank(), 1};
    std::vector<double> doubles(2);
    group.all_reduce(ints, doubles, ReduceOp::MEAN, kLong);
    EXPECT_EQ(doubles[0], double(n * (n - 1) / 2) / n);
  });
}

}  // namespace
}  // namespace tutti
