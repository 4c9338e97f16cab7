// SPDX-License-Identifier: Apache-2.0
// Every way between hosts: reductions have the bits of one process, and parts get where they
// belong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/simulation.h>

#include <algorithm>
#include <ostream>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "group/plan/way.h"

namespace tutti::group {

void PrintTo(Way way, std::ostream* out) { *out << name(way); }

}  // namespace tutti::group

namespace tutti::testing {
namespace {

using group::Way;

// Each test sets it and runs in a process of its own.
class Ways : public ::testing::TestWithParam<std::tuple<Way, int, int>> {
 protected:
  void SetUp() override { group::forced_way() = std::get<0>(GetParam()); }
  void TearDown() override { group::forced_way().reset(); }
};

struct Case {
  DType dtype;
  ReduceOp op;
  std::vector<int64_t> counts;  // of the tensors of a list
};

std::vector<Tensor> inputs_of(const Case& one, int rank) {
  std::vector<Tensor> tensors;
  for (const int64_t count : one.counts) {
    tensors.push_back(Tensor::empty({count}, one.dtype));
    for (int64_t i = 0; i < count; ++i) {
      const float value =
          one.dtype == DType::int32 ? float((rank * 7 + i) % 101) : 1.f / float(rank * 7 + i + 1);
      if (one.dtype == DType::float32) tensors.back().span<float>()[size_t(i)] = value;
      if (one.dtype == DType::int32) tensors.back().span<int32_t>()[size_t(i)] = int32_t(value);
      if (one.dtype == DType::bfloat16)  // from 1 to 2
        static_cast<uint16_t*>(tensors.back().data())[i] = uint16_t(0x3f80 + (rank * 7 + i) % 128);
      if (one.dtype == DType::float64) tensors.back().span<double>()[size_t(i)] = value;
    }
  }
  return tensors;
}

std::string bits_of(const std::vector<Tensor>& tensors) {
  std::string bits;
  for (const Tensor& tensor : tensors)
    bits.append(static_cast<const char*>(tensor.const_data()), tensor.num_bytes());
  return bits;
}

std::string in_one_process(const Case& one, int ranks) {
  const std::vector<Group> groups = Group::in_process(ranks);
  std::string bits;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        const std::vector<Tensor> data = inputs_of(one, rank);
        groups[size_t(rank)].all_reduce(data, one.op);
        if (rank == 0) bits = bits_of(data);
      });
  }
  return bits;
}

TEST_P(Ways, HaveTheBitsOfOneProcess) {
  const auto [way, hosts, per_host] = GetParam();
  const int ranks = hosts * per_host;
  const std::vector<Case> cases{
      {DType::float32, ReduceOp::SUM, {1}},          {DType::float32, ReduceOp::MEAN, {3000}},
      {DType::float64, ReduceOp::SUM, {5, 700, 33}}, {DType::float32, ReduceOp::SUM, {20'000}},
      {DType::bfloat16, ReduceOp::MEAN, {77, 5000}}, {DType::int32, ReduceOp::MAX, {100}}};
  std::vector<std::string> expected;
  for (const Case& one : cases) expected.push_back(in_one_process(one, ranks));
  const auto outcomes = Group::simulated(ranks, {.hosts = hosts}).run([&](const Group& group) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::vector<Tensor> data = inputs_of(cases[i], group.rank());
      group.all_reduce(data, cases[i].op);
      ASSERT_EQ(bits_of(data), expected[i]) << "case " << i << " on rank " << group.rank();
    }
  });
  for (const auto& outcome : outcomes) ASSERT_TRUE(outcome.ok()) << outcome.error;
}

