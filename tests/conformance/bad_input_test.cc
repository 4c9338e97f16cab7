// SPDX-License-Identifier: Apache-2.0
// Unusual and wrong input, with every algorithm: the right answer or a clear error, and inputs stay
// as they were.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <tutti/tutti.h>

#include <cmath>

#include "support/algorithms.h"
#include "support/cpus.h"
#include "support/expect.h"
#include "support/reference.h"

namespace tutti {
namespace {

using testing::device;
using testing::same_bits;

constexpr float kInf = INFINITY, kNan = NAN;

struct BadInput : testing::LogicalDevices<4> {
  template <class Body>
  static void for_each_algorithm(const Body& body) {
    for (const testing::Algorithm& a : testing::all_algorithms()) {
      SCOPED_TRACE(a.name);
      body(*a.make());
    }
  }

  // The reduction of one element per replica, on one destination.
  template <class T>
  static Tensor reduced(CrossDeviceOps& ops, ReduceOp op, std::initializer_list<T> values) {
    std::vector<Tensor> parts;
    for (const T& v : values) parts.push_back(Tensor::scalar<T>(v, device(parts.size())));
    return ops.reduce(op, PerReplica<Tensor>(parts), device(3))[0];
  }
};

TEST_F(BadInput, InfinitiesAndNanFollowArithmetic) {
  for_each_algorithm([](CrossDeviceOps& ops) {
    const auto f = [&](ReduceOp op, std::initializer_list<float> values) {
      return reduced<float>(ops, op, values).item<float>();
    };
    EXPECT_EQ(f(ReduceOp::SUM, {kInf, 1, 2}), kInf);
    EXPECT_TRUE(std::isnan(f(ReduceOp::SUM, {kInf, 1, -kInf})));
    EXPECT_TRUE(std::isnan(f(ReduceOp::MEAN, {1, kNan})));
    EXPECT_TRUE(std::isnan(f(ReduceOp::MIN, {1, kNan, -kInf})));
    EXPECT_TRUE(std::isnan(f(ReduceOp::MAX, {kInf, kNan})));
    EXPECT_TRUE(std::isnan(f(ReduceOp::PROD, {0, kInf})));
    EXPECT_EQ(f(ReduceOp::MIN, {kInf, -kInf}), -kInf);
    EXPECT_TRUE(std::signbit(f(ReduceOp::MIN, {0.f, -0.f})));
    EXPECT_FALSE(std::signbit(f(ReduceOp::MAX, {-0.f, 0.f})));
    EXPECT_EQ(f(ReduceOp::SUM, {3e38f, 3e38f}), kInf);
    EXPECT_EQ(
        float(reduced<float16>(ops, ReduceOp::SUM, {float16(65504), float16(16)}).item<float16>()),
        kInf);
    EXPECT_EQ(
        float(reduced<float16>(ops, ReduceOp::SUM, {float16(65504), float16(15)}).item<float16>()),
        65504);
  });
}

TEST_F(BadInput, IntegersWrapAndTheirMeanDoesNot) {
  for_each_algorithm([](CrossDeviceOps& ops) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(reduced<int64_t>(ops, ReduceOp::SUM, {kMax, 1}).item<int64_t>(), -kMax - 1);
    EXPECT_EQ(reduced<uint8_t>(ops, ReduceOp::SUM, {200, 100}).item<uint8_t>(), 44);
    EXPECT_EQ(reduced<int8_t>(ops, ReduceOp::PROD, {16, 16}).item<int8_t>(), 0);
    EXPECT_EQ(reduced<int64_t>(ops, ReduceOp::MEAN, {kMax, kMax}).item<double>(), double(kMax));
    EXPECT_EQ(reduced<int64_t>(ops, ReduceOp::MEAN, {kMax, -kMax}).item<double>(), 0);
    EXPECT_EQ(reduced<uint64_t>(ops, ReduceOp::MEAN, {~0ull, ~0ull}).item<double>(), 0x1p64);
    EXPECT_EQ(reduced<int32_t>(ops, ReduceOp::MEAN, {INT32_MIN, -1}).item<double>(), -0x1p30 - .5);
    EXPECT_EQ(reduced<int8_t>(ops, ReduceOp::MEAN, {127, 127, 126}).item<float>(), 380 / 3.f);
    EXPECT_EQ(reduced<bool>(ops, ReduceOp::MIN, {true, false}).item<bool>(), false);
    EXPECT_EQ(reduced<bool>(ops, ReduceOp::MAX, {true, false}).item<bool>(), true);
    EXPECT_ERROR(InvalidArgumentError, "bool has no SUM",
                 reduced<bool>(ops, ReduceOp::SUM, {true, false}));
  });
}

TEST_F(BadInput, EmptyTensorsReduceToEmptyTensors) {
  for_each_algorithm([](CrossDeviceOps& ops) {
    for (const Shape& shape : {Shape{0}, Shape{3, 0, 2}})
      for (const ReduceOp op : testing::kOps) {
        const PerReplica<Tensor> v{Tensor::empty(shape, DType::int32, device(0)),
                                   Tensor::empty(shape, DType::int32, device(1))};
        const Mirrored<Tensor> result = ops.reduce(op, v, v);
        ASSERT_EQ(result.devices(), v.devices());
        EXPECT_EQ(result[1].shape(), shape);
        EXPECT_EQ(result[1].dtype(), result_dtype(op, DType::int32));
        EXPECT_EQ(ops.broadcast(v[0], v)[1].shape(), shape);
      }
  });
}

TEST_F(BadInput, ErrorsSayWhatIsWrong) {
  const Tensor a = Tensor::of<float>({1, 2, 3}, device(0));
  const auto with = [&](const Tensor& b) { return PerReplica<Tensor>{a, b}; };
  const PerReplica<Tensor> good = with(Tensor::of<float>({4, 5, 6}, device(1)));
  for_each_algorithm([&](CrossDeviceOps& ops) {
    const auto sum = [&](const PerReplica<Tensor>& v, auto&&... more) {
      ops.reduce(ReduceOp::SUM, v, more...);
    };
    EXPECT_ERROR(InvalidArgumentError, "shapes [3] and [2]",
                 sum(with(Tensor::of<float>({1, 2}, device(1))), device(0)));
    EXPECT_ERROR(InvalidArgumentError, "shapes [3] and []",
                 sum(with(Tensor::scalar<float>(1, device(1))), device(0)));
    EXPECT_ERROR(InvalidArgumentError, "shapes [3] and [0]",
                 sum(with(Tensor::empty({0}, DType::float32, device(1))), device(0)));
    EXPECT_ERROR(InvalidArgumentError, "float32 and bfloat16",
                 sum(with(Tensor::zeros({3}, DType::bfloat16, device(1))), device(0)));
    EXPECT_ERROR(InvalidArgumentError, "empty Tensor", sum(with(Tensor()), device(0)));
    EXPECT_ERROR(InvalidArgumentError, "no replicas", sum(PerReplica<Tensor>{}, device(0)));
    EXPECT_ERROR(InvalidArgumentError, "destination", sum(good, ""));
    EXPECT_ERROR(InvalidArgumentError, "/warp:0", sum(good, "/warp:0"));
    EXPECT_ERROR(InvalidArgumentError, testing::device_type() + ":4", sum(good, device(4)));
    EXPECT_ERROR(InvalidArgumentError, "twice",
                 sum(good, std::vector<std::string>{device(0), testing::device_type() + ":0"}));
    EXPECT_ERROR(InvalidArgumentError, "bytes_per_pack",
                 sum(good, device(0), CommunicationOptions{.bytes_per_pack = -1}));
    EXPECT_ERROR(InvalidArgumentError, "timeout",
                 sum(good, device(0), CommunicationOptions{.timeout = std::chrono::seconds(-1)}));
    EXPECT_ERROR(
        InvalidArgumentError, "in pair 2 of 3",
        ops.batch_reduce(ReduceOp::SUM, {{good, device(0)},
                                         {good, good},
                                         {with(Tensor::of<float>({1}, device(1))), device(0)}}));
  });
}

// Memory that the operating system protects from writes.
class ReadOnlyPage {
 public:
  explicit ReadOnlyPage(uint64_t seed)
      : data_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    testing::fill_random(DType::uint8, data_, kBytes, seed, /*specials=*/false);
    mprotect(data_, kBytes, PROT_READ);
  }
  ~ReadOnlyPage() { munmap(data_, kBytes); }
  // All of it but the first element, so that it is not aligned for vectors; a copy if `name` is
  // not a CPU.
  Tensor as(DType dtype, const std::string& name) const {
    const size_t size = size_of(dtype);
    const bool in_place = testing::device_type() == "CPU";
    const Tensor page =
        Tensor::borrow(static_cast<std::byte*>(data_) + size, {int64_t(kBytes / size) - 1}, dtype,
                       in_place ? name : "/cpu:0");
    return in_place ? page : page.clone_to(name);
  }
  static constexpr size_t kBytes = 64 << 10;

