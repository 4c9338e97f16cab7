// SPDX-License-Identifier: Apache-2.0
// All collectives on GPUs, compared with the same ones on the host: for the ranks of a test, and
// for those of a job.
#pragma once

#include <fmt/format.h>
#include <tutti/tutti.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace tutti::testing {

// One rank's part; all ranks do the same.
class CollectiveChecks {
 public:
  // `gpus`: the rank's own, of one GPU.
  CollectiveChecks(const Group& group, std::vector<std::string> gpus)
      : group_(group), gpus_(std::move(gpus)) {}

  void all() {
    for (const DType dtype : kTypes)
      for (const ReduceOp op : kOps) {
        if (dtype == DType::boolean && op != ReduceOp::MIN && op != ReduceOp::MAX) continue;
        check_reductions(dtype, op, 1000, {});
        check_reductions(dtype, op, 33, {.implementation = CommunicationImplementation::RING});
      }
    for (const int64_t count : {0, 1, 7, 1 << 20})
      check_reductions(DType::float32, ReduceOp::SUM, count, {});
    check_reductions(DType::float16, ReduceOp::MEAN, 1 << 20, {});
    for (const DType dtype : {DType::boolean, DType::uint16, DType::float32, DType::float64}) {
      for (const int64_t count : {1, 1000}) check_moves(dtype, count, {});
      check_moves(dtype, 33, {.implementation = CommunicationImplementation::RING});
    }
    check_least_and_most();
    check_lists_and_the_background();
    check_replicas();
    group_.barrier();
  }

  int checks() const { return checks_; }
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  static constexpr DType kTypes[] = {
      DType::boolean,  DType::int8,    DType::int16,  DType::int32,  DType::int64,
      DType::uint8,    DType::uint16,  DType::uint32, DType::uint64, DType::float16,
      DType::bfloat16, DType::float32, DType::float64};
  static constexpr ReduceOp kOps[] = {ReduceOp::SUM, ReduceOp::MEAN, ReduceOp::MIN, ReduceOp::MAX,
                                      ReduceOp::PROD};

  void expect_same(const Tensor& gpu, const Tensor& host, const std::string& what) {
    ++checks_;
    const Tensor copy = gpu.clone_to("/cpu:0");
    if (copy.shape() == host.shape() && copy.dtype() == host.dtype() &&
        std::memcmp(copy.const_data(), host.const_data(), host.num_bytes()) == 0)
      return;
    failures_.push_back(
        fmt::format("{}: the GPU has {}, the host {}", what, copy.to_string(), host.to_string()));
  }

  // Small numbers, so that every order of adding or multiplying them has the same bits.
  static Tensor sample(const Shape& shape, DType dtype, int rank) {
    const Tensor numbers = Tensor::empty(shape, DType::float64, "/cpu:0");
    int64_t i = 0;
    for (double& x : numbers.span<double>())
      x = dtype == DType::boolean ? double((i++ + rank) % 2) : double((i++ * 5 + rank) % 3);
    return numbers.to(dtype);
  }

  Tensor on_gpu(const Tensor& host) const { return host.clone_to(gpus_[0]); }

  static std::string text_of(const char* what, DType dtype, int64_t count) {
    return fmt::format("{} of {}[{}]", what, name(dtype), count);
  }

  void check_reductions(DType dtype, ReduceOp op, int64_t count,
                        const CommunicationOptions& options) {
    const int rank = group_.rank(), n = group_.size();
    const DType result = result_dtype(op, dtype);
    const std::string what = text_of(name(op).data(), dtype, count);
    const Tensor in = sample({count}, dtype, rank), gpu = on_gpu(in);

    const Tensor host_out = Tensor::zeros({count}, result, "/cpu:0"), gpu_out = on_gpu(host_out);
    group_.all_reduce(in, host_out, op);
    group_.all_reduce(gpu, gpu_out, op, options);
    expect_same(gpu_out, host_out, "all_reduce, " + what);

    const Tensor host_root = Tensor::zeros({count}, result, "/cpu:0"), gpu_root = on_gpu(host_root);
    group_.reduce(in, host_root, op, n - 1);
    group_.reduce(gpu, gpu_root, op, n - 1, options);
    expect_same(gpu_root, host_root, "reduce, " + what);

    const Tensor parts = sample({count * n}, dtype, rank);
    const Tensor host_part = Tensor::zeros({count}, result, "/cpu:0"), gpu_part = on_gpu(host_part);
    group_.reduce_scatter(parts, host_part, op);
    group_.reduce_scatter(on_gpu(parts), gpu_part, op, options);
    expect_same(gpu_part, host_part, "reduce_scatter, " + what);

    if (result != dtype) return;
    const Tensor host_place = in.clone(), gpu_place = on_gpu(in);
    group_.all_reduce(host_place, op);
    group_.all_reduce(gpu_place, op, options);
    expect_same(gpu_place, host_place, "all_reduce in place, " + what);
  }

