// SPDX-License-Identifier: Apache-2.0
// Streams: what is enqueued where, and what comes after what.
#include <tutti/cuda.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "cuda/gpus.h"
#include "support/expect.h"

namespace tutti {
namespace {

using testing::gpu;
using testing::multiply;

struct Streams : testing::LogicalGpus<4> {
  static void* new_stream(std::string_view device = "/gpu:0") {
    return testing::runtime().make_stream(cuda_device(device));
  }
  static Tensor doubles(double value, int64_t size = 1000, std::string_view device = "/gpu:0") {
    return Tensor::full({size}, value, DType::float64, device);
  }
  static void expect_all(const Tensor& tensor, double want) {
    const std::vector<double> values = tensor.to_vector<double>();
    EXPECT_EQ(values, std::vector<double>(values.size(), want));
  }
};

TEST_F(Streams, AScopeReplacesTheStreamOfThisThreadAndGpu) {
  void* const own = cuda_stream();
  EXPECT_EQ(cuda_stream("/gpu:0"), own);
  void *const outer = new_stream(), *const inner = new_stream();
  {
    const StreamScope scope(outer);
    EXPECT_EQ(cuda_stream(), outer);
    {
      const StreamScope nested(inner, "/gpu:0");
      EXPECT_EQ(cuda_stream(), inner);
      std::thread([&] { EXPECT_EQ(cuda_stream(), own); }).join();
    }
    EXPECT_EQ(cuda_stream(), outer);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_EQ(cuda_stream(gpu(i)) == outer, cuda_device(gpu(i)) == cuda_device());
  }
  EXPECT_EQ(cuda_stream(), own);
}

TEST_F(Streams, BelongToGpus) {
  EXPECT_ERROR(InvalidArgumentError, "cuda_stream: /job:localhost", cuda_stream("/cpu:0"));
  EXPECT_ERROR(InvalidArgumentError, "is not a GPU", cuda_device("/cpu:0"));
  EXPECT_ERROR(InvalidArgumentError, "is not a GPU", synchronize("/cpu:0"));
  EXPECT_ERROR(InvalidArgumentError, "GPU:99", StreamScope(nullptr, "/gpu:99"));
}

TEST_F(Streams, WorkInAScopeComesAfterWhatWasBeforeAndBeforeWhatComesAfter) {
  void *const outer = new_stream(), *const inner = new_stream();
  const Tensor x = doubles(1);
  multiply(x, 2);
  {
    const StreamScope scope(outer);
    multiply(x, 3);
    {
      const StreamScope nested(inner);
      multiply(x, 5);
    }
    multiply(x, 7);
    {
      const StreamScope nested(inner);
      expect_all(x, 2 * 3 * 5 * 7);
      multiply(x, 11);
    }
    const StreamScope to_the_null_stream(nullptr);
    multiply(x, 13);
  }
  expect_all(x, 2 * 3 * 5 * 7 * 11 * 13);
}

TEST_F(Streams, MemoryMovesBetweenStreamsInOrder) {
  void *const one = new_stream(), *const other = new_stream();
  const Tensor kept = doubles(1);
  for (int i = 0; i < 20; ++i) {
    {
      const StreamScope scope(one);
      const Tensor x = doubles(3);
      multiply(x, 2);
      (void)kept.clone();  // gives back a block that this stream has yet to write
      multiply(kept, 2);
    }
    const Tensor y = doubles(5);  // in what was given back
    {
      const StreamScope scope(other);
      const Tensor z = doubles(7);
      multiply(z, 2);
      multiply(y, 2);
      multiply(kept, 0.5);
      expect_all(z, 14);
    }
    expect_all(y, 10);
  }
  expect_all(kept, 1);
}

// Small results of a long list lie in one block, which goes back when the last of them is dropped.
TEST_F(Streams, MemoryThatResultsShareWaitsForAllOfThem) {
  std::vector<ValueDestinationPair> list;
  for (int i = 0; i < 40; ++i) {
    const PerReplica<Value> value{Value(doubles(1)), Value(doubles(2))};
    list.emplace_back(value, Destinations("/gpu:0"));
  }
  std::vector<Mirrored<Value>> results = ReductionToOneDevice().batch_reduce(ReduceOp::SUM, list);
  Tensor mine = results[30][0].tensor();
  results[30] = results[0];
  void* const stream = new_stream();
  std::promise<void> dropped, used_again;
  std::thread reader([&] {
    const StreamScope scope(stream);
    const Tensor copy = mine.clone();  // enqueued
    mine = {};
    dropped.set_value();
    used_again.get_future().wait();
    expect_all(copy, 3);
  });
  dropped.get_future().wait();
  results.clear();
  std::vector<Tensor> others;
  for (int i = 0; i < 8; ++i) others.push_back(doubles(7, 32768));  // as large as such a block
  synchronize();
  used_again.set_value();
  reader.join();
}

TEST_F(Streams, SynchronizeWaitsForAll) {
  const Tensor x = doubles(1);
  multiply(x, 2);
  synchronize();
  EXPECT_TRUE(testing::runtime().finished(cuda_device(), cuda_stream()));
  void* const stream = new_stream();
  const StreamScope scope(stream);
  multiply(x, 2);
  synchronize("/gpu:0");
  EXPECT_TRUE(testing::runtime().finished(cuda_device(), stream));
}

TEST_F(Streams, ReductionsAndCopiesFollowThem) {
  void* const stream = new_stream();
  const Tensor a = doubles(1, 300000), b = doubles(2, 300000);
  const StreamScope scope(stream);
  multiply(a, 10);
  const Tensor sum = ReductionToOneDevice().reduce(ReduceOp::SUM, PerReplica<Tensor>{a, b}, a)[0];
  multiply(a, 0);
  multiply(sum, 2);
  expect_all(sum, 24);
  const Tensor here = sum.clone_to("/cpu:0");
  multiply(sum, 0);
  expect_all(here, 24);
}

// Threads that read ahead are on streams of Tutti's.
TEST_F(Streams, FollowTheThreadsThatReadAhead) {
  void* const stream = new_stream();
  const StreamScope scope(stream);
  const Tensor rows = doubles(1, 64);
  multiply(rows, 3);
  const auto twice = [](const std::vector<Tensor>& element) {
    expect_all(element[0], 3);
    const Tensor x = element[0].clone();
    multiply(x, 2);
    return std::vector<Tensor>{x};
  };
  for (const int threads : {1, 2}) {
    DatasetIterator ahead = Dataset::from_tensor_slices({rows.reshape({16, 4})})
                                .map(twice, threads)
                                .prefetch(2)
                                .make_iterator();
    int count = 0;
    while (const auto element = ahead.next()) {
      multiply((*element)[0], 5);
      expect_all((*element)[0], 30);
      ++count;
    }
    EXPECT_EQ(count, 16);
  }
}

TEST_F(Streams, ABatchIsFreedWhenItHasBeenRead) {
  MirroredStrategy strategy({"/gpu:0"});
  InputIterator input = strategy.make_dataset_iterator(
      Dataset::from_tensors({Tensor::scalar<double>(1, "/cpu:0")}).repeat().batch(1000));
  input.initialize();
  std::promise<void> in_scope, may_go;
  std::thread other([&] {
    void* const stream = new_stream();
    const StreamScope scope(stream);
    in_scope.set_value();
    may_go.get_future().wait();
    expect_all(input.get_next()[0][0], 1);
  });
  in_scope.get_future().wait();
  Tensor copy;
  {
    const Tensor x = input.get_next()[0][0];
    multiply(x, 2);
    copy = x.clone();
  }
  may_go.set_value();
  other.join();
  expect_all(copy, 2);
}

// Each replica on a stream of its own.
class StreamsOfReplicas : public Streams {
 protected:
  StreamsOfReplicas() : strategy(testing::devices("GPU", 4)) {
    for (size_t i = 0; i < 4; ++i) streams.push_back(new_stream(gpu(i)));
  }
  template <class F>
  auto on_streams(const F& fn) {
    return strategy.run([&](ReplicaContext& ctx) {
      const StreamScope scope(streams[size_t(ctx.local_replica_id())], ctx.device());
      return fn(ctx);
    });
  }
  static double id(const ReplicaContext& ctx) { return ctx.replica_id_in_sync_group() + 1; }

