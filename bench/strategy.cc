// SPDX-License-Identifier: Apache-2.0
// What a strategy costs over what it is made of, in one table.
//
//   strategy [--rounds N] [--json FILE]
#include <tutti/tutti.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "digits.h"
#include "resnet50.h"
#include "side_by_side.h"

namespace tutti::bench {
namespace {

constexpr int kReplicas = 4;

// Starting and joining a thread per replica, against running an empty function on replicas that are
// there.
nlohmann::json empty_run(Strategy& strategy, int rounds) {
  const Timings timings = side_by_side(rounds, 500,
                                       {[&] { strategy.run([](ReplicaContext&) {}); },
                                        [] {
                                          std::vector<std::thread> threads;
                                          for (int i = 0; i < kReplicas; ++i)
                                            threads.emplace_back([] {});
                                          for (std::thread& thread : threads) thread.join();
                                        }});
  return {{"name", "run of an empty function, 4 replicas"},
          {"tutti_us", timings.median_of(0) * 1e6},
          {"other", "start and join 4 threads"},
          {"other_us", timings.median_of(1) * 1e6},
          {"ratio", timings.ratio(1, 0)}};
}

// all_reduce from inside the replicas, against the reduction alone.
nlohmann::json all_reduce(Strategy& strategy, int rounds) {
  const std::vector<Shape> shapes = resnet50_shapes();
  std::vector<std::vector<Tensor>> gradients(kReplicas);
  for (int r = 0; r < kReplicas; ++r)
    for (size_t t = 0; t < shapes.size(); ++t)
      gradients[size_t(r)].push_back(
          Tensor::full(shapes[t], double(r + 1), DType::float32, "/cpu:" + std::to_string(r)));
  std::vector<ValueDestinationPair> pairs;
  for (size_t t = 0; t < shapes.size(); ++t) {
    std::vector<Value> parts;
    for (int r = 0; r < kReplicas; ++r) parts.push_back(gradients[size_t(r)][t]);
    const PerReplica<Value> value(std::move(parts));
    pairs.emplace_back(value, value);
  }
  const auto inside = [&] {
    strategy.run([&](ReplicaContext& ctx) {
      const std::vector<Tensor> sums =
          ctx.all_reduce(ReduceOp::SUM, gradients[size_t(ctx.local_replica_id())]);
      if (sums[0].span<const float>()[0] != 10) throw InternalError("wrong sum");
    });
  };
  const Timings timings = side_by_side(
      rounds, 1, {inside, [&] {
                    (void)strategy.extended().cross_device_ops().batch_reduce(ReduceOp::SUM, pairs);
                  }});
  return {{"name", "all_reduce of ResNet-50 in 4 replicas"},
          {"tutti_us", timings.median_of(0) * 1e6},
          {"other", "batch_reduce alone"},
          {"other_us", timings.median_of(1) * 1e6},
          {"ratio", timings.ratio(1, 0)}};
}

// Microseconds per example that the input takes, against those that training takes. Each round is a
// fresh run: 50 epochs are only read, then 5 are trained on, about as much work.
nlohmann::json input(Strategy& strategy, int rounds) {
  digits::Options options{
      .devices = kReplicas, .epochs = 5, .batch = 32, .seed = 1, .save = {}, .quiet = true};
  const digits::Data data = digits::load().first;
  std::vector<double> feeding, training;
  for (int round = 0; round < rounds; ++round) {
    int64_t examples = 0;
    options.epochs = 50;
    const auto start = std::chrono::steady_clock::now();
    for (const DistributedElement& element : digits::batches(strategy, data, options))
      for (const Tensor& part : element[1]) examples += part.num_elements();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (examples != options.epochs * data.labels.num_elements())
      throw InternalError("examples are missing");
    options.epochs = 5;
    feeding.push_back(took.count() / double(examples));
    training.push_back(1 / digits::train(strategy, options).examples_per_second);
  }
  const Timings timings{{feeding, training}};
  return {{"name", "an example of the digits' input"},
          {"tutti_us", timings.median_of(0) * 1e6},
          {"other", "training on it"},
          {"other_us", timings.median_of(1) * 1e6},
          {"ratio", timings.ratio(1, 0)}};
}

int main(int argc, char** argv) {
  int rounds = 15;
  std::string json_file;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (argv[i] == std::string("--rounds")) rounds = std::max(1, std::atoi(argv[i + 1]));
    if (argv[i] == std::string("--json")) json_file = argv[i + 1];
  }
  set_logical_devices("CPU", kReplicas);
  MirroredStrategy strategy;
  nlohmann::json results = nlohmann::json::array();
  for (const auto& measure : {empty_run, all_reduce, input}) {
    results.push_back(measure(strategy, rounds));
    std::cerr << "measured " << results.back()["name"].get<std::string>() << std::endl;
  }
  std::printf("%-40s %12s   %-26s %12s %8s\n", "medians", "tutti", "against", "", "ratio");
  for (const auto& r : results)
    std::printf("%-40s %9.2f us   %-26s %9.2f us %8.2f\n", r["name"].get<std::string>().c_str(),
                r["tutti_us"].get<double>(), r["other"].get<std::string>().c_str(),
                r["other_us"].get<double>(), r["ratio"].get<double>());
  if (json_file.empty()) return 0;
  std::ofstream file(json_file);
  file << results.dump(2) << "\n";
  return file ? 0 : 1;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) { return tutti::bench::main(argc, argv); }
