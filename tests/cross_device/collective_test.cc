// SPDX-License-Identifier: Apache-2.0
// Cross-device operations over the replicas of several workers, in all worlds that ranks live in.
#include <tutti/tutti.h>

#include "cross_device/fused.h"
#include "group/ranks.h"
#include "support/cpus.h"
#include "support/expect.h"

namespace tutti {
namespace {

using testing::caught;
using testing::cpu;
using testing::errors_on_ranks;
using testing::expect_everywhere;
using testing::Groups;
using testing::kSoon;
using testing::on_ranks;
using testing::on_threads;
using testing::same_bits;
using testing::World;
using F = std::vector<float>;
using I = std::vector<int64_t>;

constexpr size_t kMostReplicas = 12;

std::vector<std::string> cpus(size_t n) {
  std::vector<std::string> names;
  for (size_t i = 0; i < n; ++i) names.push_back(cpu(i));
  return names;
}

// Several workers with several devices each.
class Collective : public ::testing::TestWithParam<std::tuple<World, int, int>> {
 protected:
  Collective() { set_logical_devices("CPU", int(kMostReplicas)); }

  const int workers = std::get<1>(GetParam());
  const size_t devices = size_t(std::get<2>(GetParam()));
  const size_t replicas = size_t(workers) * devices;
  const Groups groups = std::get<0>(GetParam()).make(workers);

  // f(ops, worker) on every worker.
  template <class Function>
  void on_workers(const Function& f) const {
    on_ranks(groups, [&](const Group& group) {
      CollectiveAllReduce ops(cpus(devices), group);
      f(ops, size_t(group.rank()));
    });
  }

  // make(replica, device) of the replicas of one worker.
  template <class Make>
  auto local(size_t worker, const Make& make) const {
    std::vector<decltype(make(size_t{}, std::string{}))> parts;
    for (size_t i = 0; i < devices; ++i) parts.push_back(make(worker * devices + i, cpu(i)));
    return PerReplica<typename decltype(parts)::value_type>(std::move(parts));
  }
  // And of all, as if they were in one process.
  template <class Make>
  auto whole(const Make& make) const {
    std::vector<decltype(make(size_t{}, std::string{}))> parts;
    for (size_t i = 0; i < replicas; ++i) parts.push_back(make(i, cpu(i)));
    return PerReplica<typename decltype(parts)::value_type>(std::move(parts));
  }
};

std::string name_of(const ::testing::TestParamInfo<Collective::ParamType>& info) {
  return fmt::format("{}{}x{}", std::get<0>(info.param).name, std::get<1>(info.param),
                     std::get<2>(info.param));
}
INSTANTIATE_TEST_SUITE_P(, Collective,
                         ::testing::Combine(::testing::ValuesIn(testing::kWorlds),
                                            ::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(1, 2, 3)),
                         name_of);

// C022, C023, C028, C031, C032
TEST_P(Collective, HasTheBitsOfOneProcessForEveryPacking) {
  const std::vector<std::pair<DType, int64_t>> tensors{
      {DType::float32, 10007}, {DType::float32, 1}, {DType::bfloat16, 301},
      {DType::float64, 0},     {DType::int32, 40},  {DType::float64, 77}};
  const auto make = [&](size_t t) {
    return [&, t](size_t replica, const std::string& device) {
      const auto [dtype, size] = tensors[t];
      const Tensor tensor = Tensor::empty({size}, dtype, device);
      testing::fill_random(dtype, tensor.data(), size_t(size), 100 * t + replica, false);
      return Value(tensor);
    };
  };
  for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MAX}) {
    std::vector<Tensor> want;
    for (size_t t = 0; t < tensors.size(); ++t)
      want.push_back(cross_device::fused_reduce(op, whole(make(t)), cpu(0))[0].tensor());
    for (const int64_t bytes_per_pack : {0, 1, 2000})
      on_workers([&](CollectiveAllReduce& ops, size_t worker) {
        std::vector<ValueDestinationPair> pairs;
        for (size_t t = 0; t < tensors.size(); ++t) {
          const PerReplica<Value> value = local(worker, make(t));
          pairs.emplace_back(value, t == 1 ? Destinations(cpu(5)) : Destinations(value));
        }
        const auto got = ops.batch_reduce(op, pairs, {.bytes_per_pack = bytes_per_pack});
        ASSERT_EQ(got.size(), tensors.size());
        for (size_t t = 0; t < got.size(); ++t) {
          EXPECT_EQ(got[t].devices(), pairs[t].second.devices());
          for (const Value& v : got[t]) {
            EXPECT_EQ(v.dtype(), want[t].dtype());
            EXPECT_EQ(v.tensor().shape(), want[t].shape());
            EXPECT_TRUE(same_bits(want[t].dtype(), v.tensor().const_data(), want[t].const_data(),
                                  size_t(want[t].num_elements())));
          }
        }
      });
  }
}

