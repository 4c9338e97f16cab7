// SPDX-License-Identifier: Apache-2.0
// The checks that every algorithm inherits, the errors of the algorithms' own, and what goes to the
// log.
#include <gtest/gtest.h>
#include <tutti/compat.h>
#include <tutti/tutti.h>

#include <thread>

#include "base/context.h"
#include "base/log.h"
#include "support/cpus.h"
#include "support/expect.h"
#include "support/fake_gpu.h"
#include "support/program.h"

namespace tutti {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using F = std::vector<float>;

Tensor f32(std::initializer_list<float> values, const char* device) {
  return Tensor::of<float>(values, device);
}

// An algorithm that counts how often it is asked, and that answers wrongly if it is told to.
class Spy : public CrossDeviceOps {
 public:
  int calls = 0;
  std::optional<Mirrored<Value>> answer;
  std::optional<std::vector<Mirrored<Value>>> batch_answer;
  std::optional<Mirrored<Tensor>> gather_answer;

 protected:
  Mirrored<Value> reduce_implementation(ReduceOp op, const PerReplica<Value>& value,
                                        const Destinations& destinations,
                                        const CommunicationOptions& options) override {
    ++calls;
    return answer ? *answer : inner_.reduce(op, value, destinations, options);
  }
  std::vector<Mirrored<Value>> batch_reduce_implementation(
      ReduceOp op, const std::vector<ValueDestinationPair>& pairs,
      const CommunicationOptions& options) override {
    ++calls;
    return batch_answer ? *batch_answer
                        : CrossDeviceOps::batch_reduce_implementation(op, pairs, options);
  }
  Mirrored<Value> broadcast_implementation(const Value& tensor,
                                           const Destinations& destinations) override {
    ++calls;
    return answer ? *answer : CrossDeviceOps::broadcast_implementation(tensor, destinations);
  }
  Mirrored<Tensor> gather_implementation(const PerReplica<Tensor>& value,
                                         const Destinations& destinations, size_t axis,
                                         const CommunicationOptions& options) override {
    ++calls;
    return gather_answer
               ? *gather_answer
               : CrossDeviceOps::gather_implementation(value, destinations, axis, options);
  }

 private:
  ReductionToOneDevice inner_;
};

class FrontEnd : public testing::LogicalCpus<3> {
 protected:
  void TearDown() override { EXPECT_EQ(spy.calls, expected_calls); }

  // reduce and batch_reduce (as the second of two pairs) both refuse `value`.
  void expect_refused(const std::string& part, const PerReplica<Value>& value,
                      ReduceOp op = ReduceOp::SUM) {
    EXPECT_ERROR(InvalidArgumentError, "reduce: " + part, spy.reduce(op, value, "/cpu:0"));
    const PerReplica<Value> good = is_defined_for_all(op) ? flags : pair;
    const auto text = testing::error_of<InvalidArgumentError>([&] {
      spy.batch_reduce(op, {{good, "/cpu:0"}, {value, "/cpu:0"}});
    });
    EXPECT_THAT(text, HasSubstr("batch_reduce: " + part));
    EXPECT_THAT(text, HasSubstr("(in pair 1 of 2)"));
  }
  static bool is_defined_for_all(ReduceOp op) { return op == ReduceOp::MIN || op == ReduceOp::MAX; }

