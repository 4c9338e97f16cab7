// SPDX-License-Identifier: Apache-2.0
// The measuring of `tutti bench`. bench/peers/measure.h does the same with other libraries.
#include <fmt/format.h>
#include <sched.h>
#include <tutti/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench.h"

namespace tutti::tools {

namespace {

using Clock = std::chrono::steady_clock;

// Binds this rank to one of the cores that we may use, in turn.
void pin(int rank) {
  cpu_set_t allowed, mine;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  CPU_ZERO(&mine);
  CPU_SET(cores[size_t(rank) % cores.size()], &mine);
  sched_setaffinity(0, sizeof(mine), &mine);
}

struct Shape2 {  // numbers of elements; `count` is that of the larger side
  int64_t in, out;
};

// A collective: how large its buffers are, the call, and what it must give.
struct Op {
  Shape2 (*shape)(int64_t count, int ranks);
  void (*call)(const Group& group, const Tensor& in, const Tensor& out, ReduceOp reduce);
  // Element i of rank's output; value(r, k) is element k of rank r's input.
  double (*expected)(int rank, int ranks, int64_t i, int64_t per_rank, ReduceOp reduce,
                     double (*value)(int, int64_t, int, ReduceOp));
  double (*bus)(int ranks);
  bool in_place;
};

// Whole numbers, small enough for every result to be exact in every type, with one bit to spare.
double value(int rank, int64_t i, int ranks, ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::PROD: return 1 + double((i + rank) % 7 == 0);
    case ReduceOp::MEAN:
      return double(ranks) * double((i * 7 + rank * 13) % std::max(2, 120 / (ranks * ranks)));
    case ReduceOp::SUM:
    case ReduceOp::MIN:
    case ReduceOp::MAX: break;
  }
  return double((i * 7 + rank * 13) % std::max(2, 120 / ranks));
}

double combined(int ranks, int64_t i, ReduceOp reduce,
                double (*value)(int, int64_t, int, ReduceOp)) {
  double result = value(0, i, ranks, reduce);
  for (int r = 1; r < ranks; ++r) {
    const double next = value(r, i, ranks, reduce);
    switch (reduce) {
      case ReduceOp::SUM:
      case ReduceOp::MEAN: result += next; break;
      case ReduceOp::MIN: result = std::min(result, next); break;
      case ReduceOp::MAX: result = std::max(result, next); break;
      case ReduceOp::PROD: result *= next; break;
    }
  }
  return reduce == ReduceOp::MEAN ? result / ranks : result;
}

using Value = double (*)(int, int64_t, int, ReduceOp);

Shape2 same(int64_t count, int) { return {count, count}; }
Shape2 parts(int64_t count, int ranks) {
  const int64_t whole = std::max<int64_t>(1, count / ranks) * ranks;
  return {whole, whole};
}
double part_of_all(int n) { return double(n - 1) / n; }

const std::map<std::string, Op>& ops() {
  static const std::map<std::string, Op> table{
      {"all_reduce",
       {same,
        [](const Group& g, const Tensor&, const Tensor& out, ReduceOp op) {
          g.all_reduce(out, op);
        },
        [](int, int n, int64_t i, int64_t, ReduceOp op, Value v) { return combined(n, i, op, v); },
        [](int n) { return 2 * part_of_all(n); }, true}},
      {"reduce",
       {same,
        [](const Group& g, const Tensor&, const Tensor& out, ReduceOp op) { g.reduce(out, op, 0); },
        [](int r, int n, int64_t i, int64_t, ReduceOp op, Value v) {
          return r == 0 ? combined(n, i, op, v) : v(r, i, n, op);
        },
        [](int) { return 1.0; }, true}},
      {"broadcast",
       {same,
        [](const Group& g, const Tensor&, const Tensor& out, ReduceOp) { g.broadcast(out, 0); },
        [](int, int n, int64_t i, int64_t, ReduceOp op, Value v) { return v(0, i, n, op); },
        [](int) { return 1.0; }, true}},
      {"all_gather",
       {[](int64_t count, int n) {
          return Shape2{parts(count, n).in / n, parts(count, n).out};
        },
        [](const Group& g, const Tensor& in, const Tensor& out, ReduceOp) {
          g.all_gather(in, out);
        },
        [](int, int n, int64_t i, int64_t each, ReduceOp op, Value v) {
          return v(int(i / each), i % each, n, op);
        },
        part_of_all, false}},
      {"reduce_scatter",
       {[](int64_t count, int n) {
          return Shape2{parts(count, n).in, parts(count, n).in / n};
        },
        [](const Group& g, const Tensor& in, const Tensor& out, ReduceOp op) {
          g.reduce_scatter(in, out, op);
        },
        [](int r, int n, int64_t i, int64_t each, ReduceOp op, Value v) {
          return combined(n, r * each + i, op, v);
        },
        part_of_all, false}},
      {"all_to_all",
       {parts,
        [](const Group& g, const Tensor& in, const Tensor& out, ReduceOp) {
          g.all_to_all(in, out);
        },
        [](int r, int n, int64_t i, int64_t each, ReduceOp op, Value v) {
          return v(int(i / each), r * each + i % each, n, op);
        },
        part_of_all, false}},
      {"send_recv",
       {same,
        [](const Group& g, const Tensor& in, const Tensor& out, ReduceOp) {
          // In a ring: the even ones send first.
          const int n = g.size(), next = (g.rank() + 1) % n, last = (g.rank() + n - 1) % n;
          if (n == 1) {
            std::memcpy(out.data(), in.const_data(), in.num_bytes());
          } else if (g.rank() % 2 == 0) {
            g.send(in, next);
            g.recv(out, last);
          } else {
            const Tensor copy = out;
            g.recv(copy, last);
            g.send(in, next);
          }
        },
        [](int r, int n, int64_t i, int64_t, ReduceOp op, Value v) {
          return v((r + n - 1) % n, i, n, op);
        },
        [](int) { return 1.0; }, false}},
  };
  return table;
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1, size_t(q * double(sorted.size())))];
}

