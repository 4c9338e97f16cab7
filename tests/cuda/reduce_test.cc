// SPDX-License-Identifier: Apache-2.0
// Reductions, gathers and broadcasts of tensors on GPUs: the bits are those of the host.
#include <map>

#include "cuda/gpus.h"
#include "support/algorithms.h"
#include "support/expect.h"
#include "support/fake_cuda.h"

namespace tutti {
namespace {

using testing::gpu;
using testing::on_host;
using testing::random_tensor;
using testing::same;
using F = std::vector<float>;
using I = std::vector<int64_t>;

// The same value, with its components spread over the logical devices of a type.
PerReplica<Value> spread(const std::vector<Tensor>& hosts, std::string_view type) {
  const auto names = list_logical_devices(type);
  std::vector<Value> parts;
  for (const Tensor& t : hosts) parts.push_back(t.clone_to(names[parts.size() % names.size()]));
  return PerReplica<Value>(parts);
}

// As many replicas with elements of their own, in host memory.
std::vector<Tensor> random_parts(DType dtype, const Shape& shape, size_t replicas, uint64_t seed) {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < replicas; ++i)
    parts.push_back(random_tensor(dtype, shape, seed * 1000 + i));
  return parts;
}

// Every other one begins in the middle of a block of memory, as far off as its type allows.
PerReplica<Value> borrowed(const PerReplica<Value>& value) {
  std::vector<Value> parts;
  for (const Value& v : value) {
    const Tensor& t = v.tensor();
    const size_t shift = parts.size() % 2 ? parts.size() % 7 : 0;
    const Tensor room = Tensor::zeros({t.num_elements() + int64_t(shift)}, t.dtype(), t.device());
    auto* const data = static_cast<std::byte*>(room.data()) + shift * size_of(t.dtype());
    const Tensor part =
        Tensor::borrow(data, t.shape(), t.dtype(), t.device(), std::make_shared<Tensor>(room));
    detail::Device& device = device::find(t.device(), "test");
    device::copy(device, data, device, t.const_data(), t.num_bytes());
    parts.push_back(part);
  }
  return PerReplica<Value>(parts);
}

class GpuReduction : public testing::LogicalGpus<9> {
 protected:
  // Reduces the same on GPUs and on CPUs, to the devices of the value.
  void expect_same(ReduceOp op, const std::vector<PerReplica<Value>>& on_gpus,
                   const std::vector<PerReplica<Value>>& on_cpus, CrossDeviceOps& gpu_ops) {
    const auto pairs = [](const std::vector<PerReplica<Value>>& values) {
      std::vector<ValueDestinationPair> result;
      for (const PerReplica<Value>& v : values) {
        std::vector<std::string> unique;
        for (const std::string& d : v.devices())
          if (std::ranges::find(unique, d) == unique.end()) unique.push_back(d);
        result.emplace_back(v, unique);
      }
      return result;
    };
    const std::vector<ValueDestinationPair> asked = pairs(on_gpus);
    const auto got = gpu_ops.batch_reduce(op, asked);
    const auto want = ReductionToOneDevice().batch_reduce(op, pairs(on_cpus));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].devices(), asked[i].second.devices());
      for (const size_t k : {size_t(0), got[i].size() - 1})
        ASSERT_TRUE(same(got[i][k].tensor(), want[i][0].tensor()))
            << name(op) << " of " << on_gpus[i].size() << " replicas, tensor " << i << ", on "
            << got[i][k].device();
    }
  }
  ReductionToOneDevice one;
};

TEST_F(GpuReduction, HasTheBitsOfTheHostForAllTypesOpsAndReplicas) {
  for (const DType dtype : testing::kDTypes)
    for (const size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33}) {
      std::vector<PerReplica<Value>> on_gpus, on_cpus;
      for (const int64_t size : {0, 1, 3, 15, 257, 1025}) {
        const auto parts = random_parts(dtype, {size}, n, uint64_t(size) * 100 + n);
        on_cpus.push_back(spread(parts, "CPU"));
        on_gpus.push_back(spread(parts, "GPU"));
      }
      for (const ReduceOp op : testing::kOps) {
        if (!testing::is_defined(op, dtype)) continue;
        expect_same(op, on_gpus, on_cpus, one);
        // A tensor by itself takes another way than in a list.
        expect_same(op, {on_gpus.back()}, {on_cpus.back()}, one);
        if (HasFatalFailure()) return;
      }
    }
}

