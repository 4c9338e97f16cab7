// Collectives between ranks, on plain C++ memory and on tensors.
//
//   Group world = Group::from_environment();   // tutti run -n 4 ./program; alone, a group of one
//   world.all_reduce(gradients, ReduceOp::MEAN);
//
// A buffer is any contiguous range of a known element type (std::vector<float>, std::span<int>,
// ...) or a Tensor, in host memory or on a GPU. All ranks call the same collectives in the same
// order, with the same element type and number of elements; where they do not, every rank gets an
// InvalidArgumentError with both sides in it. Every wait has a deadline
// (CommunicationOptions::timeout, TUTTI_TIMEOUT). The first error is the last: every rank gets it,
// in the call it is in and in every later one.
//
// Sums have the same bits whatever the number of elements, the backend, or the place of a rank: the
// tree over ranks that ReduceOp describes. NCCL, which moves what is on GPUs where every rank has
// one of its own, adds floats in another order: CommunicationImplementation::RING does without it.
//
// On GPUs a call returns when its part is enqueued on this thread's stream, once all ranks have
// called it. What goes wrong later fails the group, and is thrown by the next copy to the host.
#pragma once

#include <tutti/reduce_op.h>
#include <tutti/tensor.h>

#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {

namespace detail {

enum class Collective : uint8_t {
  barrier,
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  recv,
  split,
};

// Where elements lie. `tensor` is set where they came as one: the caller's handle.
struct Memory {
  void* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::float32;
  const Tensor* tensor = nullptr;
};

template <class B>
concept Range = std::ranges::contiguous_range<B> && std::ranges::sized_range<B> &&
    Element<std::remove_reference_t<std::ranges::range_reference_t<B>>>;
template <class B>
concept Readable = Range<B> || std::same_as<std::remove_cvref_t<B>, Tensor>;
template <class B>
concept Writable = std::same_as<std::remove_cvref_t<B>, Tensor> ||
    (Range<B> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<B>>>);

// What an operation in the background may work on: a temporary range would be gone too soon.
template <class B>
concept Lasting = std::same_as<std::remove_cvref_t<B>, Tensor> || std::ranges::borrowed_range<B>;
template <class B>
concept LastingReadable = Readable<B> && Lasting<B>;
template <class B>
concept LastingWritable = Writable<B> && Lasting<B>;

Memory read(const Tensor& tensor);   // InvalidArgumentError: holds nothing
Memory write(const Tensor& tensor);  // also: read-only
template <Range B>
Memory read(const B& buffer) {
  return {const_cast<void*>(static_cast<const void*>(std::ranges::data(buffer))),
          int64_t(std::ranges::size(buffer)), dtype_of<std::ranges::range_value_t<B>>::value};
}
template <Range B>
Memory write(B&& buffer) {
  return {static_cast<void*>(std::ranges::data(buffer)), int64_t(std::ranges::size(buffer)),
          dtype_of<std::ranges::range_value_t<B>>::value};
}

struct GroupCall {
  Collective kind;
  Memory in, out;
  ReduceOp op = ReduceOp::SUM;
  int root = -1;  // or the peer of send and recv
  int64_t tag = 0;
};

inline GroupCall call(Collective kind, const Memory& in, const Memory& out,
                      ReduceOp op = ReduceOp::SUM, int root = -1, int64_t tag = 0) {
  return {kind, in, out, op, root, tag};
}
inline GroupCall in_place(Collective kind, const Memory& data, ReduceOp op, int root = -1) {
  return {kind, data, data, op, root};
}

class GroupImpl;
struct GroupAccess;

}  // namespace detail

// An operation that goes on in the background. A value; copies stand for the same operation.
class Work {
 public:
  Work() = default;
  // Returns when the operation is done; on GPUs, what this thread enqueues from here on comes after
  // it. Throws its error, every time it is asked.
  void wait();
  bool done() const;

 private:
  friend class detail::GroupImpl;
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

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

  int rank() const;
  int size() const;
  // Among the ranks of the group that are on this rank's host; threads are on one.
  int local_rank() const;
  int local_size() const;
  std::string_view backend() const;  // "in_process", "shm", "tcp", "ucx", "mpi"

  // The ranks that give the same color become a group, in the order of key, then of rank.
  Group split(int color, int key) const;

  // Fails the group for all its ranks: the call they are in, and every later one, throws
  // AbortedError "rank 1 failed: REASON". In a job, all groups that hold this rank. Returns when
  // that is known, after a second at most.
  void abort(const std::string& reason) const;

  // Memory that all ranks of the group can reach: collectives on it save the copies on the way. Not
  // a collective itself.
  Tensor empty(const Shape& shape, DType dtype) const;