  Spy spy;
  int expected_calls = 0;
  const Tensor a = f32({1, 2, 3}, "/cpu:0");
  PerReplica<Value> pair{a, Tensor::of<float>({3, 4, 5}, "/cpu:0")};
  PerReplica<Value> flags{Tensor::of<bool>({true, false}, "/cpu:0")};
};

TEST_F(FrontEnd, RefusesAValueWithoutReplicas) {
  expect_refused("the value has no replicas", PerReplica<Value>{});
  EXPECT_ERROR(InvalidArgumentError, "reduce: the value has no replicas",
               spy.reduce(ReduceOp::MEAN, Mirrored<Tensor>{}, "/cpu:0"));
  EXPECT_ERROR(InvalidArgumentError, "gather: the value has no replicas",
               spy.gather(PerReplica<Tensor>{}, "/cpu:0", 0));
}

TEST_F(FrontEnd, RefusesEmptyTensors) {
  expect_refused("replica 1 holds an empty Tensor", {a, Tensor()});
  EXPECT_ERROR(InvalidArgumentError, "broadcast: replica 0 holds an empty Tensor",
               spy.broadcast(Tensor(), "/cpu:0"));
  EXPECT_ERROR(InvalidArgumentError, "gather: replica 1 holds an empty Tensor",
               spy.gather(PerReplica<Tensor>{a, Tensor()}, "/cpu:0", 0));
}

TEST_F(FrontEnd, RefusesComponentsThatDiffer) {
  expect_refused("replicas 0 and 2 hold dtypes float32 and float64",
                 {a, a, Tensor::of<double>({1, 2, 3}, "/cpu:0")});
  expect_refused("replicas 0 and 1 hold shapes [3] and [2]", {a, f32({1, 2}, "/cpu:0")});
  expect_refused("replicas 0 and 1 hold shapes [3] and [3, 1]", {a, a.reshape({3, 1})});
  EXPECT_ERROR(InvalidArgumentError, "gather: replicas 0 and 1 hold dtypes float32 and int32",
               spy.gather(PerReplica<Tensor>{a, Tensor::of<int32_t>({1}, "/cpu:0")}, "/cpu:0", 0));
}

TEST_F(FrontEnd, RefusesOperationsThatADtypeLacks) {
  for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::PROD})
    expect_refused("bool has no " + std::string(name(op)), flags, op);
}

TEST_F(FrontEnd, RefusesSlicesThatDoNotBelongTogether) {
  const Tensor rows = f32({1, 2}, "/cpu:0").reshape({1, 2});
  const Tensor index = Tensor::of<int64_t>({1}, "/cpu:0");
  const auto refused = [&](const std::string& part, const IndexedSlices& bad) {
    expect_refused("replica 1: " + part, {IndexedSlices{rows, index}, bad});
    EXPECT_ERROR(InvalidArgumentError, "broadcast: replica 0: " + part,
                 spy.broadcast(bad, "/cpu:0"));
  };
  refused("the IndexedSlices hold no values or no indices", {rows, Tensor()});
  refused("the IndexedSlices hold no values or no indices", {Tensor(), index});
  refused("the indices of IndexedSlices are float32", {rows, f32({1}, "/cpu:0")});
  refused("IndexedSlices with values of shape [1, 2] and indices of shape [2]",
          {rows, Tensor::of<int64_t>({1, 2}, "/cpu:0")});
  refused("IndexedSlices with values of shape [] and indices of shape [1]",
          {Tensor::scalar<float>(1, "/cpu:0"), index});
  refused("IndexedSlices with values of shape [1, 2] and indices of shape [1, 1]",
          {rows, index.reshape({1, 1})});
  refused("IndexedSlices with values on /job:localhost/replica:0/task:0/device:CPU:0 and indices",
          {rows, index.clone_to("/cpu:1")});
  refused("IndexedSlices with values of shape [1, 2] do not fit the dense_shape [5, 3]",
          {rows, index, Shape{5, 3}});
}

TEST_F(FrontEnd, RefusesDestinationsThatNameNoDevice) {
  const auto refused = [&](const std::string& part, auto&& destinations) {
    EXPECT_ERROR(InvalidArgumentError, part, spy.reduce(ReduceOp::SUM, pair, destinations()));
    EXPECT_ERROR(InvalidArgumentError, part,
                 spy.batch_reduce(ReduceOp::SUM, {{pair, destinations()}}));
    EXPECT_ERROR(InvalidArgumentError, part, spy.broadcast(a, destinations()));
    EXPECT_ERROR(InvalidArgumentError, part, spy.gather(pair, destinations(), 0));
  };
  refused("destinations: the device name is empty", [] { return Destinations(""); });
  refused("/warp:0", [] { return Destinations("/warp:0"); });
  refused("device:CPU:9", [] { return Destinations("/cpu:9"); });
  refused("/job:elsewhere", [] { return Destinations("/job:elsewhere/cpu:0"); });
  refused("destinations: the tensor holds nothing", [] { return Destinations(Tensor()); });
  refused("destinations: there is no device",
          [] { return Destinations(std::vector<std::string>{}); });
  refused("destinations: there is no device", [] { return Destinations(PerReplica<Tensor>{}); });
  refused("device:CPU:1 twice", [] { return Destinations({"/cpu:0", "cpu:1", "/device:CPU:1"}); });
}