 private:
  void* data_;
};

TEST_F(BadInput, InputsAreNeverWritten) {
  const ReadOnlyPage first(1), second(2), third(3);
  for_each_algorithm([&](CrossDeviceOps& ops) {
    for (const DType dtype : testing::kDTypes) {
      if (dtype == DType::boolean) continue;  // random bytes are no bools
      const PerReplica<Tensor> v{first.as(dtype, device(0)), second.as(dtype, device(1)),
                                 third.as(dtype, device(1))};
      for (const ReduceOp op : testing::kOps) {
        const Mirrored<Tensor> result = ops.reduce(op, v, v);
        const Tensor hosts[] = {first.as(dtype, "/cpu:0"), second.as(dtype, "/cpu:0"),
                                third.as(dtype, "/cpu:0")};
        const void* const in[] = {hosts[0].const_data(), hosts[1].const_data(),
                                  hosts[2].const_data()};
        const auto count = size_t(v[0].num_elements());
        EXPECT_TRUE(same_bits(result[2].dtype(), result[2].clone_to("/cpu:0").const_data(),
                              testing::reference(dtype, op, in, count, 3).data(), count))
            << name(op);
      }
      ops.broadcast(v[0], v);
      ops.gather(v, v, 0);
    }
    const PerReplica<Value> sparse{
        IndexedSlices{first.as(DType::float32, device(0)).reshape({-1, 3}),
                      Tensor::zeros({5461}, DType::int64, device(0)), Shape{1, 3}},
        second.as(DType::float32, device(1)).reshape({-1, 3})};
    EXPECT_ERROR(InvalidArgumentError, "shapes", ops.reduce(ReduceOp::SUM, sparse, device(0)));
  });
}

