// SPDX-License-Identifier: Apache-2.0
// Every rank gets what the kernel makes of all ranks' data in their order: the same bits.
#include <array>

#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;

class GroupAllReduce : public Ranks {
 protected:
  // Once in place if the types allow it, once out of place.
  void expect_exact(const Sample& sample) {
    SCOPED_TRACE(fmt::format("{} of {}[{}]", name(sample.op), name(sample.dtype), sample.count));
    on_ranks(groups, [&](const Group& group) {
      const std::vector<std::byte>& mine = sample.inputs[size_t(group.rank())];
      Buffer in(sample.count, sample.dtype, mine), out(sample.count, sample.result);
      group.all_reduce(in.tensor(), out.tensor(), sample.op, kLong);
      EXPECT_TRUE(out.is(sample.expected)) << "out of place, rank " << group.rank();
      EXPECT_TRUE(in.is(mine)) << "the input, rank " << group.rank();
      if (!sample.in_place()) return;
      kernels::with_type(sample.dtype,
                         [&]<class T>(T*) { group.all_reduce(in.span<T>(), sample.op, kLong); });
      EXPECT_TRUE(in.is(sample.expected)) << "in place, rank " << group.rank();
    });
  }
};
TUTTI_ON_RANKS(GroupAllReduce);

TEST_P(GroupAllReduce, IsTheKernelForEveryDtypeAndOperation) {
  for (const DType dtype : kDTypes)
    for (const ReduceOp op : kOps)
      if (is_defined(op, dtype))
        for (const int64_t count : few_counts(n)) expect_exact({dtype, op, count, n});
}

TEST_P(GroupAllReduce, IsTheTreeOverRanks) {
  for (const DType dtype : kFloats) {
    const Sample sample(dtype, ReduceOp::SUM, 1000, n);
    std::vector<const void*> inputs;
    for (const auto& input : sample.inputs) inputs.push_back(input.data());
    const std::vector<std::byte> expected = reference(dtype, ReduceOp::SUM, inputs, 1000, n);
    EXPECT_TRUE(same_bits(dtype, sample.expected.data(), expected.data(), 1000));
    expect_exact(sample);
  }
}

TEST_P(GroupAllReduce, IsExactAroundEveryThreshold) {
  for (const int64_t count : threshold_counts(DType::float32, n))
    expect_exact({DType::float32, ReduceOp::SUM, count, n});
  for (const int64_t count : threshold_counts(DType::bfloat16, n))
    expect_exact({DType::bfloat16, ReduceOp::MEAN, count, n});
  // Results four times as wide as what they are made of, and as wide.
  for (const int64_t count : threshold_counts(DType::int8, n))
    expect_exact({DType::int8, ReduceOp::MEAN, count, n});
  for (const int64_t count : threshold_counts(DType::int64, n))
    expect_exact({DType::int64, ReduceOp::MEAN, count, n});
  for (const int64_t count : threshold_counts(DType::int32, n))
    expect_exact({DType::int32, ReduceOp::MEAN, count, n});
}

TEST_P(GroupAllReduce, IsExactForLargeBuffers) {
  expect_exact({DType::float32, ReduceOp::SUM, 1 << 20, n});
  expect_exact({DType::float64, ReduceOp::MIN, (1 << 19) + 1, n});
  expect_exact({DType::uint8, ReduceOp::MEAN, (1 << 20) - 1, n});
}

TEST_P(GroupAllReduce, TakesWindowTensorsOnSomeRanksOrAll) {
  for (const int64_t count : {int64_t(5), int64_t(20'000), int64_t(300'001)}) {
    const Sample sample(DType::float32, ReduceOp::SUM, count, n);
    // Which ranks have their input, and which their output, in the window.
    for (const auto& [inputs, outputs] :
         {std::pair(0x7f, 0x7f), std::pair(0x55, 0x7f), std::pair(0x7f, 0x2a), std::pair(1, 0)})
      on_ranks(groups, [&, inputs = inputs, outputs = outputs](const Group& group) {
        Buffer in(count, DType::float32), out(count, DType::float32);
        const auto in_window = [&](int which) { return which >> group.rank() & 1; };
        const Tensor from = in_window(inputs) ? group.empty({count}, DType::float32) : in.tensor();
        const Tensor to = in_window(outputs) ? group.empty({count}, DType::float32) : out.tensor();
        std::memcpy(from.data(), sample.inputs[size_t(group.rank())].data(), from.num_bytes());
        group.all_reduce(from, to, ReduceOp::SUM, kLong);
        EXPECT_TRUE(same_bits(DType::float32, to.data(), sample.expected.data(), size_t(count)));
        group.all_reduce(from, ReduceOp::SUM, kLong);
        EXPECT_TRUE(same_bits(DType::float32, from.data(), sample.expected.data(), size_t(count)));
      });
  }
}

TEST_P(GroupAllReduce, TakesAllKindsOfBuffers) {
  on_ranks(groups, [&](const Group& group) {
    const auto mine = float(group.rank() + 1), sum = float(n * (n + 1) / 2);
    std::vector<float> vector(3, mine);
    group.all_reduce(vector, ReduceOp::SUM, kLong);
    EXPECT_THAT(vector, ::testing::Each(sum));
    std::array<float, 3> array{mine, mine, mine};
    group.all_reduce(std::span(array).subspan(1), ReduceOp::SUM, kLong);
    EXPECT_EQ(array, (std::array{mine, sum, sum}));
    float plain[] = {mine, mine};
    group.all_reduce(plain, ReduceOp::SUM, kLong);
    EXPECT_EQ(plain[1], sum);
    const Tensor scalar = Tensor::scalar(mine);
    group.all_reduce(scalar, ReduceOp::SUM, kLong);
    EXPECT_EQ(scalar.item<float>(), sum);
    const Tensor deep = Tensor::full({1, 2, 1, 2, 1}, mine, DType::float32);
    group.all_reduce(deep, ReduceOp::SUM, kLong);
    EXPECT_EQ(deep.to_vector<float>(), std::vector<float>(4, sum));
    const std::array<float, 2> constant{mine, -mine};
    group.all_reduce(constant, std::span(vector).first(2), ReduceOp::SUM, kLong);
    EXPECT_EQ(vector, (std::vector<float>{sum, -sum, sum}));
  });
}

