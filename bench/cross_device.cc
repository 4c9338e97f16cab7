// SPDX-License-Identifier: Apache-2.0
// Reductions across the devices of one process: Tutti, the naive way, and the limit, in one table.
//
//   cross_device [--rounds N] [--json FILE]
//
// naive: add the replicas into a temporary one after another, then copy it to each device; on all
// cores. limit: one pass that reads k buffers and writes k, on all cores, the faster of plain and
// non-temporal stores. Both work on memory that is there already; Tutti's time includes the
// call, the checks and the result's memory.
#include <tutti/tutti.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/thread_pool.h"
#include "resnet50.h"
#include "side_by_side.h"

namespace tutti::bench {
namespace {

using base::ThreadPool;

// Calls f(begin, end) for as many parts of [0, n) as there are threads, at 64-byte boundaries of
// floats.
template <class F>
void in_parts(size_t n, const F& f) {
  const auto threads = size_t(ThreadPool::shared().threads());
  const size_t part = (n / threads + 15) / 16 * 16;
  ThreadPool::shared().for_each(int64_t(threads), [&](int64_t i) {
    const size_t begin = std::min(n, size_t(i) * part);
    f(begin, size_t(i) + 1 == threads ? n : std::min(n, begin + part));
  });
}

#if defined(__x86_64__)
template <bool kStream>
__attribute__((target("avx2"))) void pass(const std::vector<float*>& from,
                                          const std::vector<float*>& to, size_t begin, size_t end) {
  size_t i = begin;
  for (; i + 8 <= end; i += 8) {
    __m256 sum = _mm256_load_ps(from[0] + i);
    for (size_t k = 1; k < from.size(); ++k) sum = _mm256_add_ps(sum, _mm256_load_ps(from[k] + i));
    for (float* out : to) kStream ? _mm256_stream_ps(out + i, sum) : _mm256_store_ps(out + i, sum);
  }
  _mm_sfence();
  for (; i < end; ++i) {
    float sum = from[0][i];
    for (size_t k = 1; k < from.size(); ++k) sum += from[k][i];
    for (float* out : to) out[i] = sum;
  }
}
#else
template <bool kStream>
void pass(const std::vector<float*>& from, const std::vector<float*>& to, size_t begin,
          size_t end) {
  for (size_t i = begin; i < end; ++i) {
    float sum = from[0][i];
    for (size_t k = 1; k < from.size(); ++k) sum += from[k][i];
    for (float* out : to) out[i] = sum;
  }
}
#endif

void naive(const std::vector<float*>& from, const std::vector<float*>& to, float* temporary,
           size_t n) {
  in_parts(n, [&](size_t begin, size_t end) {
    std::copy(from[0] + begin, from[0] + end, temporary + begin);
  });
  for (size_t k = 1; k < from.size(); ++k)
    in_parts(n, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) temporary[i] += from[k][i];
    });
  for (float* out : to)
    in_parts(n, [&](size_t begin, size_t end) {
      std::copy(temporary + begin, temporary + end, out + begin);
    });
}

struct Row {
  std::string name;
  std::vector<Shape> shapes;
  DType dtype;
  int devices;
  int rounds, calls;
};

// Exact data: small integers, so that every order of summation gives the same.
double value_at(size_t tensor, int device) {
  return double((tensor * 7 + size_t(device) * 3) % 11);
}

std::vector<ValueDestinationPair> make_pairs(const Row& row) {
  std::vector<ValueDestinationPair> pairs;
  for (size_t t = 0; t < row.shapes.size(); ++t) {
    std::vector<Value> parts;
    for (int d = 0; d < row.devices; ++d)
      parts.push_back(
          Tensor::full(row.shapes[t], value_at(t, d), row.dtype, "/cpu:" + std::to_string(d)));
    const PerReplica<Value> value(std::move(parts));
    pairs.emplace_back(value, value);
  }
  return pairs;
}

void verify(const Row& row, const std::vector<Mirrored<Value>>& results) {
  for (size_t t = 0; t < results.size(); ++t) {
    double sum = 0;
    for (int d = 0; d < row.devices; ++d) sum += value_at(t, d);
    for (const Value& v : results[t]) {
      const Tensor wide = v.tensor().to(DType::float64);
      for (const double x : wide.span<const double>())
        if (x != sum) {
          std::cerr << row.name << ": wrong result: " << x << " where " << sum << " was expected\n";
          std::exit(1);
        }
    }
  }
}