TEST_F(GpuReduction, TakesMemoryOfAnyAlignment) {
  for (const DType dtype : testing::kDTypes)
    for (const size_t n : {1, 2, 3, 8, 9}) {
      std::vector<PerReplica<Value>> on_gpus, on_cpus;
      for (const int64_t size : {1, 3, 64, 1027, 5001}) {
        on_cpus.push_back(spread(random_parts(dtype, {size}, n, uint64_t(size)), "CPU"));
        on_gpus.push_back(borrowed(spread(random_parts(dtype, {size}, n, uint64_t(size)), "GPU")));
      }
      for (const ReduceOp op : testing::kOps) {
        if (!testing::is_defined(op, dtype)) continue;
        expect_same(op, on_gpus, on_cpus, one);
        expect_same(op, {on_gpus.back()}, {on_cpus.back()}, one);
        if (HasFatalFailure()) return;
      }
    }
}

TEST_F(GpuReduction, TakesLargeTensors) {
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64, DType::uint8}) {
    const auto parts = random_parts(dtype, {300007}, 3, 1);
    for (const ReduceOp op : testing::kOps)
      expect_same(op, {spread(parts, "GPU")}, {spread(parts, "CPU")}, one);
  }
}

TEST_F(GpuReduction, TakesListsOfAllTypesAndShapes) {
  std::vector<PerReplica<Value>> on_gpus, on_cpus;
  for (size_t i = 0; i < 300; ++i) {
    const DType dtype = testing::kDTypes[i % 13];
    const Shape shapes[] = {{}, {int64_t(i * i % 701)}, {int64_t(i % 4), 3}, {2, int64_t(i), 1}};
    const auto parts = random_parts(dtype, shapes[i % 4], i % 9 + 1, i);
    on_cpus.push_back(spread(parts, "CPU"));
    on_gpus.push_back(spread(parts, "GPU"));
  }
  for (const ReduceOp op : {ReduceOp::MIN, ReduceOp::MAX}) expect_same(op, on_gpus, on_cpus, one);
  const auto has_sum = [](const PerReplica<Value>& v) { return v[0].dtype() != DType::boolean; };
  std::erase_if(on_gpus, [&](const auto& v) { return !has_sum(v); });
  std::erase_if(on_cpus, [&](const auto& v) { return !has_sum(v); });
  for (const testing::Algorithm& algorithm : testing::all_algorithms())
    for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::PROD})
      expect_same(op, on_gpus, on_cpus, *algorithm.make());
}

// More tensors than a launch has room for, and more pointers.
TEST_F(GpuReduction, TakesListsOfManyAlike) {
  for (const size_t n : {1, 2, 8, 33}) {
    std::vector<PerReplica<Value>> on_gpus, on_cpus;
    for (int64_t i = 0; i < 300; ++i) {
      const auto parts = random_parts(DType::float32, {i % 50}, n, uint64_t(i));
      on_cpus.push_back(spread(parts, "CPU"));
      on_gpus.push_back(spread(parts, "GPU"));
    }
    expect_same(ReduceOp::SUM, on_gpus, on_cpus, one);
    expect_same(ReduceOp::MAX, on_gpus, on_cpus, one);
  }
}

TEST_F(GpuReduction, TakesHundredsOfReplicas) {
  for (const size_t n : {64, 70, 450, 1025}) {
    const auto parts = random_parts(DType::float16, {37}, n, n);
    for (const ReduceOp op : testing::kOps)
      expect_same(op, {spread(parts, "GPU")}, {spread(parts, "CPU")}, one);
  }
}

TEST_F(GpuReduction, IsOneLaunchWithoutCopiesOnOneGpu) {
  NEEDS_FAKE("counts launches");
  std::vector<ValueDestinationPair> pairs;
  const auto names = list_logical_devices("GPU");
  for (size_t i = 0; i < 30; ++i) {
    std::vector<Value> parts;
    for (size_t r = 0; r < 4; ++r)
      parts.push_back(Tensor::full({int64_t(i)}, double(r), DType::float32,
                                   names[r * size_t(testing::physical_gpus()) % names.size()]));
    if (cuda_device(parts[3].device()) != cuda_device(parts[0].device())) continue;
    pairs.emplace_back(PerReplica<Value>(parts), PerReplica<Value>(parts));
  }
  if (pairs.empty()) GTEST_SKIP() << "no four logical GPUs are on one GPU";
  const testing::FakeCudaCounts before = testing::fake_cuda_counts();
  (void)HierarchicalCopyAllReduce().batch_reduce(ReduceOp::SUM, pairs);
  const testing::FakeCudaCounts after = testing::fake_cuda_counts();
  EXPECT_EQ(after.launches - before.launches, 1);
  EXPECT_EQ(after.copies - before.copies, 0);
  EXPECT_EQ(after.synchronizations - before.synchronizations, 0);
}