// No enum has this value.
constexpr int kWrong = 99;

TEST_F(BadInput, EnumsOutOfRangeAreRefusedByEveryReduction) {
  const auto op = ReduceOp(kWrong);
  const auto aggregation = VariableAggregation(kWrong);
  const PerReplica<Tensor> value{Tensor::scalar(1.f, device(0)), Tensor::scalar(2.f, device(1))};
  const Mirrored<Tensor> mirrored{value[0], value[1]};
  constexpr const char* text = "99 is not a ReduceOp";
  for_each_algorithm([&](CrossDeviceOps& ops) {
    EXPECT_ERROR(InvalidArgumentError, text, ops.reduce(op, value, value));
    EXPECT_ERROR(InvalidArgumentError, text, ops.reduce(op, value[0], device(0)));
    EXPECT_ERROR(InvalidArgumentError, text, ops.reduce(op, mirrored, value));
    EXPECT_ERROR(InvalidArgumentError, text, ops.batch_reduce(op, {{value, value}}));
    EXPECT_ERROR(InvalidArgumentError, text, ops.batch_reduce(op, {}));
    EXPECT_ERROR(InvalidArgumentError, "VariableAggregation",
                 ops.reduce(aggregation, value, value));
  });
  MirroredStrategy strategy({device(0), device(1)});
  EXPECT_ERROR(InvalidArgumentError, text, strategy.reduce(op, value));
  EXPECT_ERROR(InvalidArgumentError, text, strategy.reduce(op, value[0]));
  EXPECT_ERROR(InvalidArgumentError, text, strategy.extended().reduce_to(op, mirrored, value));
  EXPECT_ERROR(InvalidArgumentError, text, strategy.extended().batch_reduce_to(op, {}));
  EXPECT_ERROR(InvalidArgumentError, text,
               strategy.run([&](ReplicaContext& ctx) { ctx.all_reduce(op, Tensor::scalar(1.f)); }));
  const Group group = Group::in_process(1)[0];
  std::vector<float> data{1, 2}, out(2);
  EXPECT_ERROR(InvalidArgumentError, text, group.all_reduce(data, op));
  EXPECT_ERROR(InvalidArgumentError, text, group.all_reduce(data, out, op));
  EXPECT_ERROR(InvalidArgumentError, text, group.all_reduce(std::vector{value[0], value[1]}, op));
  EXPECT_ERROR(InvalidArgumentError, text, group.all_reduce_async(data, op).wait());
  EXPECT_ERROR(InvalidArgumentError, text, group.reduce(data, op, 0));
  EXPECT_ERROR(InvalidArgumentError, text, group.reduce_scatter(data, out, op));
  EXPECT_EQ(data, (std::vector<float>{1, 2}));
  EXPECT_ERROR(InvalidArgumentError, text, name(op));
  EXPECT_ERROR(InvalidArgumentError, text, result_dtype(op, DType::float32));
  EXPECT_ERROR(InvalidArgumentError, "VariableAggregation", name(aggregation));
  EXPECT_ERROR(InvalidArgumentError, "VariableAggregation", reduce_op(aggregation));
  EXPECT_ERROR(InvalidArgumentError, "-1 is not a ReduceOp", name(ReduceOp(-1)));
}

