// SPDX-License-Identifier: Apache-2.0
// How an all-reduce is measured here, the same for every library: `tutti bench` does it likewise.
//
// Every iteration copies the rank's data into its buffer, waits at a barrier, and times one
// all-reduce in place, from call to return, on rank 0. The result is the median over iterations.
// The data are whole numbers small enough for every sum to be exact; all ranks compare every
// element, in the first iterations and in the last.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace peers {

struct Options {
  size_t min_bytes = 4;
  size_t max_bytes = size_t(256) << 20;
  size_t factor = 4;
  double seconds = 1;  // per size, about
  bool pin = true;
};

// Takes "--name value" pairs; leaves all others alone.
inline Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--min-bytes") options.min_bytes = std::strtoull(value, nullptr, 10);
    if (name == "--max-bytes") options.max_bytes = std::strtoull(value, nullptr, 10);
    if (name == "--factor") options.factor = std::strtoull(value, nullptr, 10);
    if (name == "--seconds") options.seconds = std::strtod(value, nullptr);
    if (name == "--no-pin") options.pin = false;
  }
  if (options.min_bytes < 4 || options.factor < 2) {
    std::fprintf(stderr, "%s: expected --min-bytes of at least 4 and --factor of at least 2\n",
                 argv[0]);
    std::exit(2);
  }
  return options;
}

// Binds the rank to one of the cores that we may use, in turn. Called before any thread is started,
// so that all inherit it.
inline void pin(int rank) {
  cpu_set_t allowed, mine;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  CPU_ZERO(&mine);
  CPU_SET(cores[size_t(rank) % cores.size()], &mine);
  sched_setaffinity(0, sizeof(mine), &mine);
}

inline float element(int rank, size_t i) { return float((i * 7 + size_t(rank) * 13) % 1021); }

inline double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1, size_t(q * double(sorted.size())))];
}

// Library has: std::string name(); int rank(), ranks(); void barrier(); void all_reduce(float*,
// size_t); int64_t sum(int64_t) over all ranks; int64_t from_rank_0(int64_t).
template <typename Library>
void measure(Library& library, const Options& options) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t warm_up = 3;
  // What is measured first should find connections and cores as warm as the rest does.
  const auto cold_until = Clock::now() + std::chrono::milliseconds(300);
  while (library.sum(Clock::now() < cold_until)) {
  }
  for (size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    const size_t count = bytes / sizeof(float);
    std::vector<float> input(count), expected(count), buffer(count);
    for (size_t i = 0; i < count; ++i) {
      input[i] = element(library.rank(), i);
      for (int rank = 0; rank < library.ranks(); ++rank) expected[i] += element(rank, i);
    }
    const int64_t most = bytes <= 4096 ? 20000 : bytes <= (1 << 20) ? 200 : 20;
    int64_t iterations = most, wrong = 0;
    std::vector<double> times;
    auto warm = Clock::now();
    for (int64_t i = 0; i < warm_up + iterations; ++i) {
      std::memcpy(buffer.data(), input.data(), bytes);
      library.barrier();
      const auto start = Clock::now();
      library.all_reduce(buffer.data(), count);
      const std::chrono::duration<double> took = Clock::now() - start;
      if (i >= warm_up) times.push_back(took.count());
      if (i < warm_up || i == warm_up + iterations - 1)
        for (size_t k = 0; k < count; ++k) wrong += buffer[k] != expected[k];
      if (i == 0) warm = Clock::now();  // the first run makes connections
      if (i == warm_up - 1) {
        // Rank 0 decides for all how many fit into the time.
        const std::chrono::duration<double> each = (Clock::now() - warm) / (warm_up - 1);
        const double fit = options.seconds / std::max(each.count(), 1e-9);
        iterations = library.from_rank_0(int64_t(std::clamp(fit, 5.0, double(most))));
      }
    }
    wrong = library.sum(wrong);
    if (library.rank() != 0) continue;
    std::sort(times.begin(), times.end());
    std::printf(
        "{\"library\": \"%s\", \"ranks\": %d, \"op\": \"all_reduce\", \"dtype\": \"float32\", "
        "\"bytes\": %zu, \"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, "
        "\"iterations\": %lld, \"wrong\": %lld}\n",
        library.name().c_str(), library.ranks(), bytes, quantile(times, 0.5) * 1e6,
        quantile(times, 0.1) * 1e6, quantile(times, 0.9) * 1e6, static_cast<long long>(iterations),
        static_cast<long long>(wrong));
    std::fflush(stdout);
  }
}

}  // namespace peers