  MirroredStrategy strategy;
  std::vector<void*> streams;
};

TEST_F(StreamsOfReplicas, MeetInOrder) {
  for (int i = 0; i < 10; ++i) {
    const PerReplica<Tensor> out = on_streams([&](ReplicaContext& ctx) {
      const Tensor x = doubles(1, 1000, ctx.device());
      multiply(x, id(ctx));
      const Tensor sum = ctx.all_reduce(ReduceOp::SUM, x);  // 10
      multiply(x, 0);
      multiply(sum, id(ctx));
      const Tensor all = ctx.all_gather(sum.reshape({1, 1000}), 0);
      multiply(sum, 0);
      const Tensor mean = ctx.merge_call(
          [](Strategy& s, const PerReplica<Tensor>& each) {
            return s.extended().reduce_to(ReduceOp::MEAN, each, each);
          },
          all);
      multiply(mean, 2);
      return mean;
    });
    for (size_t r = 0; r < 4; ++r) {
      const std::vector<double> values = out[r].to_vector<double>();
      ASSERT_EQ(values.size(), 4000u);
      for (size_t j = 0; j < 4000; ++j) ASSERT_EQ(values[j], 20 * double(j / 1000 + 1)) << j;
    }
  }
}

TEST_F(StreamsOfReplicas, SomeWithSomeWithout) {
  for (int i = 0; i < 10; ++i) {
    const PerReplica<Tensor> out = strategy.run([&](ReplicaContext& ctx) {
      std::optional<StreamScope> scope;
      if ((ctx.local_replica_id() + i) % 2)
        scope.emplace(streams[size_t(ctx.local_replica_id())], ctx.device());
      const Tensor x = doubles(1, 1000, ctx.device());
      multiply(x, id(ctx));
      const Tensor sum = ctx.all_reduce(ReduceOp::SUM, x);
      multiply(x, 0);
      multiply(sum, 3);
      return ctx.all_reduce(ReduceOp::MAX, sum);
    });
    for (size_t r = 0; r < 4; ++r) expect_all(out[r], 30);
  }
}

TEST_F(StreamsOfReplicas, SeeTheCallersWorkAndTheCallerTheirs) {
  void* const mine = new_stream();
  const StreamScope scope(mine);
  const Tensor x = doubles(1);
  multiply(x, 2);
  const PerReplica<Tensor> out = on_streams([&](ReplicaContext& ctx) {
    const Tensor y = x.clone_to(ctx.device());
    multiply(y, id(ctx));
    return y;
  });
  for (size_t r = 0; r < 4; ++r) {
    multiply(out[r], 3);
    expect_all(out[r], 6 * double(r + 1));
  }
  expect_all(strategy.reduce(ReduceOp::SUM, out), 60);
}

TEST_F(StreamsOfReplicas, UpdateVariablesInOrder) {
  const auto in_scope = strategy.scope();
  const Variable v = Variable::create(Tensor::full({100}, 1, DType::float64),
                                      {.name = "v", .aggregation = VariableAggregation::SUM});
  for (int i = 0; i < 10; ++i)
    on_streams([&](ReplicaContext& ctx) {
      const Tensor x = doubles(1, 100, ctx.device());
      multiply(x, id(ctx));
      v.assign_add(x);
      multiply(x, 0);
      const Tensor now = v.read_value();
      multiply(now, 2);
      expect_all(now, 2 + 20 * (i + 1));
    });
  for (size_t r = 0; r < 4; ++r) expect_all(v.component(r), 101);
}

TEST_F(StreamsOfReplicas, ReadTheirInputInOrder) {
  std::vector<double> numbers(64);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = double(i);
  const Dataset dataset =
      Dataset::from_tensor_slices({Tensor::of(std::span<const double>(numbers), "/cpu:0")})
          .repeat()
          .batch(8);
  InputIterator input = strategy.make_dataset_iterator(dataset);
  input.initialize();
  void* const mine = new_stream();
  for (int step = 0; step < 20; ++step) {
    std::optional<StreamScope> scope;
    if (step % 3 == 1) scope.emplace(mine);
    const DistributedElement element = input.get_next();
    const PerReplica<Tensor> out = strategy.run(
        [&](ReplicaContext& ctx, const Tensor& x) {
          const StreamScope own(streams[size_t(ctx.local_replica_id())], ctx.device());
          multiply(x, 2);
          return ctx.all_reduce(ReduceOp::SUM, x);
        },
        element[0]);
    const double first = step * 8 % 64;  // 2 * (x0 + x2 + x4 + x6)
    EXPECT_EQ(out[3].to_vector<double>(),
              (std::vector<double>{2 * (4 * first + 12), 2 * (4 * first + 16)}));
  }
}

TEST_F(StreamsOfReplicas, GoOnAfterAReplicaHasFailed) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_ERROR(std::domain_error, "unhappy", on_streams([&](ReplicaContext& ctx) {
                   const Tensor x = doubles(1, 1000, ctx.device());
                   multiply(x, 2);
                   if (ctx.local_replica_id() == i) throw std::domain_error("unhappy");
                   return ctx.all_reduce(ReduceOp::SUM, x);
                 }));
    const PerReplica<Tensor> out = on_streams([&](ReplicaContext& ctx) {
      return ctx.all_reduce(ReduceOp::SUM, doubles(id(ctx), 1000, ctx.device()));
    });
    for (size_t r = 0; r < 4; ++r) expect_all(out[r], 10);
  }
}

}  // namespace
}  // namespace tutti