// Threads may all give the same memory to read.
TEST_P(GroupAllReduce, ReadsOneBufferForAllRanks) {
  const std::vector<int32_t> shared(100'000, 3);
  on_ranks(groups, [&](const Group& group) {
    std::vector<int32_t> out(shared.size());
    group.all_reduce(shared, out, ReduceOp::SUM, kLong);
    EXPECT_THAT(out, ::testing::Each(3 * n));
  });
}

class GroupAllReduceOfAList : public GroupAllReduce {
 protected:
  struct Kind {
    DType dtype;
    int64_t count;
  };
  void expect_exact_list(const std::vector<Kind>& kinds, bool in_window) {
    std::vector<Sample> samples;
    for (const Kind& kind : kinds) samples.emplace_back(kind.dtype, ReduceOp::MAX, kind.count, n);
    on_ranks(groups, [&](const Group& group) {
      std::vector<Buffer> buffers;
      std::vector<Tensor> tensors;
      for (const Sample& sample : samples)
        buffers.emplace_back(sample.count, sample.dtype, sample.inputs[size_t(group.rank())]);
      for (Buffer& buffer : buffers) {
        // Every second one in the window.
        if (in_window && tensors.size() % 2 == 0) {
          tensors.push_back(group.empty({buffer.count()}, buffer.dtype()));
          std::memcpy(tensors.back().data(), buffer.data(), tensors.back().num_bytes());
        } else {
          tensors.push_back(buffer.tensor());
        }
      }
      group.all_reduce(tensors, ReduceOp::MAX, kLong);
      for (size_t i = 0; i < tensors.size(); ++i) {
        ASSERT_TRUE(same_bits(samples[i].dtype, tensors[i].data(), samples[i].expected.data(),
                              size_t(samples[i].count)))
            << "tensor " << i << ", rank " << group.rank();
        if (in_window) continue;
        ASSERT_TRUE(buffers[i].is(samples[i].expected));
      }
    });
  }
};
TUTTI_ON_RANKS(GroupAllReduceOfAList);

TEST_P(GroupAllReduceOfAList, MixesDtypesAndSizesAndEmptyTensors) {
  for (const bool in_window : {false, true}) {
    expect_exact_list({}, in_window);
    expect_exact_list({{DType::float64, 0}}, in_window);
    expect_exact_list({{DType::float32, 0}, {DType::int8, 1}, {DType::int64, 0}}, in_window);
    std::vector<Kind> all;
    for (const DType dtype : kDTypes)
      for (const int64_t count : {7, 0, 1, 64, 501}) all.push_back({dtype, count});
    expect_exact_list(all, in_window);
    // As much as takes other ways, with tensors that end anywhere.
    all.push_back({DType::float32, 200'001});
    all.push_back({DType::float16, 3});
    all.insert(all.begin(), {DType::bfloat16, 70'001});
    expect_exact_list(all, in_window);
  }
}

// More tensors than ranks can tell each other the places of.
TEST_P(GroupAllReduceOfAList, MayHaveVeryManyTensors) {
  const size_t many = TUTTI_TEST_SANITIZED ? 33'000 : 40'000;
  std::vector<Kind> kinds(many, {DType::int16, 3});
  kinds[100] = {DType::float32, 5'000};
  expect_exact_list(kinds, false);
}

TEST_P(GroupAllReduceOfAList, IsTheSumOfEachTensor) {
  on_ranks(groups, [&](const Group& group) {
    const std::vector<Tensor> list{Tensor::full({2, 3}, group.rank(), DType::float32),
                                   Tensor::full({2}, 1, DType::int32)};
    group.all_reduce(list, ReduceOp::SUM, kLong);
    EXPECT_EQ(list[0].to_vector<float>(), std::vector<float>(6, float(n * (n - 1) / 2)));
    EXPECT_EQ(list[1].to_vector<int32_t>(), std::vector<int32_t>(2, n));
    const std::vector<Tensor> means{Tensor::full({2}, group.rank(), DType::float64)};
    group.all_reduce(means, ReduceOp::MEAN, kLong);
    EXPECT_EQ(means[0].to_vector<double>()[1], double(n - 1) / 2);
  });
}

// Beyond what fits on the stack of a reduction.
TEST(ManyRanks, ReduceLikeFew) {
  for (const World& world : kWorlds) {
    const Groups groups = world.make(20);
    for (const int64_t count : {3, 1000, 40'000}) {
      const Sample sample(DType::float32, ReduceOp::SUM, count, 20);
      on_ranks(groups, [&](const Group& group) {
        Buffer buffer(count, DType::float32, sample.inputs[size_t(group.rank())]);
        group.all_reduce(buffer.tensor(), ReduceOp::SUM, kLong);
        EXPECT_TRUE(buffer.is(sample.expected));
      });
    }
  }
}

}  // namespace
}  // namespace tutti