// C026, C029: rows in replica order, however many each has.
TEST_P(Collective, KeepsSlicesSparseInReplicaOrder) {
  const auto make = [](size_t replica, const std::string& device) {
    const auto rows = int64_t(replica % 3);  // some have none
    const Tensor values = Tensor::empty({rows, 2}, DType::float32, device);
    const Tensor indices = Tensor::empty({rows}, DType::int32, device);
    for (int64_t i = 0; i < rows; ++i) {
      values.span<float>()[size_t(2 * i)] = float(replica);
      values.span<float>()[size_t(2 * i + 1)] = float(i);
      indices.span<int32_t>()[size_t(i)] = int32_t(replica + size_t(i));
    }
    return Value(IndexedSlices{values, indices, Shape{50, 2}});
  };
  for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN}) {
    const IndexedSlices want = cross_device::fused_reduce(op, whole(make), cpu(0))[0].slices();
    on_workers([&](CollectiveAllReduce& ops, size_t worker) {
      const PerReplica<Value> value = local(worker, make);
      for (const Value& v : ops.reduce(op, value, value)) {
        const IndexedSlices& got = v.slices();
        EXPECT_EQ(got.values.to_vector<float>(), want.values.to_vector<float>());
        EXPECT_EQ(got.indices.dtype(), DType::int32);
        EXPECT_EQ(got.indices.to_vector<int32_t>(), want.indices.to_vector<int32_t>());
        EXPECT_EQ(got.dense_shape, (Shape{50, 2}));
      }
    });
  }
}

// C034
TEST_P(Collective, KeepsTheOrderOfDenseAndSparseValues) {
  on_workers([&](CollectiveAllReduce& ops, size_t worker) {
    const auto dense = [&](float x) {
      return local(worker, [x](size_t replica, const std::string& device) {
        return Value(Tensor::of<float>({x, float(replica)}, device));
      });
    };
    const auto sparse = [&](float x) {
      return local(worker, [x](size_t replica, const std::string& device) {
        return Value(IndexedSlices{Tensor::of<float>({x}, device),
                                   Tensor::of<int64_t>({int64_t(replica)}, device), Shape{20}});
      });
    };
    const auto a = dense(1), c = dense(3);
    const auto b = sparse(2), d = sparse(4);
    const auto got = ops.batch_reduce(ReduceOp::SUM, {{a, a}, {b, b}, {c, cpu(0)}, {d, d}});
    const float n = float(replicas), ids = n * (n - 1) / 2;
    EXPECT_EQ(got[0][0].tensor().to_vector<float>(), F({n, ids}));
    EXPECT_EQ(got[1][0].slices().values.to_vector<float>(), F(replicas, 2));
    EXPECT_EQ(got[2][0].tensor().to_vector<float>(), F({3 * n, ids}));
    EXPECT_EQ(got[3][devices - 1].slices().values.to_vector<float>(), F(replicas, 4));
  });
}

