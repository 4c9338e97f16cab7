// SPDX-License-Identifier: Apache-2.0
// A reduction over leaves gives the same bits whichever rank has which leaf.
#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;
using group::LeafReduction;
using group::Piece;

struct Tensors {
  DType dtype;
  int64_t count;
};

// How a rank takes the result: in the leaves themselves, or in `apart` outputs of its own.
void expect_exact(const Groups& groups, const std::vector<int>& owners, ReduceOp op,
                  const std::vector<Tensors>& tensors, std::optional<size_t> apart) {
  std::vector<Sample> samples;
  for (const Tensors& t : tensors) samples.emplace_back(t.dtype, op, t.count, int(owners.size()));
  on_ranks(groups, [&](const Group& group) {
    std::vector<std::vector<Buffer>> leaves(tensors.size()), outputs(tensors.size());
    std::vector<std::vector<const void*>> in(tensors.size());
    std::vector<std::vector<void*>> out(tensors.size());
    std::vector<Piece> pieces;
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (size_t leaf = 0; leaf < owners.size(); ++leaf)
        if (owners[leaf] == group.rank())
          leaves[i].emplace_back(samples[i].count, samples[i].dtype, samples[i].inputs[leaf]);
      for (size_t k = 0; k < apart.value_or(0); ++k)
        outputs[i].emplace_back(samples[i].count, samples[i].result);
      for (Buffer& leaf : leaves[i]) in[i].push_back(leaf.data());
      for (Buffer& to : apart ? outputs[i] : leaves[i]) out[i].push_back(to.data());
      pieces.push_back({in[i], out[i], samples[i].count, samples[i].dtype});
    }
    detail::GroupAccess::impl(group).all_reduce_leaves({pieces, owners, op}, kLong);
    for (size_t i = 0; i < tensors.size(); ++i)
      for (const Buffer& result : apart ? outputs[i] : leaves[i])
        EXPECT_TRUE(result.is(samples[i].expected)) << fmt::format(
            "rank {}, tensor {}, {} of {}[{}], leaves of {}", group.rank(), i, name(op),
            name(samples[i].dtype), samples[i].count, fmt::join(owners, " "));
  });
}

class Leaves : public ::testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(, Leaves, ::testing::ValuesIn(kWorlds), name_of_world);

const std::vector<std::vector<int>> kLayouts{
    {0, 1, 2},           // one each
    {0, 0, 1, 1, 2, 2},  // two each
    {0, 1, 2, 0, 1, 2},  // dealt out
    {2, 0, 0, 1, 2, 0},  // uneven and in no order
    {1, 1, 1, 1, 1},     // all with one rank
    {0, 2, 0},           // one rank without any
    {2},
};

TEST_P(Leaves, GiveTheSameBitsInEveryLayout) {
  const Groups groups = GetParam().make(3);
  for (const std::vector<int>& owners : kLayouts)
    for (const int64_t count : {0, 1, 4, 12, 13, 1000, 5461, 16384, 16385, 140'001})
      for (const std::optional<size_t> apart : {std::optional<size_t>(), std::optional<size_t>(1)})
        expect_exact(groups, owners, ReduceOp::SUM, {{DType::float32, count}}, apart);
}

TEST_P(Leaves, GoToAnyNumberOfOutputs) {
  const Groups groups = GetParam().make(3);
  for (const std::vector<int>& owners : kLayouts)
    for (const int64_t count : {5, 70'001})
      for (const size_t apart : {0, 2, 3})
        expect_exact(groups, owners, ReduceOp::MEAN, {{DType::bfloat16, count}}, apart);
}

TEST_P(Leaves, GrowIfTheirMeanIsWider) {
  const Groups groups = GetParam().make(3);
  for (const std::vector<int>& owners : kLayouts)
    for (const int64_t count : {5, 1000, 70'001, 600'001})
      expect_exact(groups, owners, ReduceOp::MEAN, {{DType::uint8, count}, {DType::int32, 3}}, 1);
}

TEST_P(Leaves, ComeInSeveralTensors) {
  const Groups groups = GetParam().make(3);
  for (const std::vector<int>& owners : kLayouts) {
    expect_exact(groups, owners, ReduceOp::SUM, {}, {});
    expect_exact(groups, owners, ReduceOp::SUM,
                 {{DType::float16, 3}, {DType::float32, 0}, {DType::int64, 77}}, {});
    expect_exact(groups, owners, ReduceOp::SUM,
                 {{DType::float16, 33'333}, {DType::float32, 0}, {DType::int64, 77'777}}, {});
  }
}

TEST_P(Leaves, ThatRanksCountDifferentlyAreAnError) {
  const Groups groups = GetParam().make(2);
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    std::vector<float> leaf(4);
    const void* in[] = {leaf.data(), leaf.data()};
    void* out = leaf.data();
    const Piece piece{{in, 1}, {&out, 1}, 4, DType::float32};
    const std::vector<int> owners = group.rank() ? std::vector{0, 1} : std::vector{1, 0};
    detail::GroupAccess::impl(group).all_reduce_leaves({{&piece, 1}, owners, ReduceOp::SUM}, kLong);
  });
  expect_everywhere(errors, ErrorCode::invalid_argument, {"rank 0", "rank 1", "all_reduce"});
}

}  // namespace
}  // namespace tutti