TEST_F(BadInput, EnumsOutOfRangeAreRefusedByTensors) {
  const auto dtype = DType(kWrong);
  constexpr const char* text = "99 is not a DType";
  float x = 1;
  EXPECT_ERROR(InvalidArgumentError, text, Tensor::empty({2}, dtype));
  EXPECT_ERROR(InvalidArgumentError, text, Tensor::zeros({0}, dtype));
  EXPECT_ERROR(InvalidArgumentError, text, Tensor::full({2}, 1, dtype));
  EXPECT_ERROR(InvalidArgumentError, text, Tensor::borrow(&x, {1}, dtype));
  EXPECT_ERROR(InvalidArgumentError, text, Tensor::scalar(1.f).to(dtype));
  EXPECT_ERROR(InvalidArgumentError, text, Group::in_process(1)[0].empty({2}, dtype));
  EXPECT_ERROR(InvalidArgumentError, text, size_of(dtype));
  EXPECT_ERROR(InvalidArgumentError, text, name(dtype));
  EXPECT_ERROR(InvalidArgumentError, text, result_dtype(ReduceOp::SUM, dtype));
  EXPECT_FALSE(is_floating(dtype) || is_integer(dtype));
}

TEST_F(BadInput, EnumsOutOfRangeAreRefusedByOptions) {
  const CommunicationOptions options{.implementation = CommunicationImplementation(kWrong)};
  constexpr const char* text = "99 is not a CommunicationImplementation";
  const PerReplica<Tensor> value{Tensor::scalar(1.f, device(0)), Tensor::scalar(2.f, device(1))};
  for_each_algorithm([&](CrossDeviceOps& ops) {
    EXPECT_ERROR(InvalidArgumentError, text, ops.reduce(ReduceOp::SUM, value, value, options));
    EXPECT_ERROR(InvalidArgumentError, text, ops.batch_reduce(ReduceOp::SUM, {}, options));
  });
  const Group group = Group::in_process(1)[0];
  std::vector<float> data{1, 2};
  EXPECT_ERROR(InvalidArgumentError, text, group.all_reduce(data, ReduceOp::SUM, options));
  EXPECT_ERROR(InvalidArgumentError, text, group.barrier(options));
  EXPECT_ERROR(InvalidArgumentError, text, group.all_gather_uneven(data, options));
  EXPECT_ERROR(InvalidArgumentError, text, group.all_reduce_async(data, ReduceOp::SUM, options));
  EXPECT_ERROR(InvalidArgumentError, text, CollectiveAllReduceStrategy({.communication = options}));
  MirroredStrategy strategy({device(0), device(1)});
  EXPECT_ERROR(InvalidArgumentError, text,
               strategy.reduce(ReduceOp::SUM, value, {.communication = options}));
  EXPECT_ERROR(InvalidArgumentError, text, strategy.run([&](ReplicaContext& ctx) {
    ctx.all_gather(Tensor::of({1.f}), 0, options);
  }));

  const auto scope = strategy.scope();
  for (const VariableOptions& wrong :
       {VariableOptions{.aggregation = VariableAggregation(kWrong)},
        VariableOptions{.synchronization = VariableSynchronization(kWrong)}}) {
    EXPECT_ERROR(InvalidArgumentError, "99 is not a Variable",
                 Variable::create(Tensor::scalar(1.f), wrong));
    EXPECT_ERROR(InvalidArgumentError, "99 is not a Variable",
                 strategy.run([&] { Variable::create(Tensor::scalar(1.f), wrong); }));
  }
  EXPECT_ERROR(InvalidArgumentError, "99 is not a VariableSynchronization",
               name(VariableSynchronization(kWrong)));

  const Dataset data_set = Dataset::range(4).batch(2);
  const InputFn fn = [&](const InputContext&) { return data_set; };
  const InputOptions policy{.auto_shard_policy = AutoShardPolicy(kWrong)},
      mode{.experimental_replication_mode = InputReplicationMode(kWrong)};
  for (const InputOptions& wrong : {policy, mode}) {
    EXPECT_ERROR(InvalidArgumentError, "99 is not an",
                 strategy.experimental_distribute_dataset(data_set, wrong));
    EXPECT_ERROR(InvalidArgumentError, "99 is not an",
                 strategy.distribute_datasets_from_function(fn, wrong));
  }
  EXPECT_ERROR(InvalidArgumentError, "PER_WORKER",
               strategy.make_input_fn_iterator(fn, InputReplicationMode(kWrong)));
}

}  // namespace
}  // namespace tutti