// C038, C043: a list, with results on the devices that its values are on.
TEST_P(Collective, LeavesResultsOnTheDevicesOfTheValues) {
  on_workers([&](CollectiveAllReduce& ops, size_t worker) {
    std::vector<ValueDestinationPair> pairs;
    for (const float x : {1.f, 2.f}) {
      const auto value = local(worker, [x](size_t, const std::string& device) {
        return Value(IndexedSlices{Tensor::of<float>({x}, device),
                                   Tensor::of<int64_t>({int64_t(x)}, device), Shape{5}});
      });
      pairs.emplace_back(value, value);
    }
    const auto got = ops.batch_reduce(ReduceOp::SUM, pairs);
    for (size_t k = 0; k < 2; ++k) {
      EXPECT_EQ(got[k].devices(), cpus(devices));
      for (const Value& v : got[k])
        EXPECT_EQ(v.slices().to_dense().to_vector<float>()[k + 1], float(k + 1) * float(replicas));
    }
  });
}

TEST_P(Collective, AddsSlicesAsDenseIfAskedTo) {
  on_workers([&](CollectiveAllReduce& ops, size_t worker) {
    const auto value = local(worker, [](size_t, const std::string& device) {
      return IndexedSlices{Tensor::of<float>({1, 2}, device), Tensor::of<int64_t>({3, 1}, device),
                           Shape{4}};
    });
    const auto got = ops.reduce(ReduceOp::SUM, value, value, {.sparse_as_dense = true});
    const float n = float(replicas);
    EXPECT_EQ(got[0].values.to_vector<float>(), F({0, 2 * n, 0, n}));
    EXPECT_EQ(got[0].indices.to_vector<int64_t>(), I({0, 1, 2, 3}));
    EXPECT_EQ(got[0].dense_shape, Shape{4});
  });
}

// C040, C184, C185
TEST_P(Collective, GathersInReplicaOrderAlongEveryAxis) {
  for (const size_t axis : {0, 1, 2}) {
    const auto make = [axis](size_t replica, const std::string& device) {
      std::vector<int64_t> extents{2, 3, 1};
      extents[axis] = int64_t(replica % 4);
      const Tensor t = Tensor::empty(Shape(extents), DType::float32, device);
      for (size_t i = 0; i < t.span<float>().size(); ++i)
        t.span<float>()[i] = float(100 * replica + i);
      return t;
    };
    const Tensor want = ReductionToOneDevice().gather(whole(make), cpu(0), int64_t(axis))[0];
    on_workers([&](CollectiveAllReduce& ops, size_t worker) {
      const PerReplica<Tensor> value = local(worker, make);
      for (const Tensor& got : ops.gather(value, value, int64_t(axis))) {
        EXPECT_EQ(got.shape(), want.shape());
        EXPECT_EQ(got.to_vector<float>(), want.to_vector<float>());
      }
    });
  }
}

// C230: a value with one component stands for its worker.
TEST_P(Collective, ReducesASingleComponentOverTheWorkers) {
  on_workers([&](CollectiveAllReduce& ops, size_t worker) {
    const Tensor mine = Tensor::scalar<float>(float(worker + 1));
    const float w = float(workers);
    EXPECT_EQ(ops.reduce(ReduceOp::SUM, mine, mine)[0].item<float>(), w * (w + 1) / 2);
    EXPECT_EQ(ops.reduce(ReduceOp::MEAN, mine, mine)[0].item<float>(), (w + 1) / 2);
    EXPECT_EQ(ops.gather(Tensor::of<float>({float(worker)}), cpu(0), 0)[0].num_elements(), workers);
    const auto both =
        ops.batch_reduce(ReduceOp::SUM, {{mine, mine},
                                         {local(worker,
                                                [](size_t, const std::string& device) {
                                                  return Value(Tensor::scalar<float>(1, device));
                                                }),
                                          mine}});
    EXPECT_EQ(both[0][0].tensor().item<float>(), w * (w + 1) / 2);
    EXPECT_EQ(both[1][0].tensor().item<float>(), float(replicas));
  });
}