TEST_F(GpuReduction, TakesReplicasAndDestinationsAnywhere) {
  const auto parts = random_parts(DType::bfloat16, {501}, 4, 1);
  const std::vector<std::string> places{gpu(0), "/cpu:0", gpu(1), gpu(2), "/cpu:1", gpu(8)};
  const Tensor want = one.reduce(ReduceOp::MEAN, spread(parts, "CPU"), "/cpu:0")[0].tensor();
  for (size_t shift = 0; shift < places.size(); ++shift) {
    std::vector<Value> value;
    for (size_t i = 0; i < parts.size(); ++i)
      value.push_back(parts[i].clone_to(places[(i + shift) % places.size()]));
    for (size_t first = 0; first < places.size(); ++first) {
      std::vector<std::string> to{places[first], places[(first + 1) % places.size()],
                                  places[(first + 4) % places.size()]};
      for (const testing::Algorithm& algorithm : testing::all_algorithms()) {
        const Mirrored<Value> got =
            algorithm.make()->reduce(ReduceOp::MEAN, PerReplica<Value>(value), to);
        ASSERT_EQ(got.devices(), Destinations(to).devices());
        for (const Value& v : got) ASSERT_TRUE(same(v.tensor(), want)) << algorithm.name;
      }
    }
  }
}

TEST_F(GpuReduction, LeavesItsInputsAsTheyWere) {
  const auto parts = random_parts(DType::float32, {1000}, 5, 1);
  const PerReplica<Value> v = spread(parts, "GPU");
  for (const testing::Algorithm& algorithm : testing::all_algorithms()) {
    const auto ops = algorithm.make();
    (void)ops->reduce(ReduceOp::SUM, v, v);
    (void)ops->broadcast(v[0], v);
    (void)ops->gather(v, v, 0);
    for (size_t i = 0; i < parts.size(); ++i) EXPECT_TRUE(same(v[i].tensor(), parts[i]));
  }
}

TEST_F(GpuReduction, HasMeansOfIntegersAsFloats) {
  const PerReplica<Tensor> v{Tensor::of<int32_t>({1, INT32_MIN}, gpu(0)),
                             Tensor::of<int32_t>({2, -1}, gpu(1))};
  const Mirrored<Tensor> mean = one.reduce(ReduceOp::MEAN, v, v);
  EXPECT_EQ(mean[1].dtype(), DType::float64);
  EXPECT_EQ(mean[1].to_vector<double>(), (std::vector<double>{1.5, -0x1p30 - .5}));
  const PerReplica<Tensor> alone{Tensor::scalar<int8_t>(3, gpu(0))};
  EXPECT_EQ(one.reduce(ReduceOp::MEAN, alone, alone)[0].item<float>(), 3.f);
}

TEST_F(GpuReduction, SumsByAFunctionOfTheUsers) {
  ReductionToOneDevice ops(gpu(1), [](const std::vector<Tensor>& parts) {
    std::vector<float> sum = parts[0].to_vector<float>();
    for (size_t i = 1; i < parts.size(); ++i) {
      EXPECT_EQ(parts[i].device(), gpu(1));
      for (size_t j = 0; j < sum.size(); ++j) sum[j] += 10 * parts[i].to_vector<float>()[j];
    }
    return Tensor::of(std::span<const float>(sum), parts[0].device());
  });
  const PerReplica<Tensor> v{Tensor::of<float>({1, 2}, gpu(0)), Tensor::of<float>({3, 4}, gpu(2))};
  const Mirrored<Tensor> sum = ops.reduce(ReduceOp::SUM, v, v);
  EXPECT_EQ(sum[1].device(), gpu(2));
  EXPECT_EQ(sum[1].to_vector<float>(), F({31, 42}));
  EXPECT_EQ(ops.reduce(ReduceOp::MEAN, v, "/cpu:0")[0].to_vector<float>(), F({15.5f, 21}));
}

