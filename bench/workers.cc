// SPDX-License-Identifier: Apache-2.0
// What workers cost a training program; to be started by bench/scaling.
//
//   workers train SECONDS     a network whose step takes 10 ms or more: examples per second
//   workers sparse ROUNDS     1 % of a table of 1 M x 64, sparse and dense: seconds of each
#include <sched.h>
#include <tutti/eigen.h>
#include <tutti/tutti.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

using namespace tutti;

namespace {

using Clock = std::chrono::steady_clock;
using Matrix = EigenMatrix<float>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One core for each worker, if there are as many.
void pin(int worker) {
  cpu_set_t all, mine;
  sched_getaffinity(0, sizeof(all), &all);
  int skip = worker % CPU_COUNT(&all);
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all) && skip-- == 0) {
      CPU_ZERO(&mine);
      CPU_SET(core, &mine);
      sched_setaffinity(0, sizeof(mine), &mine);
    }
}

Tensor random_tensor(int64_t rows, int64_t columns, unsigned seed) {
  std::mt19937 random{seed};
  const Tensor t = Tensor::empty({rows, columns}, DType::float32);
  for (float& x : t.span<float>())
    x = (float(random()) / float(random.max()) - 0.5f) / std::sqrt(float(rows));
  return t;
}

// Three layers of a million weights and more; the work of a step is the same on every worker.
int train(Strategy& strategy, double seconds) {
  constexpr int64_t kBatch = 64, kIn = 512, kHidden = 1024;
  const int worker = strategy.extended().replica_ids()[0];
  const auto scope = strategy.scope();
  std::vector<Variable> layers;
  for (const auto& [rows, columns] : {std::pair(kIn, kHidden), {kHidden, kHidden}, {kHidden, kIn}})
    layers.push_back(Variable::create(random_tensor(rows, columns, unsigned(layers.size()))));
  const Tensor input = random_tensor(kBatch, kIn, 100 + unsigned(worker));

  const auto step = [&](ReplicaContext& ctx) {
    const auto w = [&](size_t i) { return as_matrix<float>(layers[i].component(0)); };
    const auto x = as_matrix<const float>(input);
    const Matrix h1 = (x * w(0)).cwiseMax(0.f), h2 = (h1 * w(1)).cwiseMax(0.f);
    const Matrix error = h2 * w(2) - x;
    const Matrix d2 = (h2.array() > 0).select(error * w(2).transpose(), 0);
    const Matrix d1 = (h1.array() > 0).select(d2 * w(1).transpose(), 0);
    const std::vector<Tensor> sums = ctx.all_reduce(
        ReduceOp::MEAN, std::vector<Tensor>{as_tensor<float>(Matrix(x.transpose() * d1)),
                                            as_tensor<float>(Matrix(h1.transpose() * d2)),
                                            as_tensor<float>(Matrix(h2.transpose() * error))});
    for (size_t i = 0; i < layers.size(); ++i) w(i) -= 0.01f * as_matrix<const float>(sums[i]);
    return error.squaredNorm();
  };
  float first = 0, last = 0;
  for (int i = 0; i < 5; ++i) first = std::max(first, strategy.run(step)[0]);
  const auto start = Clock::now();
  int steps = 0;
  bool more = true;
  while (more) {
    for (int i = 0; i < 10; ++i, ++steps) last = strategy.run(step)[0];
    // All workers stop after the same step.
    more = strategy.reduce(ReduceOp::MIN, Tensor::scalar<int32_t>(seconds_since(start) < seconds))
               .item<int32_t>();
  }
  const double took = seconds_since(start);
  if (!(last < first)) throw InternalError("the network does not learn");
  if (worker == 0)
    std::printf("examples_per_second %.1f step_ms %.2f\n",
                double(steps * kBatch * strategy.num_replicas_in_sync()) / took,
                took / steps * 1e3);
  return 0;
}

int sparse(Strategy& strategy, int rounds) {
  constexpr int64_t kRows = 1'000'000, kWidth = 64, kNamed = kRows / 100;
  const int worker = strategy.extended().replica_ids()[0];
  std::mt19937 random{unsigned(worker)};
  const Tensor indices = Tensor::empty({kNamed}, DType::int64);
  for (int64_t& row : indices.span<int64_t>()) row = int64_t(random() % kRows);
  const IndexedSlices slices{Tensor::full({kNamed, kWidth}, worker + 1, DType::float32), indices,
                             Shape{kRows, kWidth}};
  const PerReplica<IndexedSlices> value{slices};
  const PerReplica<Tensor> dense{slices.to_dense()};
  StrategyExtended& extended = strategy.extended();
  {
    const Tensor a = extended.reduce_to(ReduceOp::SUM, value, value)[0].to_dense();
    const Tensor b = extended.reduce_to(ReduceOp::SUM, dense, dense)[0];
    if (std::memcmp(a.const_data(), b.const_data(), a.num_bytes()) != 0)
      throw InternalError("the sums differ");  // of small integers, which are exact
  }
  for (int round = 0; round < rounds; ++round) {
    double took[2];
    for (const int kind : {0, 1}) {
      (void)strategy.reduce(ReduceOp::SUM, Tensor::scalar<int32_t>(1));  // all start together
      const auto start = Clock::now();
      if (kind == 0)
        (void)extended.reduce_to(ReduceOp::SUM, value, value);
      else
        (void)extended.reduce_to(ReduceOp::SUM, dense, dense);
      took[kind] = seconds_since(start);
    }
    if (worker == 0) std::printf("sparse %.6f dense %.6f\n", took[0], took[1]);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s train SECONDS | sparse ROUNDS\n", argv[0]);
    return 2;
  }
  CollectiveAllReduceStrategy strategy;
  if (std::strcmp(argv[1], "sparse") == 0) return sparse(strategy, std::atoi(argv[2]));
  pin(strategy.extended().replica_ids()[0]);
  return train(strategy, std::atof(argv[2]));
}