TEST_F(FrontEnd, RefusesOptionsOutOfRange) {
  const auto refused = [&](const std::string& part, const CommunicationOptions& options) {
    EXPECT_ERROR(InvalidArgumentError, "reduce: " + part,
                 spy.reduce(ReduceOp::SUM, pair, "/cpu:0", options));
    EXPECT_ERROR(InvalidArgumentError, "reduce: " + part,
                 spy.reduce(ReduceOp::MEAN, Mirrored<Tensor>{a}, "/cpu:0", options));
    EXPECT_ERROR(InvalidArgumentError, "batch_reduce: " + part,
                 spy.batch_reduce(ReduceOp::SUM, {}, options));
    EXPECT_ERROR(InvalidArgumentError, "gather: " + part, spy.gather(pair, "/cpu:0", 0, options));
  };
  refused("bytes_per_pack is -1", {.bytes_per_pack = -1});
  refused("the timeout is -5 ns", {.timeout = std::chrono::nanoseconds(-5)});
}

TEST_F(FrontEnd, RefusesToGatherWhatDoesNotFit) {
  EXPECT_ERROR(
      UnimplementedError, "gather: IndexedSlices cannot be gathered",
      spy.gather(IndexedSlices{a.reshape({3, 1}), Tensor::of<int64_t>({0, 1, 2})}, "/cpu:0", 0));
  EXPECT_ERROR(InvalidArgumentError, "gather: scalars have no axis",
               spy.gather(Tensor::scalar<float>(1), "/cpu:0", 0));
  for (const int64_t axis : {1, -2})
    EXPECT_ERROR(InvalidArgumentError, std::to_string(axis), spy.gather(pair, "/cpu:0", axis));
  EXPECT_ERROR(InvalidArgumentError,
               "gather: replicas 0 and 1 hold shapes [3, 1] and [1, 3], which differ in more than "
               "axis 0",
               spy.gather(PerReplica<Tensor>{a.reshape({3, 1}), a.reshape({1, 3})}, "/cpu:0", 0));
  // C187
  EXPECT_ERROR(InvalidArgumentError, "gather: replicas 0 and 1 hold shapes [3] and [3, 1]",
               spy.gather(PerReplica<Tensor>{a, a.reshape({3, 1})}, "/cpu:0", 0));
}

TEST_F(FrontEnd, BelongsToTheCrossReplicaContext) {
  base::ReplicaThread replica(0);
  const auto refused = [&](const char* what, auto&& call) {
    const std::string text = testing::error_of<FailedPreconditionError>(call);
    EXPECT_THAT(text, HasSubstr(what));
    EXPECT_THAT(text, HasSubstr("ReplicaContext::all_reduce"));
    EXPECT_THAT(text, HasSubstr("merge_call"));
  };
  refused("reduce belongs", [&] { spy.reduce(ReduceOp::SUM, pair, "/cpu:0"); });
  refused("reduce belongs", [&] { spy.reduce(ReduceOp::MEAN, Mirrored<Tensor>{a}, "/cpu:0"); });
  refused("batch_reduce belongs", [&] { spy.batch_reduce(ReduceOp::SUM, {{pair, "/cpu:0"}}); });
  refused("broadcast belongs", [&] { spy.broadcast(a, "/cpu:0"); });
  refused("gather belongs", [&] { spy.gather(pair, "/cpu:0", 0); });
  // Another thread is in no replica function.
  std::thread([&] { spy.reduce(ReduceOp::SUM, pair, "/cpu:0"); }).join();
  expected_calls = 1;
}

TEST_F(FrontEnd, TakesAMirroredForItsOwnMean) {
  const Mirrored<Tensor> mirrored{f32({7}, "/cpu:0"), f32({7}, "/cpu:1")};
  for (const ReduceOp op : {ReduceOp::MEAN, ReduceOp::MIN, ReduceOp::MAX}) {
    const Mirrored<Tensor> result = spy.reduce(op, mirrored, {"/cpu:2", "/cpu:0"});
    EXPECT_THAT(result.devices(), ElementsAre(canonicalize("/cpu:2"), canonicalize("/cpu:0")));
    EXPECT_EQ(result[0].to_vector<float>(), F{7});
    EXPECT_NE(result[1].data(), mirrored[0].data());
  }
  expected_calls = 3;  // of broadcast_implementation
  for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::PROD})
    EXPECT_ERROR(InvalidArgumentError, "reduce: the value is Mirrored",
                 spy.reduce(op, mirrored, "/cpu:0"));
}