TEST_F(GpuReduction, GathersAlongEveryAxis) {
  for (const DType dtype : {DType::uint8, DType::float32, DType::float64})
    for (const int64_t axis : {0, 1, 2, -1}) {
      std::vector<Tensor> parts;
      for (int64_t i = 0; i < 5; ++i) {
        std::vector<int64_t> extents{3, 4, 5};
        extents[size_t(axis < 0 ? 2 : axis)] = i;  // one of them empty
        parts.push_back(random_tensor(dtype, Shape(extents), uint64_t(i)));
      }
      const Tensor want = one.gather(spread(parts, "CPU"), "/cpu:0", axis)[0];
      const PerReplica<Value> v = spread(parts, "GPU");
      for (const Destinations& to : {Destinations(v), Destinations("/cpu:1"), Destinations(gpu(7))})
        for (const Tensor& got : one.gather(v, to, axis)) EXPECT_TRUE(same(got, want)) << axis;
      // And of values on CPUs to a GPU.
      EXPECT_TRUE(same(one.gather(spread(parts, "CPU"), gpu(3), axis)[0], want));
    }
}

TEST_F(GpuReduction, BroadcastsToAndFromEveryDevice) {
  const Tensor host = random_tensor(DType::float16, {77}, 1);
  for (const testing::Algorithm& algorithm : testing::all_algorithms())
    for (const std::string& from : {std::string("/cpu:0"), gpu(0), gpu(5)}) {
      const Tensor source = host.clone_to(from);
      const std::vector<std::string> to{gpu(0), "/cpu:1", gpu(5), gpu(1)};
      const Mirrored<Tensor> copies = algorithm.make()->broadcast(source, to);
      for (const Tensor& copy : copies) {
        EXPECT_NE(copy.const_data(), source.const_data());
        EXPECT_TRUE(same(copy, host));
      }
    }
}

// Between GPUs the bytes are copied; kernels read their own GPU's only, or the fake complains.
TEST_F(GpuReduction, StagesBetweenGpus) {
  NEEDS_GPUS(2);
  const auto names = list_logical_devices("GPU");
  const auto parts = random_parts(DType::float32, {100001}, 6, 1);
  const Tensor want = one.reduce(ReduceOp::SUM, spread(parts, "CPU"), "/cpu:0")[0].tensor();
  for (int repeat = 0; repeat < 5; ++repeat) {
    const PerReplica<Value> v = spread(parts, "GPU");
    const Mirrored<Value> sum = one.reduce(ReduceOp::SUM, v, names);
    for (const Value& s : sum) ASSERT_TRUE(same(s.tensor(), want));
    const Mirrored<Value> again = one.reduce(
        ReduceOp::MAX, PerReplica<Value>(std::vector<Value>(sum.begin(), sum.end())), names);
    for (const Value& s : again) ASSERT_TRUE(same(s.tensor(), want));
  }
}

TEST_F(GpuReduction, OfWeightsIsThatOfTheHost) {
  const auto run = [&](const char* type) {
    MirroredStrategy strategy(testing::devices(type, 3));
    std::vector<Tensor> results;
    for (const DType dtype : {DType::float32, DType::float16, DType::int32, DType::float64}) {
      const auto parts = random_parts(dtype, {65}, 3, 7);
      std::vector<Tensor> placed;
      for (const Value& v : spread(parts, type)) placed.push_back(v.tensor());
      const PerReplica<Tensor> value(placed);
      results.push_back(strategy.reduce(ReduceOp::MEAN, value, {.weights = {1, 0, 2.5}}));
      const DeviceScope scope(testing::devices(type, 3)[1]);
      results.push_back(strategy.reduce(ReduceOp::MEAN, value, {.weights = {0.25, 3, 2.5}}));
      results.push_back(strategy.reduce(ReduceOp::MEAN, value, /*axis=*/0));
      results.push_back(strategy.reduce(ReduceOp::SUM, value, /*axis=*/0));
      results.push_back(strategy.reduce(ReduceOp::MAX, value));
      results.push_back(strategy.gather(value, 0));
      EXPECT_EQ(results.back().device(), current_device());
      for (const Tensor& t : strategy.run(
               [&](ReplicaContext& ctx, const Tensor& x) {
                 return ctx.all_reduce(ReduceOp::MEAN, x,
                                       {.weight = ctx.local_replica_id() * 0.75});
               },
               value))
        results.push_back(t);
    }
    return results;
  };
  const std::vector<Tensor> got = run("GPU"), want = run("CPU");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same(got[i], want[i])) << i;
}