  void check_moves(DType dtype, int64_t count, const CommunicationOptions& options) {
    const int rank = group_.rank(), n = group_.size();
    const Tensor one = sample({count}, dtype, rank), all = sample({count * n}, dtype, rank);
    const auto zeros = [&](int64_t size) { return Tensor::zeros({size}, dtype, "/cpu:0"); };
    const auto compare = [&](const char* what, int64_t out_size, const auto& operation) {
      const Tensor host = zeros(out_size), gpu = on_gpu(host);
      operation(one, all, host, CommunicationOptions{});
      operation(on_gpu(one), on_gpu(all), gpu, options);
      expect_same(gpu, host, text_of(what, dtype, count));
    };
    using Options = CommunicationOptions;
    compare("all_gather", count * n,
            [&](const Tensor& in, const Tensor&, const Tensor& out, const Options& o) {
              group_.all_gather(in, out, o);
            });
    compare("gather", count * n,
            [&](const Tensor& in, const Tensor&, const Tensor& out, const Options& o) {
              group_.gather(in, out, 0, o);
            });
    compare("scatter", count,
            [&](const Tensor&, const Tensor& in, const Tensor& out, const Options& o) {
              group_.scatter(in, out, n - 1, o);
            });
    compare("all_to_all", count * n,
            [&](const Tensor&, const Tensor& in, const Tensor& out, const Options& o) {
              group_.all_to_all(in, out, o);
            });
    const Tensor host = one.clone(), gpu = on_gpu(one);
    group_.broadcast(host, n - 1);
    group_.broadcast(gpu, n - 1, options);
    expect_same(gpu, host, text_of("broadcast", dtype, count));
    const Tensor rows = sample({rank + 1, 3}, dtype, rank);
    expect_same(group_.all_gather_uneven(on_gpu(rows), options), group_.all_gather_uneven(rows),
                text_of("all_gather_uneven", dtype, count));
  }

