// SPDX-License-Identifier: Apache-2.0
// Arguments are checked before anything moves, and the group is as good as before.
#include <numeric>

#include "group/ranks.h"
#include "group/samples.h"
#include "support/expect.h"
#include "tensor/tensor_impl.h"

namespace tutti {
namespace {

using namespace testing;

// Rank 1 of 3, and a check that nothing has happened to any of them.
class Arguments : public ::testing::Test {
 protected:
  void TearDown() override {
    on_ranks(groups, [](const Group& g) {
      std::vector<int> data{1};
      g.all_reduce(data, ReduceOp::SUM, kLong);
      EXPECT_EQ(data[0], 3);
    });
  }
  const Groups groups = Group::in_process(3);
  const Group& group = groups[1];
  std::vector<float> two = std::vector<float>(2), three = std::vector<float>(3),
                     six = std::vector<float>(6);
  std::vector<int32_t> ints = std::vector<int32_t>(3);
};

TEST_F(Arguments, RootsAndPeersAreRanks) {
  EXPECT_ERROR(InvalidArgumentError, "broadcast: root is 3, expected 0 to 2",
               group.broadcast(two, 3));
  EXPECT_ERROR(InvalidArgumentError, "reduce: root is -1, expected 0 to 2",
               group.reduce(two, ReduceOp::SUM, -1));
  EXPECT_ERROR(InvalidArgumentError, "gather: root is 7, expected 0 to 2",
               group.gather(two, six, 7));
  EXPECT_ERROR(InvalidArgumentError, "scatter: root is -2, expected 0 to 2",
               group.scatter(six, two, -2));
  EXPECT_ERROR(InvalidArgumentError, "send: peer is 3, expected 0 to 2", group.send(two, 3));
  EXPECT_ERROR(InvalidArgumentError, "recv: peer is -1, expected 0 to 2", group.recv(two, -1));
  EXPECT_ERROR(InvalidArgumentError, "send: rank 1 is this rank", group.send(two, 1));
  EXPECT_ERROR(InvalidArgumentError, "recv: rank 1 is this rank", group.recv(two, 1));
}

TEST_F(Arguments, CountsFitTheNumberOfRanks) {
  EXPECT_ERROR(InvalidArgumentError,
               "all_reduce: the input is float32[2] and the output float32[3], expected as many",
               group.all_reduce(two, three, ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError,
               "all_gather: the input is float32[2] and the output float32[3], expected 3 times as "
               "many elements in the output, for 3 ranks",
               group.all_gather(two, three));
  EXPECT_ERROR(
      InvalidArgumentError,
      "reduce_scatter: the input is float32[6] and the output float32[3], expected 3 times "
      "as many elements in the input",
      group.reduce_scatter(six, three, ReduceOp::SUM));
  std::vector<float> four(4), fours(4);
  EXPECT_ERROR(InvalidArgumentError, "a multiple of 3 ranks", group.all_to_all(four, fours));
  EXPECT_ERROR(InvalidArgumentError,
               "all_to_all: the input is float32[6] and the output float32[3]",
               group.all_to_all(six, three));
  EXPECT_ERROR(InvalidArgumentError, "gather: the input is float32[2] and the output float32[3]",
               group.gather(two, three, 1));
  EXPECT_ERROR(InvalidArgumentError, "scatter: the input is float32[3] and the output float32[2]",
               group.scatter(three, two, 1));
  EXPECT_ERROR(InvalidArgumentError, "reduce: the input is float32[2] and the output float32[3]",
               group.reduce(two, three, ReduceOp::SUM, 1));
}

TEST_F(Arguments, OutputsHaveTheRightDtype) {
  EXPECT_ERROR(InvalidArgumentError, "all_reduce: the output is int32, expected float32",
               group.all_reduce(three, ints, ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError, "all_reduce: the output is int32, expected float64",
               group.all_reduce(ints, ReduceOp::MEAN));
  EXPECT_ERROR(InvalidArgumentError, "expected float64",
               group.all_reduce(ints, three, ReduceOp::MEAN));
  EXPECT_ERROR(InvalidArgumentError, "all_gather: the output is int32, expected float32",
               group.all_gather(std::vector<float>(1), ints));
  EXPECT_ERROR(InvalidArgumentError, "reduce_scatter: the output is float32, expected int32",
               group.reduce_scatter(ints, std::span(three).first(1), ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError, "int32", group.all_to_all(three, ints));
  EXPECT_ERROR(InvalidArgumentError, "scatter", group.scatter(ints, std::span(three).first(1), 1));
  bool truth[] = {true};
  EXPECT_ERROR(InvalidArgumentError, "bool", group.all_reduce(truth, ReduceOp::SUM));
  const std::vector<Tensor> list{Tensor::zeros({2}, DType::float32),
                                 Tensor::zeros({3}, DType::int8)};
  EXPECT_ERROR(InvalidArgumentError,
               "all_reduce: the MEAN of int8[3] is float32, which does not fit in place",
               group.all_reduce(list, ReduceOp::MEAN));
}

TEST_F(Arguments, BuffersAreTheSameOrApart) {
  std::vector<float> memory(12);
  std::iota(memory.begin(), memory.end(), 0.f);
  const std::vector<float> before = memory;
  const std::span<float> all(memory);
  EXPECT_ERROR(InvalidArgumentError,
               "all_reduce: the input float32[4] and the output float32[4] overlap",
               group.all_reduce(all.first(4), all.subspan(3, 4), ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError, "overlap", group.all_gather(all.first(3), all.first(9)));
  EXPECT_ERROR(InvalidArgumentError, "overlap",
               group.reduce_scatter(all.first(9), all.subspan(4, 3), ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError, "overlap", group.all_to_all(all.first(6), all.subspan(3, 6)));
  EXPECT_ERROR(InvalidArgumentError, "overlap", group.gather(all.first(3), all.first(9), 1));
  EXPECT_ERROR(InvalidArgumentError, "overlap", group.scatter(all.first(9), all.first(3), 1));
  EXPECT_ERROR(InvalidArgumentError, "overlap",
               group.reduce(all.first(4), all.subspan(1, 4), ReduceOp::SUM, 1));
  // The mean of 32-bit integers is wider than they are.
  double wide[4] = {};
  const auto* const as_ints = reinterpret_cast<int32_t*>(wide);
  EXPECT_ERROR(InvalidArgumentError, "overlap",
               group.all_reduce(std::span(as_ints, 4), wide, ReduceOp::MEAN));
  EXPECT_EQ(memory, before);
}

TEST_F(Arguments, TensorsHoldSomethingThatMayBeWritten) {
  EXPECT_ERROR(InvalidArgumentError, "holds nothing", group.all_reduce(Tensor(), ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError, "holds nothing", group.send(Tensor(), 0));
  EXPECT_ERROR(
      InvalidArgumentError, "holds nothing",
      group.all_reduce(std::vector{Tensor::zeros({1}, DType::int8), Tensor()}, ReduceOp::SUM));
  const Tensor plain = Tensor::zeros({3}, DType::float32);
  const auto memory = std::make_shared<std::array<float, 3>>();
  const Tensor constant = detail::TensorAccess::wrap(memory, memory->data(), {3}, DType::float32,
                                                     detail::TensorAccess::device(plain), true);
  ASSERT_TRUE(constant.is_read_only());
  EXPECT_ERROR(InvalidArgumentError, "read-only", group.all_reduce(constant, ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError, "read-only",
               group.all_reduce(std::vector{constant}, ReduceOp::SUM));
  EXPECT_ERROR(InvalidArgumentError, "read-only", group.recv(constant, 0));
  // To read it is fine.
  on_ranks(groups, [&](const Group& g) {
    std::vector<float> out(3, 1.f);
    g.all_reduce(constant, out, ReduceOp::SUM, kLong);
    EXPECT_EQ(out[2], 0.f);
  });
}

TEST_F(Arguments, ScalarsHaveNoRows) {
  EXPECT_ERROR(InvalidArgumentError, "is a scalar and has no rows",
               group.all_gather_uneven(Tensor::scalar(1.f)));
}

TEST_F(Arguments, OptionsAreInRange) {
  EXPECT_ERROR(InvalidArgumentError, "all_reduce",
               group.all_reduce(two, ReduceOp::SUM, {.timeout = milliseconds(-1)}));
  EXPECT_ERROR(InvalidArgumentError, "barrier", group.barrier({.bytes_per_pack = -1}));
  EXPECT_ERROR(InvalidArgumentError, "all_reduce",
               group.all_reduce(std::vector<Tensor>{}, ReduceOp::SUM, {.bytes_per_pack = -1}));
  EXPECT_ERROR(InvalidArgumentError, "all_gather",
               group.all_gather_uneven(two, {.bytes_per_pack = -1}));
}

TEST_F(Arguments, WindowTensorsFitIntoMemory) {
  if (TUTTI_TEST_SANITIZED) GTEST_SKIP() << "sanitizers end a program that asks for so much";
  EXPECT_THROW(group.empty({int64_t(1) << 46}, DType::float64), ResourceExhaustedError);
  EXPECT_THROW(group.empty({int64_t(1) << 61}, DType::float64), ResourceExhaustedError);
}

// One tensor twice in a list would be reduced twice, in no order.
TEST_F(Arguments, ListsHoldATensorOnce) {
  const Tensor tensor = Tensor::zeros({30'000}, DType::float32);
  EXPECT_ERROR(InvalidArgumentError, "all_reduce",
               group.all_reduce(std::vector{tensor, tensor}, ReduceOp::SUM, kSoon));
}

TEST(InProcess, HasAtLeastOneRank) {
  EXPECT_ERROR(InvalidArgumentError, "in_process: 0 ranks, expected 1 to", Group::in_process(0));
  EXPECT_ERROR(InvalidArgumentError, "in_process: -3 ranks", Group::in_process(-3));
  EXPECT_ERROR(InvalidArgumentError, "in_process: 1000000 ranks", Group::in_process(1'000'000));
}

}  // namespace
}  // namespace tutti