class CollectiveOfThree : public ::testing::Test {
 protected:
  CollectiveOfThree() { set_logical_devices("CPU", int(kMostReplicas)); }
  const Groups groups = Group::in_process(3);
};

TEST_F(CollectiveOfThree, SaysWhatWorkersDisagreeAbout) {
  expect_everywhere(errors_on_ranks(groups,
                                    [](const Group& group) {
                                      CollectiveAllReduce ops({cpu(0)}, group);
                                      const Tensor mine = Tensor::zeros({group.rank() == 1 ? 3 : 2},
                                                                        DType::float32);
                                      ops.reduce(ReduceOp::SUM, mine, mine);
                                    }),
                    ErrorCode::invalid_argument, {"float32[2], SUM", "float32[3], SUM", "rank 1"});
}

TEST_F(CollectiveOfThree, NoticesWhatIsNotAllReduced) {
  const Tensor one = Tensor::of<float>({1});
  const IndexedSlices rows{Tensor::of<float>({1}), Tensor::of<int64_t>({0}), Shape{9}};
  const auto errors = [&](const auto& first, const auto& others) {
    return errors_on_ranks(Group::in_process(3), [&](const Group& group) {
      CollectiveAllReduce ops({cpu(0)}, group);
      group.rank() == 0 ? first(ops) : others(ops);
    });
  };
  expect_everywhere(errors([&](CrossDeviceOps& ops) { ops.batch_reduce(ReduceOp::SUM, {}); },
                           [&](CrossDeviceOps& ops) {
                             ops.batch_reduce(ReduceOp::SUM, {{one, one}});
                           }),
                    ErrorCode::invalid_argument, {"rank 0"});
  expect_everywhere(errors([&](CrossDeviceOps& ops) { ops.reduce(ReduceOp::SUM, rows, rows); },
                           [&](CrossDeviceOps& ops) { ops.reduce(ReduceOp::MEAN, rows, rows); }),
                    ErrorCode::invalid_argument, {"SUM", "MEAN", "worker 1"});
  const Tensor square = Tensor::zeros({2, 2}, DType::float32);
  expect_everywhere(errors([&](CrossDeviceOps& ops) { ops.gather(square, square, 0); },
                           [&](CrossDeviceOps& ops) { ops.gather(square, square, 1); }),
                    ErrorCode::invalid_argument, {"axis 0", "axis 1"});
}

TEST_F(CollectiveOfThree, AgreesOnEmptyBatches) {
  on_ranks(groups, [](const Group& group) {
    CollectiveAllReduce ops({cpu(0)}, group);
    EXPECT_TRUE(ops.batch_reduce(ReduceOp::SUM, {}).empty());
    const Tensor one = Tensor::of<float>({1});
    EXPECT_EQ(ops.reduce(ReduceOp::SUM, one, one)[0].item<float>(), 3);
  });
}

TEST_F(CollectiveOfThree, TakesItsOwnOptionsIfACallHasNone) {
  on_ranks(groups, [](const Group& group) {
    CollectiveAllReduce ops({cpu(0)}, group, {.sparse_as_dense = true});
    const IndexedSlices rows{Tensor::of<float>({1, 1}), Tensor::of<int64_t>({0, 2}), Shape{3}};
    EXPECT_EQ(ops.reduce(ReduceOp::SUM, rows, rows)[0].values.to_vector<float>(), F({3, 0, 3}));
  });
}

// C259: "nccl" on CPUs falls back and says so.
TEST_F(CollectiveOfThree, FallsBackFromNccl) {
  on_ranks(groups, [](const Group& group) {
    CollectiveAllReduce ops({cpu(0)}, group);
    const Tensor one = Tensor::of<float>({1});
    for (const auto way : {CommunicationImplementation::NCCL, CommunicationImplementation::RING})
      EXPECT_EQ(ops.reduce(ReduceOp::SUM, one, one, {.implementation = way})[0].item<float>(), 3);
  });
}