  // NaN wins, and -0 is less than +0, as on the host.
  void check_least_and_most() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const Tensor in = group_.rank() == 0 ? Tensor::of<float>({nan, 0.0f, -0.0f, 1})
                                         : Tensor::of<float>({1, -0.0f, 0.0f, 2});
    for (const ReduceOp op : {ReduceOp::MIN, ReduceOp::MAX}) {
      const Tensor host = in.clone(), gpu = on_gpu(in);
      group_.all_reduce(host, op);
      group_.all_reduce(gpu, op);
      const std::vector<float> a = gpu.to_vector<float>(), b = host.to_vector<float>();
      ++checks_;
      for (size_t i = 0; i < a.size(); ++i)
        if ((a[i] == a[i]) != (b[i] == b[i]) ||
            (a[i] == a[i] && std::memcmp(&a[i], &b[i], sizeof(float)) != 0)) {
          failures_.push_back(fmt::format("{}: element {} is {} on the GPU and {} on the host",
                                          name(op), i, a[i], b[i]));
        }
    }
  }

  void check_lists_and_the_background() {
    const int rank = group_.rank();
    const std::vector<Tensor> host{sample({1000}, DType::float32, rank),
                                   sample({7}, DType::bfloat16, rank),
                                   sample({3}, DType::int32, rank)};
    std::vector<Tensor> gpu, later;
    for (const Tensor& tensor : host) {
      gpu.push_back(on_gpu(tensor));
      later.push_back(on_gpu(tensor));
    }
    group_.all_reduce(gpu, ReduceOp::SUM);
    Work work = group_.all_reduce_async(later, ReduceOp::SUM);
    work.wait();
    group_.all_reduce(host, ReduceOp::SUM);
    for (size_t i = 0; i < host.size(); ++i) {
      expect_same(gpu[i], host[i], fmt::format("tensor {} of a list", i));
      expect_same(later[i], host[i], fmt::format("tensor {} of a list in the background", i));
    }

    // The background follows what was enqueued before, and is followed by what comes after.
    const Tensor big = Tensor::full({1 << 22}, rank + 1, DType::float32, gpus_[0]);
    Work sum = group_.all_reduce_async(big, ReduceOp::SUM);
    group_.all_reduce(big, ReduceOp::MAX);
    sum.wait();
    const float expected = float(group_.size() * (group_.size() + 1) / 2);
    expect_same(big, Tensor::full({1 << 22}, expected, DType::float32, "/cpu:0"),
                "a sum in the background");

    // Between two ranks, of which one may be on the host.
    if (group_.size() > 1 && rank < 2) {
      const Tensor message = Tensor::full({5}, rank, DType::float32, gpus_[0]);
      if (rank == 0) {
        group_.send(message, 1);
      } else {
        group_.recv(message, 0);
        expect_same(message, Tensor::zeros({5}, DType::float32, "/cpu:0"), "a message");
      }
    }

    const Group part = group_.split(rank % 2, rank);
    const Tensor mine = Tensor::full({3}, 1, DType::float32, gpus_[0]);
    part.all_reduce(mine, ReduceOp::SUM);
    expect_same(mine, Tensor::full({3}, part.size(), DType::float32, "/cpu:0"),
                "a part of a group");
  }

  // Several replicas on each rank, dense and sparse, as strategies have them.
  void check_replicas() {
    CollectiveAllReduce ops({gpus_[0], gpus_[1]}, group_), host_ops({"/cpu:0"}, group_);
    const int rank = group_.rank(), n = group_.size();
    for (const DType dtype : {DType::float32, DType::float16, DType::int16})
      for (const ReduceOp op : {ReduceOp::SUM, ReduceOp::MEAN}) {
        const Tensor a = sample({100}, dtype, 2 * rank), b = sample({100}, dtype, 2 * rank + 1);
        const PerReplica<Tensor> value{a.clone_to(gpus_[0]), b.clone_to(gpus_[1])};
        const Mirrored<Tensor> result = ops.reduce(op, value, value);
        const Tensor both = Tensor::zeros({100}, DType::float64, "/cpu:0");
        const std::vector<double> x = a.to(DType::float64).to_vector<double>(),
                                  y = b.to(DType::float64).to_vector<double>();
        for (size_t i = 0; i < x.size(); ++i) both.span<double>()[i] = x[i] + y[i];
        group_.all_reduce(both, ReduceOp::SUM);
        // One division in 32 bits, and one rounding.
        const Tensor expected = both.to(DType::float32);
        if (op == ReduceOp::MEAN)
          for (float& sum : expected.span<float>()) sum /= float(2 * n);
        for (size_t i = 0; i < 2; ++i)
          expect_same(
              result[i], expected.to(result_dtype(op, dtype)),
              text_of(op == ReduceOp::SUM ? "replicas, SUM" : "replicas, MEAN", dtype, 100));
      }
    const IndexedSlices slices{Tensor::full({2, 3}, rank + 1, DType::float32, gpus_[0]),
                               Tensor::of<int64_t>({rank, 9}).clone_to(gpus_[0]), Shape{10, 3}};
    const IndexedSlices host{slices.values.clone_to("/cpu:0"), slices.indices.clone_to("/cpu:0"),
                             Shape{10, 3}};
    CollectiveAllReduce one({gpus_[0]}, group_);
    const IndexedSlices gathered = one.reduce(ReduceOp::SUM, slices, Destinations(gpus_[0]))[0];
    const IndexedSlices expected = host_ops.reduce(ReduceOp::SUM, host, Destinations("/cpu:0"))[0];
    expect_same(gathered.values, expected.values, "the values of slices");
    expect_same(gathered.indices, expected.indices, "the indices of slices");
    expect_same(one.gather(slices.values, Destinations(gpus_[0]), 0)[0],
                host_ops.gather(host.values, Destinations("/cpu:0"), 0)[0], "a gathered tensor");
  }

  const Group group_;
  const std::vector<std::string> gpus_;
  int checks_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace tutti::testing