TEST_F(FrontEnd, CopiesASingleComponentThatIsThereAlready) {
  const Mirrored<Tensor> same = spy.reduce(ReduceOp::MEAN, a, a);
  EXPECT_EQ(same[0].to_vector<float>(), F({1, 2, 3}));
  EXPECT_NE(same[0].data(), a.data());
  EXPECT_EQ(same[0].shape(), a.shape());
  // An integer's mean is another dtype, so this one is no copy.
  const Mirrored<Tensor> mean = spy.reduce(ReduceOp::MEAN, Tensor::of<int32_t>({5}), "/cpu:0");
  EXPECT_EQ(mean[0].to_vector<double>(), std::vector<double>{5});
  expected_calls = 2;
}

TEST_F(FrontEnd, NeverSharesMemoryBetweenResultsAndInputs) {
  ReductionToOneDevice one("", [](const std::vector<Tensor>& parts) { return parts[0]; });
  HierarchicalCopyAllReduce hierarchical;
  const IndexedSlices slices{a.reshape({3, 1}), Tensor::of<int64_t>({0, 1, 2}, "/cpu:0")};
  for (CrossDeviceOps* ops : std::vector<CrossDeviceOps*>{&one, &hierarchical}) {
    std::vector<const void*> seen{a.data(), pair[1].tensor().data(), slices.indices.data()};
    const auto fresh = [&](const Mirrored<Tensor>& result) {
      for (const Tensor& t : result) {
        EXPECT_THAT(seen, ::testing::Not(::testing::Contains(t.data())));
        seen.push_back(t.data());
      }
    };
    std::vector<Mirrored<Tensor>> kept;  // so that no memory is used twice
    kept.push_back(ops->reduce(ReduceOp::SUM, pair, pair).map(&Value::tensor));
    kept.push_back(ops->reduce(ReduceOp::SUM, a, {"/cpu:0", "/cpu:1"}));
    kept.push_back(ops->reduce(ReduceOp::SUM, a, a));
    kept.push_back(ops->batch_reduce(ReduceOp::SUM, {{a, a}})[0].map(&Value::tensor));
    kept.push_back(ops->broadcast(a, {"/cpu:0", "/cpu:1"}));
    kept.push_back(ops->gather(a, a, 0));
    const auto sparse = ops->reduce(ReduceOp::SUM, slices, slices);
    kept.push_back(sparse.map(&IndexedSlices::values));
    kept.push_back(sparse.map(&IndexedSlices::indices));
    for (const Mirrored<Tensor>& result : kept) fresh(result);
  }
}

// A list with a device twice is an error, but a value may have two replicas on one device.
TEST_F(FrontEnd, KeepsTwoComponentsOnOneDevice) {
  const Mirrored<Value> sum = spy.reduce(ReduceOp::SUM, pair, pair);
  ASSERT_EQ(sum.size(), 2u);
  EXPECT_EQ(sum[0].device(), sum[1].device());
  EXPECT_EQ(sum[1].tensor().to_vector<float>(), F({4, 6, 8}));
  expected_calls = 1;
}

TEST_F(FrontEnd, AcceptsAnEmptyBatch) { EXPECT_TRUE(spy.batch_reduce(ReduceOp::SUM, {}).empty()); }

