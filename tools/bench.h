// SPDX-License-Identifier: Apache-2.0
// What `tutti bench` measures, in its workers and in its tables.
#pragma once

#include <tutti/group.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tutti::tools {

struct BenchOptions {
  std::string op = "all_reduce";
  DType dtype = DType::float32;
  ReduceOp reduce = ReduceOp::SUM;
  std::string buffers = "private";  // or "window"
  size_t min_bytes = 4, max_bytes = size_t(256) << 20, factor = 4;
  double seconds = 1;  // per size, about
  bool pin = true;
};

struct Measurement {
  std::string library;
  std::string op;
  std::string dtype;
  int ranks = 0;
  size_t bytes = 0;
  double median_us = 0, p10_us = 0, p90_us = 0;
  int64_t iterations = 0;
  int64_t wrong = 0;

  double algbw() const { return double(bytes) / median_us / 1e3; }  // GB/s
  double busbw() const;  // what the links between ranks see, as nccl-tests count it
  std::string to_json() const;
};

std::vector<std::string> bench_ops();

// One rank's part. `report` is called on rank 0, size by size.
void measure(const Group& group, const BenchOptions& options,
             const std::function<void(const Measurement&)>& report);

// Time over size, both logarithmic, a line per library, as SVG. Without a title, that of a bench.
struct PlotTitle {
  std::string title = {}, subtitle = {};
};
std::string plot(const std::vector<Measurement>& measurements, PlotTitle title = {});

std::string size_text(size_t bytes);  // "64 KiB"

}  // namespace tutti::tools