Tensor filled(int64_t count, DType dtype, const std::function<double(int64_t)>& element) {
  std::vector<double> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[size_t(i)] = element(i);
  return Tensor::of(std::span<const double>(values)).to(dtype);
}

int64_t differences(const Tensor& a, const Tensor& b) {
  const auto* const x = static_cast<const std::byte*>(a.const_data());
  const auto* const y = static_cast<const std::byte*>(b.const_data());
  if (a.num_bytes() == 0 || std::memcmp(x, y, a.num_bytes()) == 0) return 0;
  const size_t each = size_of(a.dtype());
  int64_t wrong = 0;
  for (size_t i = 0; i < a.num_bytes(); i += each) wrong += std::memcmp(x + i, y + i, each) != 0;
  return wrong;
}

}  // namespace

std::vector<std::string> bench_ops() {
  std::vector<std::string> names;
  for (const auto& [name, op] : ops()) names.push_back(name);
  return names;
}

double Measurement::busbw() const {
  const auto found = ops().find(op);
  return found == ops().end() ? 0 : algbw() * found->second.bus(ranks);
}

std::string Measurement::to_json() const {
  return nlohmann::ordered_json{
      {"library", library},    {"ranks", ranks},           {"op", op},
      {"dtype", dtype},        {"bytes", bytes},           {"median_us", median_us},
      {"p10_us", p10_us},      {"p90_us", p90_us},         {"algbw_GBps", algbw()},
      {"busbw_GBps", busbw()}, {"iterations", iterations}, {"wrong", wrong}}
      .dump();
}

void measure(const Group& group, const BenchOptions& options,
             const std::function<void(const Measurement&)>& report) {
  constexpr int64_t kWarmUp = 3;
  const Op& op = ops().at(options.op);
  const int rank = group.rank(), ranks = group.size();
  if (options.pin) pin(rank);
  const bool in_window = options.buffers == "window";
  const auto memory = [&](int64_t count) {
    return in_window ? group.empty({count}, options.dtype) : Tensor::empty({count}, options.dtype);
  };
  // What is measured first should find connections and cores as warm as the rest does.
  std::vector<int64_t> cold{1};
  for (const auto until = Clock::now() + std::chrono::milliseconds(300); cold[0];) {
    cold[0] = Clock::now() < until;
    group.all_reduce(cold, ReduceOp::MAX);
  }
  for (size_t size = options.min_bytes; size <= options.max_bytes; size *= options.factor) {
    const auto [in_count, out_count] =
        op.shape(std::max<int64_t>(1, int64_t(size / size_of(options.dtype))), ranks);
    const int64_t each =
        std::min(in_count, out_count) == std::max(in_count, out_count) && !op.in_place
            ? out_count / ranks
            : std::min(in_count, out_count);
    const Tensor data = filled(in_count, options.dtype,
                               [&](int64_t i) { return value(rank, i, ranks, options.reduce); });
    const Tensor expected = filled(out_count, options.dtype, [&](int64_t i) {
      return op.expected(rank, ranks, i, each, options.reduce, value);
    });
    const Tensor out = memory(out_count), in = op.in_place ? out : memory(in_count);
    const int64_t most = size <= 4096 ? 20000 : size <= (1 << 20) ? 200 : 20;
    std::vector<int64_t> iterations{most};
    int64_t wrong = 0;
    std::vector<double> times;
    auto warm = Clock::now();
    for (int64_t i = 0; i < kWarmUp + iterations[0]; ++i) {
      std::memcpy(in.data(), data.const_data(), data.num_bytes());
      group.barrier();
      const auto start = Clock::now();
      op.call(group, in, out, options.reduce);
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      if (i >= kWarmUp) times.push_back(took.count());
      if (i < kWarmUp || i == kWarmUp + iterations[0] - 1) wrong += differences(out, expected);
      if (i == 0) warm = Clock::now();  // the first run touches fresh memory
      if (i == kWarmUp - 1) {
        // Rank 0 decides for all how many fit into the time.
        const std::chrono::duration<double> one = (Clock::now() - warm) / (kWarmUp - 1);
        iterations[0] =
            int64_t(std::clamp(options.seconds / std::max(one.count(), 1e-9), 5.0, double(most)));
        group.broadcast(iterations, 0);
      }
    }
    std::vector<int64_t> all_wrong{wrong};
    group.all_reduce(all_wrong, ReduceOp::SUM);
    if (rank != 0) continue;
    std::ranges::sort(times);
    report({fmt::format("Tutti {}, {}, {}", version(), group.backend(), options.buffers),
            options.op, std::string(name(options.dtype)), ranks,
            size_t(std::max(in_count, out_count)) * size_of(options.dtype), quantile(times, 0.5),
            quantile(times, 0.1), quantile(times, 0.9), iterations[0], all_wrong[0]});
  }
}

}  // namespace tutti::tools