TEST_F(FrontEnd, FindsWrongAnswersOfAnAlgorithm) {
  const Tensor elsewhere = a.clone_to("/cpu:1");
  const auto wrong = [&](const std::string& part) {
    EXPECT_ERROR(InternalError, "reduce: " + part, spy.reduce(ReduceOp::SUM, pair, "/cpu:0"));
    EXPECT_ERROR(InternalError, "broadcast: " + part, spy.broadcast(a, "/cpu:0"));
    EXPECT_ERROR(InternalError, "gather: " + part, spy.gather(pair, "/cpu:0", 0));
    spy.batch_answer = {*spy.answer};
    EXPECT_ERROR(InternalError, "batch_reduce: " + part,
                 spy.batch_reduce(ReduceOp::SUM, {{pair, "/cpu:0"}}));
  };
  spy.answer = Mirrored<Value>{a, a};
  spy.gather_answer = Mirrored<Tensor>{a, a};
  wrong("the algorithm returned 2 components for 1 destinations");
  spy.answer = Mirrored<Value>{elsewhere};
  spy.gather_answer = Mirrored<Tensor>{elsewhere};
  wrong(
      "the algorithm returned component 0 on /job:localhost/replica:0/task:0/device:CPU:1 for "
      "destination /job:localhost/replica:0/task:0/device:CPU:0");
  EXPECT_ERROR(InternalError, "batch_reduce: the algorithm returned 1 results for 2 pairs",
               spy.batch_reduce(ReduceOp::SUM, {{pair, "/cpu:0"}, {pair, "/cpu:0"}}));
  expected_calls = 9;
}

TEST_F(FrontEnd, NamesTheOperationIfAnAlgorithmReturnsNothing) {
  spy.answer = Mirrored<Value>{Tensor()};
  spy.gather_answer = Mirrored<Tensor>{Tensor()};
  EXPECT_ERROR(InternalError, "reduce: ", spy.reduce(ReduceOp::SUM, pair, "/cpu:0"));
  EXPECT_ERROR(InternalError, "gather: ", spy.gather(pair, "/cpu:0", 0));
  expected_calls = 2;
}

TEST_F(FrontEnd, TakesAVariableAggregationForAReduceOp) {
  CrossTowerOps& tower = spy;
  EXPECT_EQ(tower.reduce(VariableAggregation::MEAN, pair, "/cpu:0")[0].tensor().to_vector<float>(),
            F({2, 3, 4}));
  EXPECT_EQ(tower.batch_reduce(VariableAggregation::SUM, {{pair, "/cpu:0"}})[0][0]
                .tensor()
                .to_vector<float>(),
            F({4, 6, 8}));
  expected_calls = 3;
  for (const auto none : {VariableAggregation::NONE, VariableAggregation::ONLY_FIRST_REPLICA}) {
    const std::string part = "VariableAggregation " + std::string(name(none)) + " has no ReduceOp";
    EXPECT_ERROR(InvalidArgumentError, part, tower.reduce(none, pair, "/cpu:0"));
    EXPECT_ERROR(InvalidArgumentError, part, tower.batch_reduce(none, {{pair, "/cpu:0"}}));
  }
}

TEST(AllReduceCrossDeviceOps, RefusesBadArguments) {
  EXPECT_ERROR(InvalidArgumentError, "\"carrier_pigeon\" is not an all-reduce algorithm",
               AllReduceCrossDeviceOps("carrier_pigeon"));
  EXPECT_ERROR(InvalidArgumentError, "\"\" is not an all-reduce algorithm",
               AllReduceCrossDeviceOps(""));
  EXPECT_ERROR(InvalidArgumentError, "num_packs is -1", AllReduceCrossDeviceOps("nccl", -1));
  EXPECT_ERROR(InvalidArgumentError, "num_packs is -2", HierarchicalCopyAllReduce(-2));
  EXPECT_ERROR(InvalidArgumentError, "num_packs is -3", NcclAllReduce(-3));
  EXPECT_ERROR(InvalidArgumentError, "agg_small_grads_max_bytes is -1",
               AllReduceCrossDeviceOps("nccl", 0, -1));
  EXPECT_ERROR(InvalidArgumentError, "agg_small_grads_max_group is -1",
               AllReduceCrossDeviceOps("nccl", 0, 0, -1));
}

TEST(ReductionToOneDevice, RefusesADeviceThatIsNotThere) {
  EXPECT_ERROR(InvalidArgumentError, "ReductionToOneDevice: reduce_to_device",
               ReductionToOneDevice("/warp:0"));
  EXPECT_ERROR(InvalidArgumentError, "CPU:9", ReductionToOneDevice("/cpu:9"));
}