TEST_F(CollectiveOfThree, SaysWhichTensorOfABatchDiffers) {
  expect_everywhere(
      errors_on_ranks(
          groups,
          [](const Group& group) {
            CollectiveAllReduce ops({cpu(0)}, group);
            const Tensor a = Tensor::zeros({2}, DType::float32);
            const Tensor b = Tensor::zeros({3, group.rank() == 2 ? 4 : 2}, DType::float32);
            const Tensor c = Tensor::zeros({5}, DType::float32);
            ops.batch_reduce(ReduceOp::SUM, {{a, a}, {b, b}, {c, c}});
          }),
      ErrorCode::invalid_argument,
      {"tensor 1 is float32[3, 2] on rank ", " and float32[3, 4] on rank 2;"});
}

TEST_F(CollectiveOfThree, SaysWhichSlicesDiffer) {
  expect_everywhere(
      errors_on_ranks(
          groups,
          [](const Group& group) {
            CollectiveAllReduce ops({cpu(0)}, group);
            const int64_t rows = group.rank() == 2 ? 8 : 9;
            const IndexedSlices mine{Tensor::of<float>({1}), Tensor::of<int64_t>({0}), Shape{rows}};
            ops.reduce(ReduceOp::SUM, mine, mine);
          }),
      ErrorCode::invalid_argument, {"workers 0 and 2", "9 and 8 rows"});
}

// C044, C046, C047
TEST_F(CollectiveOfThree, NamesTheRanksThatDoNotCome) {
  const IndexedSlices sparse{Tensor::of<float>({1}), Tensor::of<int64_t>({0}), Shape{9}};
  for (const bool dense : {true, false}) {
    const Groups few = Group::in_process(3);
    std::vector<testing::Caught> all(3);
    on_threads(3, [&](size_t r) {
      if (r == 1) return;
      CollectiveAllReduce ops({cpu(0)}, few[r]);
      all[r] = caught([&] {
        const Value value = dense ? Value(sparse.values) : Value(sparse);
        ops.reduce(ReduceOp::SUM, value, value, kSoon);
      });
    });
    for (const size_t r : {0, 2}) {
      EXPECT_EQ(all[r].code, ErrorCode::deadline_exceeded);
      EXPECT_THAT(all[r].text, ::testing::HasSubstr("rank 1"));
    }
  }
}

TEST_F(CollectiveOfThree, TakesAComponentForEachDeviceOrOne) {
  CollectiveAllReduce ops(cpus(3), groups[0]);
  const PerReplica<Tensor> two{Tensor::scalar<float>(1), Tensor::scalar<float>(2)};
  EXPECT_ERROR(InvalidArgumentError, "the value has 2 components, expected one for each of the 3",
               ops.reduce(ReduceOp::SUM, two, cpu(0)));
  EXPECT_ERROR(InvalidArgumentError, "named twice",
               CollectiveAllReduce({"cpu:1", "/cpu:1"}, groups[0]));
  EXPECT_ERROR(InvalidArgumentError, "no devices", CollectiveAllReduce({}, groups[0]));
}

TEST_F(CollectiveOfThree, MayBeCalledFromSeveralThreads) {
  on_ranks(groups, [](const Group& group) {
    CollectiveAllReduce ops({cpu(0)}, group);
    on_threads(4, [&](size_t) {
      for (int i = 0; i < 25; ++i) {
        const Tensor one = Tensor::of<float>({1, 1});
        EXPECT_EQ(ops.reduce(ReduceOp::SUM, one, one)[0].to_vector<float>(), F({3, 3}));
      }
    });
  });
}

}  // namespace
}  // namespace tutti
