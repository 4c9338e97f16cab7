// SPDX-License-Identifier: Apache-2.0
// Collectives between ranks, on plain C++ memory and on tensors.
//
//   Group world = Group::from_environment();   // tutti run -n 4 ./program; alone, a group of one
//   world.all_reduce(gradients, ReduceOp::MEAN);
//
// A buffer is any contiguous range of a known element type (std::vector<float>, std::span<int>,
// ...) or a Tensor, in host memory or on a GPU. All ranks call the same collectives in the same
// order, with the same element type and number of elements; if they do not, every rank gets an
// InvalidArgumentError with both sides in it. Every wait has a deadline
// (CommunicationOptions::timeout, TUTTI_TIMEOUT). The first error is the last: every rank gets it,
// in the call it is in and in every later one.
//
// Sums have the same bits whatever the number of elements, the backend, or the place of a rank: the
// tree over ranks that ReduceOp describes. NCCL, which moves data on GPUs if every rank has one of
// its own, adds floats in another order: CommunicationImplementation::RING does without it.
//
// On GPUs a call returns when its part is enqueued on this thread's stream, once all ranks have
// called it. What goes wrong later fails the group, and is thrown by the next copy to the host.
#pragma once

#include <tutti/detail/group_call.h>
#include <tutti/reduce_op.h>
#include <tutti/tensor.h>
#include <tutti/work.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

class Simulation;
struct SimulationOptions;

// A rank's membership in a group. A value; copies stand for the same membership. Safe to use from
// several threads, if the order of operations is the same on all ranks. Destroying the last copy
// leaves the group, and never waits.
class Group {
 public:
  using Options = CommunicationOptions;

  // This process among the workers of its job, which TF_CONFIG, torchrun, Slurm or mpirun describe;
  // a group of one without any. Every call gives a group of its own, in the same order on all
  // workers.
  static Group from_environment();
  // `n` ranks for `n` threads of this process, which run the same algorithms.
  static std::vector<Group> in_process(int n);
  // `n` ranks in a simulated job, for tests of what a program does if ranks fail; see
  // tutti/simulation.h.
  static Simulation simulated(int n);
  static Simulation simulated(int n, const SimulationOptions& options);

  // From 0 to size() - 1; neither changes.
  int rank() const;
  int size() const;
  // Among the ranks of the group that are on this rank's host; threads are on one.
  int local_rank() const;
  int local_size() const;
  std::string_view backend() const;  // "in_process", "shm", "tcp", "ucx", "mpi"

  // The ranks that give the same color become a group, in the order of key, then of rank.
  Group split(int color, int key) const;

  // Fails the group for all its ranks: the call they are in, and every later one, throws
  // AbortedError "rank 1 failed: REASON". In a job this fails every group that holds this rank.
  // Returns when the coordination service knows, after a second at most.
  void abort(const std::string& reason) const;

  // Memory that all ranks of the group can reach: collectives on it save the copies on the way. Not
  // a collective itself.
  Tensor empty(const Shape& shape, DType dtype) const;

  // Each element becomes the combination of that element on all ranks.
  template <detail::Writable B>
  void all_reduce(B&& data, ReduceOp op, const Options& options = {}) const {
    run(detail::in_place(Kind::all_reduce, data, op), options);
  }
  template <detail::Readable In, detail::Writable Out>
  void all_reduce(const In& in, Out&& out, ReduceOp op, const Options& options = {}) const {
    run(detail::call(Kind::all_reduce, in, out, op), options);
  }
  // A list of tensors, of any dtypes and shapes, as one operation.
  void all_reduce(std::span<const Tensor> tensors, ReduceOp op, const Options& options = {}) const;
  // The same, of floating point numbers; each rank gives its weight.
  void all_reduce(std::span<const Tensor> tensors, WeightedMean mean,
                  const Options& options = {}) const;
  template <detail::Writable B>
  void all_reduce(B&& data, WeightedMean mean, const Options& options = {}) const {
    const Tensor tensor = detail::as_tensor(data);
    all_reduce({&tensor, 1}, mean, options);
  }

  // As all_reduce, for `root` alone; the data of the others stays as it is.
  template <detail::Writable B>
  void reduce(B&& data, ReduceOp op, int root, const Options& options = {}) const {
    run(detail::in_place(Kind::reduce, data, op, root), options);
  }
  template <detail::Readable In, detail::Writable Out>
  void reduce(const In& in, Out&& out, ReduceOp op, int root, const Options& options = {}) const {
    run(detail::call(Kind::reduce, in, out, op, root), options);
  }

  // All ranks get the data of `root`.
  template <detail::Writable B>
  void broadcast(B&& data, int root, const Options& options = {}) const {
    run(detail::in_place(Kind::broadcast, data, ReduceOp::SUM, root), options);
  }
  void broadcast(std::span<const Tensor> tensors, int root, const Options& options = {}) const;