  // Each element becomes the combination of that element on all ranks.
  template <detail::Writable B>
  void all_reduce(B&& data, ReduceOp op, const Options& options = {}) const {
    run(detail::in_place(detail::Collective::all_reduce, detail::write(data), op), options);
  }
  template <detail::Readable In, detail::Writable Out>
  void all_reduce(const In& in, Out&& out, ReduceOp op, const Options& options = {}) const {
    run(detail::call(detail::Collective::all_reduce, detail::read(in), detail::write(out), op),
        options);
  }
  // A list of tensors, of any dtypes and shapes, as one operation.
  void all_reduce(std::span<const Tensor> tensors, ReduceOp op, const Options& options = {}) const;

  // As all_reduce, for `root` alone; the data of the others stays as it is.
  template <detail::Writable B>
  void reduce(B&& data, ReduceOp op, int root, const Options& options = {}) const {
    run(detail::in_place(detail::Collective::reduce, detail::write(data), op, root), options);
  }
  template <detail::Readable In, detail::Writable Out>
  void reduce(const In& in, Out&& out, ReduceOp op, int root, const Options& options = {}) const {
    run(detail::call(detail::Collective::reduce, detail::read(in), detail::write(out), op, root),
        options);
  }

  // The data of `root` for everybody.
  template <detail::Writable B>
  void broadcast(B&& data, int root, const Options& options = {}) const {
    run(detail::in_place(detail::Collective::broadcast, detail::write(data), ReduceOp::SUM, root),
        options);
  }

  // `out` holds what all ranks have, in rank order: size() times as many elements as `in`.
  template <detail::Readable In, detail::Writable Out>
  void all_gather(const In& in, Out&& out, const Options& options = {}) const {
    run(detail::call(detail::Collective::all_gather, detail::read(in), detail::write(out)),
        options);
  }
  // The same where ranks have different numbers of elements.
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
    run(detail::call(detail::Collective::reduce_scatter, detail::read(in), detail::write(out), op),
        options);
  }

  // `in` has a part for each rank; `out` gets a part from each rank.
  template <detail::Readable In, detail::Writable Out>
  void all_to_all(const In& in, Out&& out, const Options& options = {}) const {
    run(detail::call(detail::Collective::all_to_all, detail::read(in), detail::write(out)),
        options);
  }

  // `out` matters on `root` only, and `in` of scatter too.
  template <detail::Readable In, detail::Writable Out>
  void gather(const In& in, Out&& out, int root, const Options& options = {}) const {
    run(detail::call(detail::Collective::gather, detail::read(in), detail::write(out),
                     ReduceOp::SUM, root),
        options);
  }
  template <detail::Readable In, detail::Writable Out>
  void scatter(const In& in, Out&& out, int root, const Options& options = {}) const {
    run(detail::call(detail::Collective::scatter, detail::read(in), detail::write(out),
                     ReduceOp::SUM, root),
        options);
  }

  // Returns when all ranks have called it.
  void barrier(const Options& options = {}) const {
    run(detail::call(detail::Collective::barrier, {}, {}), options);
  }

  // From one rank to another. Messages with the same tag arrive in order. A send may return before
  // the message is received, or wait for that.
  template <detail::Readable In>
  void send(const In& in, int peer, int64_t tag = 0, const Options& options = {}) const {
    run(detail::call(detail::Collective::send, detail::read(in), {}, ReduceOp::SUM, peer, tag),
        options);
  }
  template <detail::Writable Out>
  void recv(Out&& out, int peer, int64_t tag = 0, const Options& options = {}) const {
    run(detail::call(detail::Collective::recv, {}, detail::write(out), ReduceOp::SUM, peer, tag),
        options);
  }

  // In the background. The buffers belong to the operation until wait returns. Operations of one
  // group keep their order, asynchronous or not.
  template <detail::LastingWritable B>
  Work all_reduce_async(B&& data, ReduceOp op, const Options& options = {}) const {
    return start(detail::in_place(detail::Collective::all_reduce, detail::write(data), op),
                 options);
  }
  Work all_reduce_async(std::span<const Tensor> tensors, ReduceOp op,
                        const Options& options = {}) const;
  template <detail::LastingWritable B>
  Work broadcast_async(B&& data, int root, const Options& options = {}) const {
    return start(
        detail::in_place(detail::Collective::broadcast, detail::write(data), ReduceOp::SUM, root),
        options);
  }
  template <detail::LastingReadable In, detail::LastingWritable Out>
  Work all_gather_async(In&& in, Out&& out, const Options& options = {}) const {
    return start(detail::call(detail::Collective::all_gather, detail::read(in), detail::write(out)),
                 options);
  }
  template <detail::LastingReadable In, detail::LastingWritable Out>
  Work reduce_scatter_async(In&& in, Out&& out, ReduceOp op, const Options& options = {}) const {
    return start(
        detail::call(detail::Collective::reduce_scatter, detail::read(in), detail::write(out), op),
        options);
  }
  template <detail::LastingReadable In, detail::LastingWritable Out>
  Work all_to_all_async(In&& in, Out&& out, const Options& options = {}) const {
    return start(detail::call(detail::Collective::all_to_all, detail::read(in), detail::write(out)),
                 options);
  }

 private:
  friend struct detail::GroupAccess;
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