TEST_F(GpuReduction, IsChosenForGpus) {
  const auto names = list_logical_devices("GPU");
  EXPECT_TRUE(dynamic_cast<AllReduceCrossDeviceOps*>(choose_the_best(names).get()));
  EXPECT_TRUE(dynamic_cast<ReductionToOneDevice*>(choose_the_best({"/gpu:0", "/cpu:0"}).get()));
  const PerReplica<Tensor> v{Tensor::scalar<float>(1, gpu(0)), Tensor::scalar<float>(2, gpu(1))};
  EXPECT_EQ(choose_the_best({gpu(0), gpu(1)})->reduce(ReduceOp::SUM, v, v)[1].item<float>(), 3);
}

// Rows with repeated indices, some replicas without any.
std::vector<IndexedSlices> random_slices(DType dtype, size_t n, std::string_view type) {
  const auto names = list_logical_devices(type);
  std::vector<IndexedSlices> parts;
  for (size_t i = 0; i < n; ++i) {
    const int64_t count = i == 1 ? 0 : int64_t(10 * i + 3);
    std::vector<int64_t> rows;
    for (int64_t k = 0; k < count; ++k) rows.push_back((k * k + int64_t(i)) % 17);
    const Tensor indices = Tensor::of(std::span<const int64_t>(rows), "/cpu:0");
    parts.push_back({random_tensor(dtype, {count, 5}, i).clone_to(names[i]),
                     (i == 2 ? indices.to(DType::int32) : indices).clone_to(names[i]),
                     Shape{17, 5}});
  }
  return parts;
}

TEST_F(GpuReduction, OfSlicesIsThatOfTheHost) {
  for (const DType dtype : testing::kDTypes) {
    if (dtype == DType::boolean) continue;
    for (const size_t n : {1, 2, 4}) {
      const auto run = [&](const char* type, CrossDeviceOps& ops) {
        const PerReplica<IndexedSlices> v(random_slices(dtype, n, type));
        std::vector<Tensor> results;
        for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN}) {
          for (const IndexedSlices& s : ops.reduce(op, v, v)) {
            results.insert(results.end(), {s.values, s.indices, s.to_dense()});
            const IndexedSlices merged = s.merged();
            results.insert(results.end(), {merged.values, merged.indices});
          }
          results.push_back(ops.reduce(op, v, "/cpu:0")[0].values);
          const auto dense = ops.reduce(op, PerReplica<Value>(v), v, {.sparse_as_dense = true});
          results.push_back(dense[0].slices().values);
          results.push_back(dense[0].slices().indices);
          if (n == 1) continue;
          std::vector<Value> mixed;
          for (size_t i = 0; i < n; ++i)
            mixed.push_back(
                i % 2 ? Value(random_tensor(dtype, {17, 5}, 99 + i).clone_to(v[i].device()))
                      : Value(v[i]));
          for (const Value& s : ops.reduce(op, PerReplica<Value>(mixed), v))
            results.push_back(s.tensor());
        }
        return results;
      };
      AllReduceCrossDeviceOps all("hierarchical_copy");
      const std::vector<Tensor> want = run("CPU", one);
      for (CrossDeviceOps* ops : std::vector<CrossDeviceOps*>{&one, &all}) {
        const std::vector<Tensor> got = run("GPU", *ops);
        ASSERT_EQ(got.size(), want.size());
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_TRUE(same(got[i], want[i])) << name(dtype) << ", " << n << " replicas, " << i;
      }
    }
  }
}

TEST_F(GpuReduction, SlicesOutsideAreAnError) {
  const IndexedSlices outside{Tensor::zeros({1, 2}, DType::float32, gpu(0)),
                              Tensor::of<int64_t>({5}, gpu(0)), Shape{5, 2}};
  EXPECT_ERROR(InvalidArgumentError, "index 5", outside.to_dense());
  EXPECT_ERROR(InvalidArgumentError, "dense_shape",
               (IndexedSlices{outside.values, outside.indices}.to_dense()));
}

}  // namespace
}  // namespace tutti