  // `out` holds what all ranks have, in rank order: size() times as many elements as `in`.
  template <detail::Readable In, detail::Writable Out>
  void all_gather(const In& in, Out&& out, const Options& options = {}) const {
    run(detail::call(Kind::all_gather, in, out), options);
  }
  // The same if ranks have different numbers of elements.
  template <detail::Range In>
  auto all_gather_uneven(const In& in, const Options& options = {}) const {
    const std::vector<int64_t> counts = gather_counts(detail::read(in), options);
    std::vector<std::ranges::range_value_t<In>> out(total(counts));
    gather_parts(detail::read(in), detail::write(out), counts, options);
    return out;
  }
  // Tensors are joined along their first axis and may differ there.
  Tensor all_gather_uneven(const Tensor& in, const Options& options = {}) const;

  // `in` has a part for each rank; rank r gets the combination of all parts r.
  template <detail::Readable In, detail::Writable Out>
  void reduce_scatter(const In& in, Out&& out, ReduceOp op, const Options& options = {}) const {
    run(detail::call(Kind::reduce_scatter, in, out, op), options);
  }

  // `in` has a part for each rank; `out` gets a part from each rank.
  template <detail::Readable In, detail::Writable Out>
  void all_to_all(const In& in, Out&& out, const Options& options = {}) const {
    run(detail::call(Kind::all_to_all, in, out), options);
  }

  // `out` matters on `root` only, and `in` of scatter too.
  template <detail::Readable In, detail::Writable Out>
  void gather(const In& in, Out&& out, int root, const Options& options = {}) const {
    run(detail::call(Kind::gather, in, out, ReduceOp::SUM, root), options);
  }
  template <detail::Readable In, detail::Writable Out>
  void scatter(const In& in, Out&& out, int root, const Options& options = {}) const {
    run(detail::call(Kind::scatter, in, out, ReduceOp::SUM, root), options);
  }

  // Returns when all ranks have called it.
  void barrier(const Options& options = {}) const { run({Kind::barrier, {}, {}}, options); }

  // From one rank to another. Messages with the same tag arrive in order. A send may return before
  // the message is received, or wait for that.
  template <detail::Readable In>
  void send(const In& in, int peer, int64_t tag = 0, const Options& options = {}) const {
    run({Kind::send, detail::read(in), {}, ReduceOp::SUM, peer, tag}, options);
  }
  template <detail::Writable Out>
  void recv(Out&& out, int peer, int64_t tag = 0, const Options& options = {}) const {
    run({Kind::recv, {}, detail::write(out), ReduceOp::SUM, peer, tag}, options);
  }

  // In the background. The buffers belong to the operation until wait returns. Operations of one
  // group keep their order, asynchronous or not.
  template <detail::LastingWritable B>
  Work all_reduce_async(B&& data, ReduceOp op, const Options& options = {}) const {
    return start(detail::in_place(Kind::all_reduce, data, op), options);
  }
  Work all_reduce_async(std::span<const Tensor> tensors, ReduceOp op,
                        const Options& options = {}) const;
  Work all_reduce_async(std::span<const Tensor> tensors, WeightedMean mean,
                        const Options& options = {}) const;
  template <detail::LastingWritable B>
  Work broadcast_async(B&& data, int root, const Options& options = {}) const {
    return start(detail::in_place(Kind::broadcast, data, ReduceOp::SUM, root), options);
  }
  template <detail::LastingReadable In, detail::LastingWritable Out>
  Work all_gather_async(In&& in, Out&& out, const Options& options = {}) const {
    return start(detail::call(Kind::all_gather, in, out), options);
  }
  template <detail::LastingReadable In, detail::LastingWritable Out>
  Work reduce_scatter_async(In&& in, Out&& out, ReduceOp op, const Options& options = {}) const {
    return start(detail::call(Kind::reduce_scatter, in, out, op), options);
  }
  template <detail::LastingReadable In, detail::LastingWritable Out>
  Work all_to_all_async(In&& in, Out&& out, const Options& options = {}) const {
    return start(detail::call(Kind::all_to_all, in, out), options);
  }

 private:
  friend struct detail::GroupAccess;
  using Kind = detail::Collective;
  explicit Group(std::shared_ptr<detail::GroupImpl> impl) : impl_(std::move(impl)) {}

  static size_t total(const std::vector<int64_t>& counts);
  void run(const detail::GroupCall& call, const Options& options) const;
  Work start(const detail::GroupCall& call, const Options& options) const;
  std::vector<int64_t> gather_counts(const detail::Memory& in, const Options& options) const;
  void gather_parts(const detail::Memory& in, const detail::Memory& out,
                    const std::vector<int64_t>& counts, const Options& options) const;

  std::shared_ptr<detail::GroupImpl> impl_;
};

}  // namespace tutti

#pragma GCC visibility pop