nlohmann::json run(const Row& row) {
  std::cerr << "measuring " << row.name << " ..." << std::endl;
  ReductionToOneDevice ops;
  const std::vector<ValueDestinationPair> pairs = make_pairs(row);
  verify(row, ops.batch_reduce(ReduceOp::SUM, pairs));
  const bool single = pairs.size() == 1;

  // The rivals work on one float32 buffer of the same number of bytes per device, whatever the list
  // and the dtype.
  int64_t elements = 0;
  for (const Shape& shape : row.shapes) elements += shape.num_elements();
  const size_t bytes = size_t(elements) * size_of(row.dtype), n = bytes / sizeof(float);
  std::vector<Tensor> memory;
  const auto buffers = [&](int count) {
    std::vector<float*> result;
    for (int i = 0; i < count; ++i) {
      memory.push_back(Tensor::full({int64_t(n)}, 1, DType::float32));
      result.push_back(memory.back().span<float>().data());
    }
    return result;
  };
  const std::vector<float*> from = buffers(row.devices), to = buffers(row.devices),
                            temporary = buffers(1);

  const Timings timings = side_by_side(
      row.rounds, row.calls,
      {[&] {
         single ? (void)ops.reduce(ReduceOp::SUM, pairs[0].first, pairs[0].second)
                : (void)ops.batch_reduce(ReduceOp::SUM, pairs);
       },
       [&] { naive(from, to, temporary[0], n); },
       [&] { in_parts(n, [&](size_t begin, size_t end) { pass<false>(from, to, begin, end); }); },
       [&] { in_parts(n, [&](size_t begin, size_t end) { pass<true>(from, to, begin, end); }); }});
  const size_t limit = timings.median_of(2) < timings.median_of(3) ? 2 : 3;
  return {{"name", row.name},
          {"devices", row.devices},
          {"bytes_per_device", bytes},
          {"dtype", std::string(name(row.dtype))},
          {"tutti_us", timings.median_of(0) * 1e6},
          {"tutti_fastest_us", timings.fastest(0) * 1e6},
          {"tutti_slowest_us", timings.slowest(0) * 1e6},
          {"naive_us", timings.median_of(1) * 1e6},
          {"limit_us", timings.median_of(limit) * 1e6},
          {"limit_kind", limit == 2 ? "plain" : "non-temporal"},
          {"of_limit", timings.ratio(limit, 0)},
          {"over_naive", timings.ratio(1, 0)}};
}

int main(int argc, char** argv) {
  int rounds = 15;
  std::string json_file;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--rounds" && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (arg == "--json" && i + 1 < argc) {
      json_file = argv[++i];
    } else {
      std::cerr << "usage: cross_device [--rounds N] [--json FILE]\n";
      return 2;
    }
  }
  set_logical_devices("CPU", 8);
  const std::vector<Shape> large{{16 << 20}}, resnet = resnet50_shapes(), tiny{{4}};
  const std::vector<Row> rows{
      {"64 MiB x 2 devices", large, DType::float32, 2, rounds, 1},
      {"64 MiB x 4 devices", large, DType::float32, 4, rounds, 1},
      {"64 MiB x 8 devices", large, DType::float32, 8, rounds, 1},
      {"ResNet-50, 161 tensors x 4 devices", resnet, DType::float32, 4, rounds, 1},
      {"ResNet-50 in bfloat16 x 4 devices", resnet, DType::bfloat16, 4, rounds, 1},
      {"4 floats x 2 devices", tiny, DType::float32, 2, rounds, 20000},
  };
  nlohmann::json results = nlohmann::json::array();
  for (const Row& row : rows) {
    results.push_back(run(row));
    release_cached_memory();
  }
  std::printf("%-36s %12s %12s %12s %10s %12s\n", "all-reduce, SUM; medians", "tutti", "naive",
              "limit", "of limit", "over naive");
  for (const auto& r : results)
    std::printf("%-36s %9.2f us %9.2f us %9.2f us %10.2f %12.2f\n",
                r["name"].get<std::string>().c_str(), r["tutti_us"].get<double>(),
                r["naive_us"].get<double>(), r["limit_us"].get<double>(),
                r["of_limit"].get<double>(), r["over_naive"].get<double>());
  if (!json_file.empty()) {
    std::ofstream file(json_file);
    file << results.dump(2) << "\n";
    if (!file) {
      std::cerr << "cannot write " << json_file << "\n";
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) { return tutti::bench::main(argc, argv); }
