// SPDX-License-Identifier: Apache-2.0
// The other collectives, against their definitions.
#include <tutti/device.h>

#include <atomic>
#include <numeric>

#include "group/ranks.h"
#include "group/samples.h"
#include "support/fake_gpu.h"

namespace tutti {
namespace {

using namespace testing;

constexpr DType kWidths[] = {DType::uint8, DType::int32, DType::uint64};

using Bytes = std::vector<std::byte>;

Bytes part(const Bytes& all, size_t which, size_t bytes) {
  return {all.begin() + ptrdiff_t(which * bytes), all.begin() + ptrdiff_t((which + 1) * bytes)};
}

class Collectives : public Ranks {
 protected:
  // f(group, dtype, count) on every rank for every size that might make a difference.
  template <class F>
  void for_each_size(const F& f) {
    for (const DType dtype : kWidths) {
      std::set<int64_t> counts = few_counts(n);
      // Thresholds are in bytes: one type is enough to come by both sides of each.
      if (dtype == DType::int32) counts.merge(threshold_counts(dtype, n));
      on_ranks(groups, [&](const Group& group) {
        for (const int64_t count : counts) {
          SCOPED_TRACE(fmt::format("rank {}, {}[{}]", group.rank(), name(dtype), count));
          f(group, dtype, count);
        }
      });
    }
  }
  // The first, the last, and one that is neither.
  std::set<int> roots() const { return {0, n / 2, n - 1}; }
  Bytes of_all(size_t bytes) const {
    Bytes all;
    for (int r = 0; r < n; ++r) {
      const Bytes one = pattern(r, bytes);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};
TUTTI_ON_RANKS(Collectives);

TEST_P(Collectives, BroadcastGivesAllRanksTheRootsData) {
  for_each_size([&](const Group& group, DType dtype, int64_t count) {
    for (const int root : roots()) {
      Buffer data(count, dtype, pattern(group.rank(), bytes_of(count, dtype)));
      group.broadcast(data.tensor(), root, kLong);
      ASSERT_TRUE(data.is(pattern(root, bytes_of(count, dtype)))) << "root " << root;
    }
  });
}

TEST_P(Collectives, BroadcastOfAListMixesDtypesAndSizes) {
  on_ranks(groups, [&](const Group& group) {
    // Small ones, which travel together, a large one, and small ones again.
    const DType dtypes[] = {DType::float32, DType::boolean, DType::int64, DType::uint8};
    const int64_t counts[] = {5, 0, 1, 300'000, 2, 7, 1 << 18, 3};
    for (int root = 0; root < n; ++root) {
      std::vector<Tensor> list;
      std::vector<std::vector<std::byte>> expected;
      for (size_t i = 0; i < std::size(counts); ++i) {
        list.push_back(Tensor::zeros({counts[i]}, dtypes[i % 4]));
        expected.push_back(random_bytes(dtypes[i % 4], counts[i], i));
        if (group.rank() == root && !expected[i].empty())
          std::memcpy(list[i].data(), expected[i].data(), expected[i].size());
      }
      group.broadcast(list, root, kLong);
      for (size_t i = 0; i < list.size(); ++i)
        EXPECT_TRUE(
            same_bits(list[i].dtype(), list[i].const_data(), expected[i].data(), size_t(counts[i])))
            << "tensor " << i << " of root " << root;
    }
    group.broadcast(std::vector<Tensor>(), 0, kLong);
  });
}

TEST_P(Collectives, BroadcastOfAListComparesTheLists) {
  if (n == 1) return;
  expect_everywhere(errors_on_ranks(groups,
                                    [&](const Group& group) {
                                      const int64_t last = group.rank() == n - 1 ? 4 : 3;
                                      group.broadcast(
                                          std::vector{Tensor::zeros({2}, DType::float32),
                                                      Tensor::zeros({last}, DType::float32)},
                                          0, kLong);
                                    }),
                    ErrorCode::invalid_argument, {"broadcast"});
}

TEST_P(Collectives, WeightedMeansTakeRangesTensorsAndLists) {
  on_ranks(groups, [&](const Group& group) {
    const WeightedMean mean{group.rank() + 1.};
    double expected = 0, weights = 0;
    for (int r = 0; r < n; ++r) {
      expected += r * (r + 1.);
      weights += r + 1.;
    }
    expected /= weights;
    std::vector<float> range(3, float(group.rank()));
    group.all_reduce(range, mean, kLong);
    EXPECT_THAT(range, ::testing::Each(float(expected)));
    const std::vector<Tensor> list{Tensor::full({2}, group.rank(), DType::float64),
                                   Tensor::full({40'000}, group.rank(), DType::float32)};
    group.all_reduce(list[0], mean, kLong);
    EXPECT_THAT(list[0].to_vector<double>(), ::testing::Each(expected));
    const Tensor first = Tensor::full({2}, group.rank(), DType::float64);
    group.all_reduce_async(std::vector{first, list[1]}, mean, kLong).wait();
    EXPECT_THAT(first.to_vector<double>(), ::testing::Each(expected));
    EXPECT_EQ(list[1].span<float>()[39'999], float(expected));
  });
}

TEST(WeightedMeans, CheckTheirArguments) {
  const Group alone = Group::in_process(1)[0];
  std::vector<float> data(1);
  std::vector<int> whole(1);
  for (const double weight : {-1., std::nan("")})
    EXPECT_EQ(caught([&] { alone.all_reduce(data, WeightedMean{weight}); }).code,
              ErrorCode::invalid_argument);
  EXPECT_EQ(caught([&] { alone.all_reduce(data, WeightedMean{0}); }).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(caught([&] { alone.all_reduce(whole, WeightedMean{1}); }).code,
            ErrorCode::invalid_argument);
  // In the background as well, at once.
  const Tensor floats = Tensor::of<float>({1}), ints = Tensor::of<int>({1});
  const std::vector<Tensor> lists[] = {{ints}, {floats, floats}, {floats, Tensor()}};
  for (const std::vector<Tensor>& list : lists)
    EXPECT_EQ(caught([&] { alone.all_reduce_async(list, WeightedMean{1}); }).code,
              ErrorCode::invalid_argument);
}

TEST_P(Collectives, AllGatherJoinsInRankOrder) {
  for_each_size([&](const Group& group, DType dtype, int64_t count) {
    const size_t bytes = bytes_of(count, dtype);
    const Bytes expected = of_all(bytes);
    Buffer in(count, dtype, pattern(group.rank(), bytes)), out(count * n, dtype);
    group.all_gather(in.tensor(), out.tensor(), kLong);
    ASSERT_TRUE(out.is(expected));
    // In place: the input is this rank's part of the output.
    Buffer both(count * n, dtype);
    kernels::with_type(dtype, [&]<class T>(T*) {
      const std::span<T> mine = both.span<T>().subspan(size_t(group.rank() * count), size_t(count));
      if (bytes) std::memcpy(mine.data(), in.data(), bytes);
      group.all_gather(mine, both.span<T>(), kLong);
    });
    ASSERT_TRUE(both.is(expected));
  });
}

TEST_P(Collectives, GatherJoinsAtTheRootAlone) {
  for_each_size([&](const Group& group, DType dtype, int64_t count) {
    const size_t bytes = bytes_of(count, dtype);
    Buffer in(count, dtype, pattern(group.rank(), bytes));
    for (const int root : roots()) {
      const bool here = group.rank() == root;
      Buffer out(here ? count * n : 1, here ? dtype : DType::float32);
      const Bytes before(4, std::byte{0xA5});
      group.gather(in.tensor(), out.tensor(), root, kLong);
      ASSERT_TRUE(out.is(here ? of_all(bytes) : before)) << "root " << root;
    }
  });
}

TEST_P(Collectives, ScatterDealsOutTheRootsData) {
  for_each_size([&](const Group& group, DType dtype, int64_t count) {
    const size_t bytes = bytes_of(count, dtype);
    for (const int root : roots()) {
      const bool here = group.rank() == root;
      const Bytes all = pattern(root, bytes * size_t(n));
      const Bytes mine = part(all, size_t(group.rank()), bytes);
      Buffer in(here ? count * n : 0, here ? dtype : DType::float64, here ? all : Bytes{});
      Buffer out(count, dtype);
      group.scatter(in.tensor(), out.tensor(), root, kLong);
      ASSERT_TRUE(out.is(mine)) << "root " << root;
      kernels::with_type(dtype, [&]<class T>(T*) {  // the root's own part, in place
        const std::span<T> to =
            here ? in.span<T>().subspan(size_t(root * count), size_t(count)) : out.span<T>();
        group.scatter(here ? in.span<T>() : std::span<T>(), to, root, kLong);
        ASSERT_TRUE(here ? in.is(all) : out.is(mine)) << "in place, root " << root;
      });
    }
  });
}

TEST_P(Collectives, AllToAllTransposes) {
  for_each_size([&](const Group& group, DType dtype, int64_t count) {
    const size_t bytes = bytes_of(count, dtype);
    const Bytes mine = pattern(group.rank(), bytes * size_t(n));
    Bytes expected;
    for (int r = 0; r < n; ++r) {
      const Bytes theirs = part(pattern(r, bytes * size_t(n)), size_t(group.rank()), bytes);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    Buffer in(count * n, dtype, mine), out(count * n, dtype);
    group.all_to_all(in.tensor(), out.tensor(), kLong);
    ASSERT_TRUE(out.is(expected));
    ASSERT_TRUE(in.is(mine));
    group.all_to_all(in.tensor(), in.tensor(), kLong);
    ASSERT_TRUE(in.is(expected)) << "in place";
  });
}

TEST_P(Collectives, ReduceIsForTheRootAlone) {
  for (const auto& [dtype, op] :
       {std::pair(DType::float32, ReduceOp::SUM), std::pair(DType::int16, ReduceOp::MEAN),
        std::pair(DType::bfloat16, ReduceOp::PROD), std::pair(DType::boolean, ReduceOp::MAX)}) {
    std::set<int64_t> counts = few_counts(n);
    counts.merge(threshold_counts(dtype, n));
    for (const int64_t count : counts) {
      const Sample sample(dtype, op, count, n);
      on_ranks(groups, [&](const Group& group) {
        const Bytes& mine = sample.inputs[size_t(group.rank())];
        for (const int root : roots()) {
          const bool here = group.rank() == root;
          Buffer in(count, sample.dtype, mine), out(here ? count : 0, sample.result);
          group.reduce(in.tensor(), out.tensor(), sample.op, root, kLong);
          ASSERT_TRUE(out.is(here ? sample.expected : Bytes{})) << "root " << root;
          ASSERT_TRUE(in.is(mine));
          if (!sample.in_place()) continue;
          group.reduce(in.tensor(), sample.op, root, kLong);
          ASSERT_TRUE(in.is(here ? sample.expected : mine)) << "in place, root " << root;
        }
      });
    }
  }
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPart) {
  for (const auto& [dtype, op] :
       {std::pair(DType::float32, ReduceOp::SUM), std::pair(DType::uint8, ReduceOp::MEAN),
        std::pair(DType::int64, ReduceOp::MEAN), std::pair(DType::float16, ReduceOp::MEAN)}) {
    std::set<int64_t> counts = few_counts(n);
    counts.merge(threshold_counts(dtype, n));
    for (const int64_t count : counts) {
      const Sample sample(dtype, op, count * n, n);
      on_ranks(groups, [&](const Group& group) {
        const auto me = size_t(group.rank());
        Buffer in(count * n, sample.dtype, sample.inputs[me]), out(count, sample.result);
        const Bytes expected = part(sample.expected, me, bytes_of(count, sample.result));
        group.reduce_scatter(in.tensor(), out.tensor(), sample.op, kLong);
        ASSERT_TRUE(out.is(expected)) << name(sample.dtype) << " " << count;
        if (!sample.in_place()) return;
        kernels::with_type(sample.dtype, [&]<class T>(T*) {
          const std::span<T> mine = in.span<T>().subspan(me * size_t(count), size_t(count));
          group.reduce_scatter(in.span<T>(), mine, sample.op, kLong);
          ASSERT_TRUE(same_bits(sample.dtype, mine.data(), expected.data(), size_t(count)));
        });
      });
    }
  }
}

TEST(ReduceScatter, BetweenHostsHasFewMessagesUnderWay) {
  const auto network = std::make_shared<TestNetwork>();
  const Groups groups = on_hosts(
      3, [](int rank) { return rank; }, network);
  on_ranks(groups, [](const Group& group) {
    std::vector<float> in(size_t(3) << 20, float(group.rank())), out(size_t(1) << 20);  // 16 parts
    group.reduce_scatter(in, out, ReduceOp::SUM, kLong);
    EXPECT_EQ(out[out.size() - 1], 3.f);
  });
  EXPECT_LE(network->most_sends(), 3 * 2 * 2);  // of each rank two parts to two others
}

// One host has three ranks, dealt out among those of others; one has one.
TEST(BetweenHosts, WhatIsForAllGetsToEveryRankOfEveryHost) {
  const int host_of[] = {0, 1, 0, 2, 0, 1};
  const int n = 6;
  const Groups groups = on_hosts(n, [&](int rank) { return host_of[rank]; });
  for (const size_t count : {size_t{3'000}, size_t{131'072}, size_t{1'300'001}}) {
    const auto value = [](int rank, size_t i) { return int32_t(i) * 8 + rank; };
    const auto part_of = [&](int rank) {
      std::vector<int32_t> part(count);
      for (size_t i = 0; i < count; ++i) part[i] = value(rank, i);
      return part;
    };
    on_ranks(groups, [&](const Group& group) {
      for (int root = 0; root < n; ++root) {
        std::vector<int32_t> data =
            group.rank() == root ? part_of(root) : std::vector<int32_t>(count);
        group.broadcast(data, root, kLong);
        EXPECT_TRUE(data == part_of(root)) << "root " << root << ", " << count;
      }
      std::vector<int32_t> all(count * size_t(n));
      group.all_gather(part_of(group.rank()), all, kLong);
      for (int r = 0; r < n; ++r)
        EXPECT_TRUE(
            std::ranges::equal(std::span(all).subspan(size_t(r) * count, count), part_of(r)))
            << "of rank " << r << ", " << count;
    });
  }
}

TEST(BetweenHosts, APartOfTheRanksMayBeOnOneHost) {
  const int host_of[] = {0, 1, 0, 2, 0, 1, 0};
  const Groups groups = on_hosts(7, [&](int rank) { return host_of[rank]; });
  on_ranks(groups, [&](const Group& group) {
    const Group part = group.split(host_of[group.rank()], group.rank());
    for (const size_t count : {size_t{3'000}, size_t{300'001}})
      for (int root = 0; root < part.size(); ++root) {
        std::vector<float> data(count, part.rank() == root ? float(root + 1) : 0.f);
        part.broadcast(data, root, kLong);
        EXPECT_EQ(std::ranges::count(data, float(root + 1)), int64_t(count)) << "root " << root;
        std::vector<float> all(count * size_t(part.size()));
        part.all_gather(std::vector<float>(count, float(part.rank())), all, kLong);
        for (int r = 0; r < part.size(); ++r)
          EXPECT_EQ(std::ranges::count(all, float(r)), int64_t(count)) << "of " << r;
      }
  });
}

TEST(BetweenHosts, SomeHaveNothingToGather) {
  const int host_of[] = {0, 1, 0, 2, 0, 1};
  const int n = 6;
  const Groups groups = on_hosts(n, [&](int rank) { return host_of[rank]; });
  for (const int64_t many : {1, 5'000, 400'000})
    for (int empty = 0; empty < 3; ++empty) {
      const auto count_of = [&](int rank) { return rank % 3 == empty ? 0 : many + rank; };
      on_ranks(groups, [&](const Group& group) {
        std::vector<int32_t> expected, in;
        for (int r = 0; r < n; ++r)
          for (int64_t i = 0; i < count_of(r); ++i) {
            expected.push_back(int32_t(i * 8 + r));
            if (r == group.rank()) in.push_back(expected.back());
          }
        EXPECT_TRUE(group.all_gather_uneven(in, kLong) == expected) << many << " " << empty;
      });
    }
}

TEST_P(Collectives, AllGatherUnevenTakesWhatEachHas) {
  // By which rank has how many.
  const std::vector<std::function<int64_t(int)>> shapes{
      [](int r) { return r; },
      [](int) { return 0; },
      [](int r) { return r == 0 ? 0 : 5; },
      [this](int r) { return r == n - 1 ? 200'000 : r % 2; },
      [](int r) { return 131'071 + r; },
      [](int r) { return 12 - r; },
  };
  for (const auto& count_of : shapes)
    on_ranks(groups, [&](const Group& group) {
      std::vector<int32_t> expected, in;
      for (int r = 0; r < n; ++r)
        for (int64_t i = 0; i < count_of(r); ++i) {
          expected.push_back(int32_t(r * 1'000'000 + i));
          if (r == group.rank()) in.push_back(expected.back());
        }
      EXPECT_EQ(group.all_gather_uneven(in, kLong), expected);
      EXPECT_EQ(group.all_gather_uneven(std::span<const int32_t>(in), kLong), expected);
    });
}

TEST_P(Collectives, AllGatherUnevenJoinsTheRowsOfTensors) {
  on_ranks(groups, [&](const Group& group) {
    const Tensor in = Tensor::full({group.rank(), 2, 3}, group.rank(), DType::float16);
    const Tensor out = group.all_gather_uneven(in, kLong);
    EXPECT_EQ(out.shape(), Shape({n * (n - 1) / 2, 2, 3}));
    std::vector<float16> expected;
    for (int r = 0; r < n; ++r) expected.insert(expected.end(), size_t(r * 6), float16(float(r)));
    EXPECT_EQ(out.to_vector<float16>(), expected);
    EXPECT_EQ(group.all_gather_uneven(Tensor::zeros({2, 0}, DType::int8), kLong).shape(),
              Shape({2 * n, 0}));
  });
}

TEST_P(Collectives, NoRankLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> come{0};
  on_ranks(groups, [&](const Group& group) {
    for (int round = 1; round <= 200; ++round) {
      ++come;
      group.barrier(kLong);
      EXPECT_GE(come.load(), round * n);
      group.barrier(kLong);
    }
  });
}

TEST_P(Collectives, WorkOnWindowTensors) {
  for (const int64_t count : {3, 50'000})
    on_ranks(groups, [&](const Group& group) {
      const Tensor in = group.empty({n, count}, DType::int32);
      const Tensor out = group.empty({n, count}, DType::int32);
      const Tensor one = group.empty({1, count}, DType::int32);
      const auto fill = [](const Tensor& t, int value) {
        std::ranges::fill(t.span<int32_t>(), value);
      };
      fill(in, group.rank());
      group.all_to_all(in, out, kLong);
      for (int r = 0; r < n; ++r) EXPECT_EQ(out.span<int32_t>()[size_t(r * count)], r);
      group.reduce_scatter(in, one, ReduceOp::SUM, kLong);
      EXPECT_THAT(one.span<int32_t>(), ::testing::Each(n * (n - 1) / 2));
      fill(one, group.rank());
      group.all_gather(one, out, kLong);
      for (int r = 0; r < n; ++r) EXPECT_EQ(out.span<int32_t>()[size_t((r + 1) * count - 1)], r);
      group.broadcast(one, n - 1, kLong);
      EXPECT_THAT(one.span<int32_t>(), ::testing::Each(n - 1));
    });
}

// What a scope says of new tensors is not about those that come out of a collective.
TEST(Group, GathersToTheDeviceOfItsInput) {
  add_fake_gpus(1);
  on_ranks(Group::in_process(2), [](const Group& group) {
    const Tensor in = Tensor::full({group.rank() + 1, 2}, 1, DType::float32, "/cpu:0");
    const DeviceScope scope("/gpu:0");
    EXPECT_EQ(group.all_gather_uneven(in, kLong).device(), in.device());
    EXPECT_EQ(group.empty({2}, DType::float32).device(), in.device());
  });
}

TEST(Group, EmptyIsAlignedAndOutlivesTheGroup) {
  Groups groups = Group::in_process(1);
  const Tensor tensor = groups[0].empty({3, 5}, DType::float16);
  const Tensor nothing = groups[0].empty({0}, DType::float32);
  const Tensor scalar = groups[0].empty({}, DType::float64);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  EXPECT_EQ(tensor.shape(), Shape({3, 5}));
  EXPECT_EQ(nothing.num_elements(), 0);
  EXPECT_EQ(scalar.num_elements(), 1);
  groups.clear();
  std::ranges::fill(tensor.span<float16>(), float16(1));
  EXPECT_EQ(tensor.to_vector<float16>()[14], float16(1));
}

TEST(Group, OfInProcessRanksKnowsItsRank) {
  const Groups groups = Group::in_process(3);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(groups[size_t(r)].rank(), r);
    EXPECT_EQ(groups[size_t(r)].size(), 3);
    EXPECT_EQ(groups[size_t(r)].backend(), "in_process");
  }
}

}  // namespace
}  // namespace tutti
