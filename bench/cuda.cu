// SPDX-License-Identifier: Apache-2.0
// Reductions across logical GPUs of one physical GPU, beside what the GPU can do: one table.
//
//   cuda [--rounds N] [--json FILE]
//
// copy: cudaMemcpyAsync of 256 MiB within the GPU. Bandwidths count every byte read and every byte
// written, so that 1.00 is the speed of a copy. Tutti's include the call, the checks and the
// result's memory. enqueue: the time that the calling thread spends, beside that of launching an
// empty kernel.
#include <cuda_runtime.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "resnet50.h"

namespace tutti::bench {
namespace {

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "cuda: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

__global__ void empty_kernel() {}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(int rounds) : rounds_(rounds) {
    stream_ = static_cast<cudaStream_t>(cuda_stream());
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
    check(cudaMalloc(&from_, kBytes));
    check(cudaMalloc(&to_, kBytes));
  }

  // Bytes that `enqueue` reads and writes, as a share of the bandwidth of a copy.
  void bandwidth(const std::string& name, double bytes, const std::function<void()>& enqueue) {
    const auto copy = [&] {
      check(cudaMemcpyAsync(to_, from_, kBytes, cudaMemcpyDeviceToDevice, stream_));
    };
    std::vector<double> ours, copies, ratios;
    for (int round = -1; round < rounds_; ++round) {
      const double copied = 2.0 * kBytes / seconds(copy);
      const double reduced = bytes / seconds(enqueue);
      if (round < 0) continue;  // warms up
      copies.push_back(copied / 1e9);
      ours.push_back(reduced / 1e9);
      ratios.push_back(reduced / copied);
    }
    add(name, "GB/s", ours, copies, ratios);
  }

  // How long the calling thread is busy with `enqueue`, in empty launches.
  void enqueueing(const std::string& name, const std::function<void()>& enqueue) {
    const auto busy = [&](const std::function<void()>& f) {
      constexpr int kCalls = 200;
      check(cudaStreamSynchronize(stream_));
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) f();
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin;
      check(cudaStreamSynchronize(stream_));
      return time.count() / kCalls;
    };
    std::vector<double> ours, empty, ratios;
    for (int round = -1; round < 5 * rounds_; ++round) {
      const double launch = busy([&] { empty_kernel<<<1, 1, 0, stream_>>>(); });
      const double reduce = busy(enqueue);
      if (round < 0) continue;
      empty.push_back(launch);
      ours.push_back(reduce);
      ratios.push_back(reduce / launch);
    }
    add(name, "us", ours, empty, ratios);
  }

  void print(const char* json_file) const {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    int driver = 0;
    check(cudaDriverGetVersion(&driver));
    std::printf("%s, CUDA driver %d.%d; medians of %d rounds; ratio: median (lowest-highest)\n",
                properties.name, driver / 1000, driver % 1000 / 10, rounds_);
    std::printf("%-44s %10s %10s %6s  %s\n", "", "Tutti", "reference", "", "ratio");
    for (const Row& row : rows_)
      std::printf("%-44s %10.2f %10.2f %6s  %.3f (%.3f-%.3f)\n", row.name.c_str(), row.ours,
                  row.reference, row.unit, row.ratio, row.low, row.high);
    if (!json_file) return;
    nlohmann::json out;
    for (const Row& row : rows_)
      out.push_back({{"name", row.name},
                     {"unit", row.unit},
                     {"tutti", row.ours},
                     {"reference", row.reference},
                     {"ratio", row.ratio}});
    std::ofstream(json_file) << out.dump(2) << "\n";
  }

 private:
  static constexpr size_t kBytes = 256 << 20;
  struct Row {
    std::string name;
    const char* unit;
    double ours, reference, ratio, low, high;
  };

  double seconds(const std::function<void()>& enqueue) {
    constexpr int kCalls = 10;
    check(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < kCalls; ++i) enqueue();
    check(cudaEventRecord(end_, stream_));
    check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds / 1e3 / kCalls;
  }