// What is logged while it lives.
class CapturedLog {
 public:
  CapturedLog() {
    base::set_log_sink([this](base::LogLevel level, std::string_view text) {
      if (level == base::LogLevel::warning) warnings.emplace_back(text);
    });
  }
  ~CapturedLog() { base::set_log_sink(nullptr); }
  std::vector<std::string> warnings;
};

// C062
TEST(CollectiveHints, AreCommunicationOptionsAndDeprecated) {
  CapturedLog log;
  const CommunicationOptions options = CollectiveHints(50, 1);
  EXPECT_EQ(options,
            (CommunicationOptions{.bytes_per_pack = 50, .timeout = std::chrono::seconds(1)}));
  EXPECT_EQ(CommunicationOptions(CollectiveHints()), CommunicationOptions{});
  EXPECT_EQ(CommunicationOptions(CollectiveHints(0, 0)).timeout, std::chrono::nanoseconds(0));
  EXPECT_EQ(CommunicationOptions(CollectiveHints(0, 0.5)).timeout, std::chrono::milliseconds(500));
  EXPECT_THAT(log.warnings, ElementsAre(HasSubstr("CollectiveHints is deprecated")));
}

TEST(CollectiveHints, RefuseNumbersOutOfRange) {
  CapturedLog log;
  EXPECT_ERROR(InvalidArgumentError, "CollectiveHints: bytes_per_pack is -1", CollectiveHints(-1));
  for (const double timeout : {-1.0, 1e10, double(NAN), double(INFINITY)})
    EXPECT_ERROR(InvalidArgumentError, "CollectiveHints: timeout_seconds",
                 CollectiveHints(0, timeout));
}

class Nccl : public testing::LogicalCpus<2> {
 protected:
  static void reduce_on(const char* first, const char* second) {
    const PerReplica<Tensor> value{f32({1}, first), f32({2}, second)};
    NcclAllReduce nccl;
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(nccl.reduce(ReduceOp::SUM, value, value)[1].to_vector<float>(), F{3});
    AllReduceCrossDeviceOps("nccl", 0).batch_reduce(ReduceOp::SUM, {{value, value}});
  }
};

TEST_F(Nccl, FallsBackOnCpusAndSaysSoOnce) {
  CapturedLog log;
  reduce_on("/cpu:0", "/cpu:1");
  EXPECT_THAT(log.warnings, ElementsAre(HasSubstr("\"nccl\" reduces between distinct GPUs")));
}

TEST_F(Nccl, SaysNothingOnDistinctGpus) {
  testing::add_fake_gpus(2);
  CapturedLog log;
  reduce_on("/gpu:0", "/gpu:1");
  EXPECT_THAT(log.warnings, ElementsAre());
}

TEST_F(Nccl, FallsBackIfReplicasShareAGpu) {
  testing::add_fake_gpus(2);
  CapturedLog log;
  reduce_on("/gpu:0", "/gpu:0");
  EXPECT_THAT(log.warnings, ElementsAre(HasSubstr("\"nccl\" reduces between distinct GPUs")));
}

TEST_F(Nccl, IsRequiredIfTheSettingSaysSo) {
  const auto result = testing::run_program("TUTTI_BACKEND=nccl", "nccl");
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(result.output, HasSubstr("Unavailable: \"nccl\" reduces between distinct GPUs"));
  EXPECT_THAT(result.output, HasSubstr("device:CPU:0"));
  EXPECT_THAT(result.output, HasSubstr("TUTTI_BACKEND=nccl"));
  EXPECT_EQ(testing::run_program("TUTTI_BACKEND=", "nccl").status, 0);
}

TEST_F(Nccl, WithoutAGpuIsAnErrorIfTheSettingSaysSo) {
  for (const char* what : {"mirrored", "group"}) {
    const auto result = testing::run_program("CUDA_VISIBLE_DEVICES= TUTTI_BACKEND=nccl", what);
    EXPECT_EQ(result.status, 3) << what;
    EXPECT_THAT(result.output,
                HasSubstr("Unavailable: TUTTI_BACKEND=nccl: this process has no GPU: "));
    EXPECT_THAT(result.output, HasSubstr("; unset TUTTI_BACKEND to move data in host memory"));
    EXPECT_EQ(testing::run_program("TUTTI_BACKEND=", what).status, 0) << what;
  }
}

}  // namespace
}  // namespace tutti