// Ranks of many hosts show each other a block in pieces, and agree in rounds.
TEST(ManyHosts, ReduceBlocksOfSeveralPieces) {
  const std::vector<size_t> counts{300'001, 16, 400'000};
  const auto value = [](int rank, size_t i) { return float((size_t(rank) * 7 + i) % 101); };
  for (const auto& [hosts, per_host] : {std::pair(40, 2), {33, 3}}) {
    const int ranks = hosts * per_host;
    std::vector<float> expected(counts[2]);
    for (size_t i = 0; i < expected.size(); ++i)
      for (int rank = 0; rank < ranks; ++rank) expected[i] += value(rank, i);
    const auto outcomes = Group::simulated(ranks, {.hosts = hosts}).run([&](const Group& group) {
      std::vector<Tensor> data;
      for (const size_t count : counts) {
        data.push_back(Tensor::empty({int64_t(count)}, DType::float32));
        for (size_t i = 0; i < count; ++i) data.back().span<float>()[i] = value(group.rank(), i);
      }
      group.all_reduce(data, ReduceOp::SUM);
      for (const Tensor& tensor : data)
        ASSERT_TRUE(std::ranges::equal(tensor.span<float>(),
                                       std::span(expected).first(size_t(tensor.num_elements()))));
    });
    for (const auto& outcome : outcomes) ASSERT_TRUE(outcome.ok()) << outcome.error;
  }
}

// What a rank has for another.
float part_of(int from, int to, size_t i) { return float(from * 10'000 + to * 100) + float(i); }

TEST_P(Ways, BringEveryPartToWhereItBelongs) {
  const auto [way, hosts, per_host] = GetParam();
  const int ranks = hosts * per_host, root = ranks - 1;
  const auto outcomes = Group::simulated(ranks, {.hosts = hosts}).run([&](const Group& group) {
    const int me = group.rank();
    for (const size_t count : {1, 67, 3000}) {
      const size_t whole = size_t(ranks) * count;
      std::vector<float> mine(count), for_all(whole), got(count), got_all(whole);
      const auto expect_part = [&](std::span<const float> part, int from, int to) {
        for (size_t i = 0; i < count; ++i)
          ASSERT_EQ(part[i], part_of(from, to, i)) << from << " to " << to << " on rank " << me;
      };
      const auto of = [&](std::span<const float> all, int rank) {
        return all.subspan(size_t(rank) * count, count);
      };
      for (size_t i = 0; i < count; ++i) mine[i] = part_of(me, 0, i);
      for (int to = 0; to < ranks; ++to)
        for (size_t i = 0; i < count; ++i) for_all[size_t(to) * count + i] = part_of(me, to, i);

      std::vector<float> told = mine;
      group.broadcast(told, root);
      expect_part(told, root, 0);
      group.all_gather(mine, got_all);
      for (int from = 0; from < ranks; ++from) expect_part(of(got_all, from), from, 0);
      std::ranges::fill(got_all, -1.f);
      group.gather(mine, got_all, root);
      for (int from = 0; from < ranks && me == root; ++from)
        expect_part(of(got_all, from), from, 0);
      group.scatter(for_all, got, root);
      expect_part(got, root, me);
      group.all_to_all(for_all, got_all);
      for (int from = 0; from < ranks; ++from) expect_part(of(got_all, from), from, me);
      group.reduce_scatter(for_all, got, ReduceOp::MAX);
      expect_part(got, root, me);
      group.barrier();
    }
  });
  for (const auto& outcome : outcomes) ASSERT_TRUE(outcome.ok()) << outcome.error;
}

std::string name_of(const ::testing::TestParamInfo<Ways::ParamType>& info) {
  const auto [way, hosts, per_host] = info.param;
  const std::string name = std::string(group::name(way));
  return name + std::to_string(hosts) + "x" + std::to_string(per_host);
}
INSTANTIATE_TEST_SUITE_P(
    All, Ways,
    ::testing::Combine(::testing::Values(Way::whole, Way::shares, Way::doubling, Way::halving),
                       ::testing::Values(2, 3, 5, 16, 17), ::testing::Values(1, 2, 3, 7)),
    name_of);

}  // namespace
}  // namespace tutti::testing