  void add(const std::string& name, const char* unit, const std::vector<double>& ours,
           const std::vector<double>& reference, const std::vector<double>& ratios) {
    const auto [low, high] = std::ranges::minmax(ratios);
    rows_.push_back({name, unit, median(ours), median(reference), median(ratios), low, high});
    std::fprintf(stderr, "%s: %.3f\n", name.c_str(), rows_.back().ratio);
  }

  const int rounds_;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  void *from_, *to_;
  std::vector<Row> rows_;
};

// Replica r of tensor t: small integers, so that any sum is exact.
PerReplica<Value> values(int64_t count, int replicas, int t, DType dtype) {
  std::vector<Value> parts;
  for (int r = 0; r < replicas; ++r)
    parts.push_back(Tensor::full({count}, (t + r) % 7 + 1, dtype, "/gpu:" + std::to_string(r)));
  return PerReplica<Value>(std::move(parts));
}

void verify(const std::vector<ValueDestinationPair>& batch,
            const std::vector<Mirrored<Value>>& results) {
  for (size_t t = 0; t < batch.size(); ++t) {
    float expected = 0;
    for (const Value& v : batch[t].first) {
      const std::vector<float> x = v.tensor().to(DType::float32).to_vector<float>();
      expected += x.front();
    }
    for (const Value& v : results[t])
      for (const float x : v.tensor().to(DType::float32).to_vector<float>())
        if (x != expected) {
          std::fprintf(stderr, "cuda: tensor %zu is %g, expected %g\n", t, x, expected);
          std::exit(1);
        }
  }
}

void run(int rounds, const char* json_file) {
  set_logical_devices("GPU", 8);
  Bench bench(rounds);
  HierarchicalCopyAllReduce ops;
  const auto reduce = [&](const std::string& name, const std::vector<ValueDestinationPair>& batch) {
    verify(batch, ops.batch_reduce(ReduceOp::SUM, batch));
    double bytes = 0;
    for (const auto& [value, destinations] : batch)
      for (const Value& v : value) bytes += 2.0 * double(v.tensor().num_bytes());
    bench.bandwidth(name, bytes, [&] { ops.batch_reduce(ReduceOp::SUM, batch); });
  };
  constexpr int64_t kFloats = (256 << 20) / 4;
  for (const int k : {2, 4, 8}) {
    const PerReplica<Value> value = values(kFloats, k, 0, DType::float32);
    reduce("float32, 256 MiB x " + std::to_string(k), {{value, value}});
  }
  const PerReplica<Value> halves = values(2 * kFloats, 8, 0, DType::bfloat16);
  reduce("bfloat16, 256 MiB x 8", {{halves, halves}});
  for (const int k : {2, 8}) {
    std::vector<ValueDestinationPair> list;
    for (const Shape& shape : resnet50_shapes()) {
      const PerReplica<Value> value =
          values(shape.num_elements(), k, int(list.size()), DType::float32);
      list.emplace_back(value, value);
    }
    reduce("ResNet-50, 161 tensors x " + std::to_string(k), list);
  }
  const PerReplica<Value> small = values(4, 2, 0, DType::float32);
  bench.enqueueing("4 floats x 2, batch_reduce enqueued", [&] {
    ops.batch_reduce(ReduceOp::SUM, {{small, small}});
  });
  const std::vector<ValueDestinationPair> pair{{small, small}};
  bench.enqueueing("the same, with the list made before",
                   [&] { ops.batch_reduce(ReduceOp::SUM, pair); });
  bench.print(json_file);
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  int rounds = 9;
  const char* json_file = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--rounds")) rounds = std::atoi(argv[i + 1]);
    if (!std::strcmp(argv[i], "--json")) json_file = argv[i + 1];
  }
  try {
    tutti::bench::run(rounds, json_file);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "cuda: %s\n", e.what());
    return 1;
  }
}
