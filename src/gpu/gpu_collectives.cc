// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_collectives.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>

#include "base/half.h"
#include "base/log.h"
#include "base/reduce_op.h"
#include "device/failure.h"

namespace tutti::group {

namespace {

using detail::GroupCall;
using detail::Memory;

constexpr size_t kGpuAlign = 256;

size_t bytes_of(const Memory& memory) { return size_t(memory.count) * size_of(memory.dtype); }
size_t aligned(size_t bytes) { return (bytes + kGpuAlign - 1) / kGpuAlign * kGpuAlign; }
std::byte* at(void* data, size_t bytes) { return static_cast<std::byte*>(data) + bytes; }
const std::byte* at(const void* data, size_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

// What the ranks of a group are to its watch.
class Ranks : public NcclLink::Others {
 public:
  explicit Ranks(Backend& backend) : backend_(backend) {}
  void check(const std::string& during) override { backend_.check(during); }
  void fail(ErrorCode code, const std::string& text) noexcept override {
    try {
      backend_.poison(code, text);
    } catch (const std::exception&) {
      // The others have their own deadline.
    }
  }
  std::string me() const override {
    return rank_name(backend_.rank(), backend_.address(backend_.rank()));
  }

 private:
  Backend& backend_;
};

template <size_t N>
void put(char (&to)[N], const std::string& text) {
  const size_t bytes = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), bytes);
  to[bytes] = 0;
}

}  // namespace

std::optional<DType> type_in_nccl(ReduceOp op, DType dtype) {
  switch (dtype) {
    case DType::boolean: return DType::uint8;  // has MIN and MAX only
    case DType::int16:
    case DType::uint16: return {};
    case DType::float16:
    case DType::bfloat16:
    case DType::float32:
    case DType::float64:
      if (base::is_selection(op)) return {};  // NCCL's lose a NaN
      return base::accumulator_of(dtype);     // rounded once, at the end
    case DType::int8:
    case DType::int32:
    case DType::int64:
    case DType::uint8:
    case DType::uint32:
    case DType::uint64:
      if (base::divides(op)) return {};  // its sum would have to be wider
      return dtype;
  }
  return {};
}

std::string why_not_nccl(std::span<const GpuHello> ranks) {
  for (size_t r = 0; r < ranks.size(); ++r)
    if (ranks[r].trouble[0]) return fmt::format("rank {}: {}", r, ranks[r].trouble);
  for (size_t r = 0; r < ranks.size(); ++r)
    for (size_t other = 0; other < r; ++other)
      if (std::strcmp(ranks[r].gpu, ranks[other].gpu) == 0)
        return fmt::format("ranks {} and {} use the same GPU ({})", other, r, ranks[r].gpu);
  return {};
}

Uses uses_of(const GroupCall& call, int rank) {
  const bool at_root = call.root == rank;
  switch (call.kind) {
    case Collective::all_reduce:
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::split: return {true, true};
    case Collective::reduce:
    case Collective::gather: return {true, at_root};
    case Collective::scatter: return {at_root, true};
    case Collective::broadcast: return {at_root, !at_root};
    case Collective::send: return {true, false};
    case Collective::recv: return {false, true};
    case Collective::barrier: break;
  }
  return {false, false};
}

// Memory of a GPU for the time of one operation, in the order of its stream.
class GpuCollectives::Scratch {
 public:
  Scratch(const GpuSupport& support, int gpu)
      : runtime_(support.runtime), gpu_(gpu), stream_(support.current_stream(gpu)) {}
  ~Scratch() {
    for (void* const block : blocks_) runtime_.deallocate(gpu_, block, stream_);
  }
  Scratch(const Scratch&) = delete;

  std::byte* take(size_t bytes) {
    blocks_.push_back(device::allocate_on_gpu(runtime_, gpu_, std::max<size_t>(bytes, 1), stream_));
    return static_cast<std::byte*>(blocks_.back());
  }

 private:
  device::GpuRuntime& runtime_;
  const int gpu_;
  const device::Stream stream_;
  std::vector<void*> blocks_;
};

// Work for the fused kernel, as one launch.
class GpuCollectives::Reductions {
 public:
  void add(ReduceOp op, DType dtype, std::vector<const void*> inputs, std::vector<void*> outputs,
           int64_t count, int64_t divisor = 1) {
    const std::vector<const void*>& from = from_.emplace_back(std::move(inputs));
    const std::vector<void*>& to = to_.emplace_back(std::move(outputs));
    list_.push_back({.inputs = from,
                     .outputs = to,
                     .count = count,
                     .dtype = dtype,
                     .op = op,
                     .divisor = divisor});
  }
  void run(const GpuSupport& support, int gpu) {
    if (!list_.empty()) support.kernels.reduce(gpu, support.current_stream(gpu), list_);
    list_.clear();
  }

 private:
  std::vector<kernels::Reduction> list_;
  std::deque<std::vector<const void*>> from_;
  std::deque<std::vector<void*>> to_;
};

// A reduction by NCCL, of the leaves of all ranks. NCCL gets one value of each rank: the sum of its
// leaves, halves widened to float32. If it cannot combine the values as our kernel does, it gathers
// all leaves instead.
class GpuCollectives::NcclReduction {
 public:
  // For `root` alone, or with -1 for all.
  NcclReduction(const GpuSupport& support, const Backend& backend, const LeafReduction& reduction,
                int gpu, int root)
      : support_(support),
        reduction_(reduction),
        op_(reduction.op),
        leaves_(int64_t(reduction.owners.size())),
        ranks_(backend.size()),
        gpu_(gpu),
        root_(root),
        wanted_(root < 0 || root == backend.rank()),
        stream_(support.current_stream(gpu)),
        scratch_(support, gpu) {}

  void run(const Enqueued& operation, NcclLink& link) {
    for (const Piece& piece : reduction_.pieces)
      if (piece.count) prepare(piece);
    if (parts_.empty()) return;
    before_.run(support_, gpu_);
    link.launch(operation, [&] {
      for (const Part& part : parts_) enqueue(part, link.communicator());
    });
    if (!wanted_) return;
    for (const Part& part : parts_) finish(part);
    after_.run(support_, gpu_);
    for (const Part& part : parts_) narrow(part);
  }

 private:
  // What NCCL gets and gives of a piece.
  struct Part {
    const Piece& piece;
    std::optional<DType> type;  // none: NCCL gathers all leaves
    const void* from;
    void* to;

    size_t bytes() const { return size_t(piece.count) * size_of(piece.dtype); }
    size_t leaf_bytes() const { return bytes() * piece.inputs.size(); }  // of this rank
    bool is_widened() const { return type && base::is_half(piece.dtype); }
  };

  void prepare(const Piece& piece) {
    Part& part =
        parts_.emplace_back(Part{piece, type_in_nccl(op_, piece.dtype), piece.inputs[0], nullptr});
    if (!part.type)
      collect_leaves(part);
    else if (part.is_widened())
      widen(part);
    else
      combine_leaves(part);
  }

  void collect_leaves(Part& part) {
    if (part.piece.inputs.size() > 1) {
      std::byte* const all = scratch_.take(part.leaf_bytes());
      for (size_t i = 0; i < part.piece.inputs.size(); ++i)
        support_.runtime.copy(gpu_, all + i * part.bytes(), part.piece.inputs[i], part.bytes(),
                              stream_);
      part.from = all;
    }
    if (wanted_) part.to = scratch_.take(part.bytes() * size_t(leaves_));
  }

  void widen(Part& part) {
    const Piece& piece = part.piece;
    std::vector<const void*> widened;
    for (const void* const input : piece.inputs) {
      part.to = scratch_.take(size_t(piece.count) * sizeof(float));
      support_.kernels.cast(gpu_, stream_, input, piece.dtype, part.to, DType::float32,
                            piece.count);
      widened.push_back(part.to);
    }
    part.from = part.to = const_cast<void*>(widened[0]);
    if (widened.size() > 1)
      before_.add(base::partial_op(op_), DType::float32, widened, {part.to}, piece.count);
  }

  void combine_leaves(Part& part) {
    const Piece& piece = part.piece;
    part.to = wanted_ && !piece.outputs.empty() ? piece.outputs[0] : scratch_.take(part.bytes());
    if (piece.inputs.size() == 1) return;
    before_.add(base::partial_op(op_), piece.dtype, {piece.inputs.begin(), piece.inputs.end()},
                {part.to}, piece.count);
    part.from = part.to;
  }

  void enqueue(const Part& part, NcclCommunicator& nccl) const {
    const ReduceOp op = base::partial_op(op_);
    const size_t bytes = part.leaf_bytes();
    if (part.type && root_ < 0)
      nccl.all_reduce(part.from, part.to, part.piece.count, *part.type, op, stream_);
    else if (part.type)
      nccl.reduce(part.from, part.to, part.piece.count, *part.type, op, root_, stream_);
    else if (root_ < 0)
      nccl.all_gather(part.from, part.to, bytes, stream_);
    else if (!wanted_)
      nccl.send(part.from, bytes, root_, stream_);
    else
      for (int r = 0; r < ranks_; ++r)
        if (r != root_) nccl.recv(at(part.to, bytes * size_t(r)), bytes, r, stream_);
  }

  void finish(const Part& part) {
    const Piece& piece = part.piece;
    const std::vector<void*> outputs(piece.outputs.begin(), piece.outputs.end());
    if (!part.type) {
      const size_t own = part.leaf_bytes();
      if (root_ >= 0)
        support_.runtime.copy(gpu_, at(part.to, own * size_t(root_)), part.from, own, stream_);
      std::vector<const void*> all;
      for (int64_t i = 0; i < leaves_; ++i) all.push_back(at(part.to, part.bytes() * size_t(i)));
      after_.add(op_, piece.dtype, std::move(all), outputs, piece.count, leaves_);
    } else if (part.is_widened()) {
      if (base::divides(op_))
        after_.add(op_, DType::float32, {part.to}, {part.to}, piece.count, leaves_);
    } else if (base::divides(op_) || outputs.size() > 1) {
      after_.add(op_, piece.dtype, {part.to}, outputs, piece.count, leaves_);
    }
  }

  void narrow(const Part& part) {
    if (!part.is_widened()) return;
    for (void* const output : part.piece.outputs)
      support_.kernels.cast(gpu_, stream_, part.to, DType::float32, output, part.piece.dtype,
                            part.piece.count);
  }

  const GpuSupport& support_;
  const LeafReduction& reduction_;
  const ReduceOp op_;
  const int64_t leaves_;
  const int ranks_, gpu_, root_;
  const bool wanted_;
  const device::Stream stream_;
  Scratch scratch_;
  std::vector<Part> parts_;
  Reductions before_, after_;
};

std::byte* GpuCollectives::Pinned::get(size_t bytes) {
  if (bytes > size_ || !data_) {
    clear();
    data_ = runtime_.allocate_pinned(std::max<size_t>(bytes, 1));
    size_ = bytes;
  }
  return static_cast<std::byte*>(data_);
}

GpuCollectives::GpuCollectives(Backend& backend, const GpuSupport& support, bool required)
    : backend_(backend),
      support_(support),
      required_(required),
      for_collectives_(support.runtime),
      for_sends_(support.runtime),
      for_recvs_(support.runtime) {}

GpuCollectives::~GpuCollectives() = default;

NcclLink* GpuCollectives::link_for(const GpuOperation& operation, std::span<const Piece> list) {
  if (through_host_ || operation.what.route != Route::gpu) return nullptr;
  int64_t mine = operation.gpu;
  std::vector<int64_t> all(size_t(backend_.size()));
  backend_.run(operation.what,
               {Collective::all_gather,
                {&mine, 1, DType::int64},
                {all.data(), int64_t(all.size()), DType::int64}},
               operation.timeouts, list);
  const std::vector<int> gpus(all.begin(), all.end());
  if (const auto found = links_.find(gpus); found != links_.end()) return found->second.get();
  return connect(operation, gpus);
}

std::string GpuCollectives::why_not_nccl(const GpuOperation& operation) {
  // Two processes may share a GPU if NCCL takes them to be on two hosts.
  const char* const host = std::getenv("NCCL_HOSTID");
  GpuHello mine{};
  put(mine.gpu, support_.runtime.identity(operation.gpu) +
                    (host && *host ? fmt::format(", NCCL_HOSTID {}", host) : ""));
  if (!support_.nccl()) put(mine.trouble, support_.why_no_nccl());
  std::vector<GpuHello> all(size_t(backend_.size()));
  const Description hello{.kind = Collective::all_gather,
                          .dtype = DType::uint8,
                          .extents = {sizeof(GpuHello)},
                          .others = Description::kGpus};
  backend_.run(hello,
               {Collective::all_gather,
                {&mine, sizeof(GpuHello), DType::uint8},
                {all.data(), int64_t(all.size() * sizeof(GpuHello)), DType::uint8}},
               operation.timeouts);
  return group::why_not_nccl(all);
}

std::string GpuCollectives::unique_id(const GpuOperation& operation) {
  std::array<char, 256> told{};
  if (backend_.rank() == 0) {
    const std::string id = support_.nccl()->unique_id();
    told[0] = char(id.size());
    std::ranges::copy(id, told.begin() + 1);
  }
  const Description naming{.kind = Collective::broadcast,
                           .dtype = DType::uint8,
                           .root = 0,
                           .extents = {int64_t(told.size())},
                           .others = Description::kGpus};
  const Memory memory{told.data(), int64_t(told.size()), DType::uint8};
  backend_.run(naming, detail::in_place(Collective::broadcast, memory, ReduceOp::SUM, 0),
               operation.timeouts);
  return {told.data() + 1, uint8_t(told[0])};
}

NcclLink* GpuCollectives::connect(const GpuOperation& operation, const std::vector<int>& gpus) {
  if (const std::string why = why_not_nccl(operation); !why.empty()) {
    if (required_)
      throw UnavailableError(
          fmt::format("\"nccl\" needs a GPU of its own for every rank: {}; unset "
                      "TUTTI_BACKEND=nccl to go through host memory",
                      why));
    base::log_once(base::LogLevel::warning,
                   fmt::format("\"nccl\" needs a GPU of its own for every rank: {}; falling back "
                               "to host memory, by the group's own way",
                               why));
    through_host_ = true;
    return nullptr;
  }

  const std::string id = unique_id(operation);
  auto others = std::make_unique<Ranks>(backend_);
  NcclCommunicators communicators;
  try {
    communicators.push_back(support_.nccl()->open(id, backend_.rank(), backend_.size(),
                                                  operation.gpu,
                                                  still_wanted(operation, others.get())));
  } catch (const UnavailableError&) {
    await_reason([&] { others->check(described(operation.what, operation.number)); });
    throw;
  }
  std::unique_ptr<NcclLink>& link = links_[gpus];
  link = std::make_unique<NcclLink>(support_, std::move(communicators), std::vector{operation.gpu},
                                    std::move(others));
  return link.get();
}

void GpuCollectives::wait_for_gpu(int gpu) {
  support_.runtime.synchronize(gpu, support_.current_stream(gpu));
  device::throw_failure(gpu);
}

void GpuCollectives::copy(const GpuOperation& operation, void* to, const void* from, size_t bytes) {
  if (bytes)
    support_.runtime.copy(operation.gpu, to, from, bytes, support_.current_stream(operation.gpu));
}

void GpuCollectives::run(const GpuOperation& operation, const GroupCall& call) {
  if (call.kind == Collective::send || call.kind == Collective::recv)
    return staged(operation, call);
  if (backend_.size() == 1) return alone(operation, call);
  if (NcclLink* const link = link_for(operation)) return by_nccl(operation, call, *link);
  staged(operation, call);
}

void GpuCollectives::all_reduce(const GpuOperation& operation, const LeafReduction& reduction) {
  if (backend_.size() == 1) {
    Reductions work;
    for (const Piece& piece : reduction.pieces)
      if (piece.count)
        work.add(reduction.op, piece.dtype, {piece.inputs.begin(), piece.inputs.end()},
                 {piece.outputs.begin(), piece.outputs.end()}, piece.count,
                 int64_t(reduction.owners.size()));
    return work.run(support_, operation.gpu);
  }
  if (NcclLink* const link = link_for(operation, reduction.pieces))
    return NcclReduction(support_, backend_, reduction, operation.gpu, -1).run(operation, *link);
  staged(operation, reduction);
}

// The one rank has it all.
void GpuCollectives::alone(const GpuOperation& operation, const GroupCall& call) {
  if (call.in.data == call.out.data || call.in.count == 0) return;
  Reductions work;
  work.add(call.op, call.in.dtype, {call.in.data}, {call.out.data}, call.in.count);
  const bool combines = call.kind == Collective::all_reduce || call.kind == Collective::reduce ||
                        call.kind == Collective::reduce_scatter;
  if (combines) return work.run(support_, operation.gpu);
  support_.runtime.copy(operation.gpu, call.out.data, call.in.data, bytes_of(call.in),
                        support_.current_stream(operation.gpu));
}

void GpuCollectives::staged(const GpuOperation& operation, const GroupCall& call) {
  const Uses uses = uses_of(call, backend_.rank());
  const bool in_place = call.in.data == call.out.data;
  Pinned& memory = call.kind == Collective::send   ? for_sends_
                   : call.kind == Collective::recv ? for_recvs_
                                                   : for_collectives_;
  const size_t in_bytes = aligned(bytes_of(call.in)), out_bytes = bytes_of(call.out);
  // In place, the input of a gather is the first part of its output.
  std::byte* const buffer =
      memory.get(in_place ? std::max(in_bytes, out_bytes) : in_bytes + out_bytes);
  GroupCall host = call;
  host.in = {buffer, call.in.count, call.in.dtype};
  host.out = {in_place ? buffer : buffer + in_bytes, call.out.count, call.out.dtype};
  if (uses.in) {
    copy(operation, host.in.data, call.in.data, bytes_of(call.in));
    wait_for_gpu(operation.gpu);
  }
  backend_.run(operation.what, host, operation.timeouts);
  if (!uses.out) return;
  copy(operation, call.out.data, host.out.data, bytes_of(call.out));
  wait_for_gpu(operation.gpu);  // the buffer is for the next
}

void GpuCollectives::staged(const GpuOperation& operation, const LeafReduction& reduction) {
  size_t bytes = 0;
  for (const Piece& piece : reduction.pieces)
    bytes += aligned(size_t(piece.count) * size_of(piece.dtype)) * piece.inputs.size() +
             aligned(size_t(piece.count) * size_of(result_dtype(reduction.op, piece.dtype)));
  std::byte* next = for_collectives_.get(bytes);
  const auto take = [&](size_t size) { return std::exchange(next, next + aligned(size)); };

  std::deque<std::vector<const void*>> inputs;
  std::deque<void*> outputs;
  std::vector<Piece> pieces;
  for (const Piece& piece : reduction.pieces) {
    const size_t size = size_t(piece.count) * size_of(piece.dtype);
    std::vector<const void*>& from = inputs.emplace_back();
    for (const void* const input : piece.inputs) {
      std::byte* const to = take(size);
      copy(operation, to, input, size);
      from.push_back(to);
    }
    outputs.push_back(take(size_t(piece.count) * size_of(result_dtype(reduction.op, piece.dtype))));
    pieces.push_back({from,
                      {&outputs.back(), size_t(piece.outputs.empty() ? 0 : 1)},
                      piece.count,
                      piece.dtype,
                      piece.shape,
                      piece.number});
  }
  wait_for_gpu(operation.gpu);
  backend_.all_reduce(operation.what, {pieces, reduction.owners, reduction.op}, operation.timeouts);
  for (size_t i = 0; i < pieces.size(); ++i)
    for (void* const output : reduction.pieces[i].outputs)
      copy(operation, output, outputs[i],
           size_t(pieces[i].count) * size_of(result_dtype(reduction.op, pieces[i].dtype)));
  wait_for_gpu(operation.gpu);
}

// reduce_scatter: every rank gets its part of the combination.
void GpuCollectives::scatter_by_nccl(const GpuOperation& operation, const GroupCall& call,
                                     NcclLink& link) {
  const int gpu = operation.gpu, n = backend_.size();
  const device::Stream stream = support_.current_stream(gpu);
  const int64_t count = call.in.count / n;
  const size_t bytes = size_t(count) * size_of(call.in.dtype);
  const std::optional<DType> type = type_in_nccl(call.op, call.in.dtype);
  NcclCommunicator& nccl = link.communicator();
  Scratch scratch(support_, gpu);
  Reductions after;
  if (!type) {
    std::byte* const parts = scratch.take(bytes * size_t(n));
    const Memory all_parts{parts, call.in.count, call.in.dtype};
    exchange_by_nccl(operation, {Collective::all_to_all, call.in, all_parts}, link);
    std::vector<const void*> all;
    for (int r = 0; r < n; ++r) all.push_back(parts + bytes * size_t(r));
    after.add(call.op, call.in.dtype, std::move(all), {call.out.data}, count, n);
    return after.run(support_, gpu);
  }
  const bool wide = base::is_half(call.in.dtype);
  const void* from = call.in.data;
  void* to = call.out.data;
  if (wide) {
    std::byte* const widened = scratch.take(size_t(call.in.count) * sizeof(float));
    support_.kernels.cast(gpu, stream, from, call.in.dtype, widened, *type, call.in.count);
    from = widened;
    to = scratch.take(size_t(count) * sizeof(float));
  }
  link.launch(operation, [&] {
    nccl.reduce_scatter(from, to, count, *type, base::partial_op(call.op), stream);
  });
  if (base::divides(call.op)) after.add(call.op, *type, {to}, {to}, count, n);
  after.run(support_, gpu);
  if (wide) support_.kernels.cast(gpu, stream, to, *type, call.out.data, call.out.dtype, count);
}

// gather, scatter and all_to_all: messages between pairs of ranks. A rank's own part is copied.
void GpuCollectives::exchange_by_nccl(const GpuOperation& operation, const GroupCall& call,
                                      NcclLink& link) {
  const int gpu = operation.gpu, n = backend_.size(), me = backend_.rank(), root = call.root;
  const device::Stream stream = support_.current_stream(gpu);
  NcclCommunicator& nccl = link.communicator();
  const bool sends = call.kind != Collective::scatter || me == root;
  const bool receives = call.kind != Collective::gather || me == root;
  const size_t part = call.kind == Collective::gather    ? bytes_of(call.in)
                      : call.kind == Collective::scatter ? bytes_of(call.out)
                                                         : bytes_of(call.in) / size_t(n);
  if (!part) return;
  // One part for each rank, or one alone.
  const size_t in_step = call.kind == Collective::gather ? 0 : part;
  const size_t out_step = call.kind == Collective::scatter ? 0 : part;
  const auto is_peer = [&](int from, int to) {
    return from != to && (call.kind == Collective::gather    ? to == root
                          : call.kind == Collective::scatter ? from == root
                                                             : true);
  };
  Scratch scratch(support_, gpu);
  const void* from = call.in.data;
  if (call.kind == Collective::all_to_all && from == call.out.data) {
    std::byte* const kept = scratch.take(bytes_of(call.in));
    support_.runtime.copy(gpu, kept, from, bytes_of(call.in), stream);
    from = kept;
  }
  link.launch(operation, [&] {
    for (int r = 0; r < n; ++r) {
      if (is_peer(me, r)) nccl.send(at(from, in_step * size_t(r)), part, r, stream);
      if (is_peer(r, me)) nccl.recv(at(call.out.data, out_step * size_t(r)), part, r, stream);
    }
  });
  if (!sends || !receives) return;
  void* const own = at(call.out.data, out_step * size_t(me));
  if (const void* const mine = at(from, in_step * size_t(me)); own != mine)
    support_.runtime.copy(gpu, own, mine, part, stream);
}

void GpuCollectives::by_nccl(const GpuOperation& operation, const GroupCall& call, NcclLink& link) {
  const device::Stream stream = support_.current_stream(operation.gpu);
  NcclCommunicator& nccl = link.communicator();
  const size_t in_bytes = bytes_of(call.in), out_bytes = bytes_of(call.out);
  switch (call.kind) {
    case Collective::all_reduce:
    case Collective::reduce: {
      const void* const in = call.in.data;
      void* const out = call.out.data;
      const Piece piece{{&in, 1}, {&out, 1}, call.in.count, call.in.dtype};
      std::vector<int> owners(size_t(backend_.size()), 0);
      std::iota(owners.begin(), owners.end(), 0);
      const LeafReduction reduction{{&piece, 1}, owners, call.op};
      const int root = call.kind == Collective::reduce ? call.root : -1;
      return NcclReduction(support_, backend_, reduction, operation.gpu, root).run(operation, link);
    }
    case Collective::reduce_scatter:
      if (in_bytes) scatter_by_nccl(operation, call, link);
      return;
    case Collective::broadcast:
      if (out_bytes)
        link.launch(operation,
                    [&] { nccl.broadcast(call.out.data, out_bytes, call.root, stream); });
      return;
    case Collective::all_gather:
      if (in_bytes)
        link.launch(operation,
                    [&] { nccl.all_gather(call.in.data, call.out.data, in_bytes, stream); });
      return;
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all: return exchange_by_nccl(operation, call, link);
    case Collective::barrier:
    case Collective::send:
    case Collective::recv:
    case Collective::split: break;
  }
  throw InternalError(fmt::format("{}: not an operation on GPUs", name(call.kind)));
}

void GpuCollectives::all_gather_uneven(const GpuOperation& operation, const Memory& in,
                                       const Memory& out, std::span<const int64_t> counts) {
  const size_t element = size_of(in.dtype);
  const int me = backend_.rank(), n = backend_.size();
  const device::Stream stream = support_.current_stream(operation.gpu);
  std::vector<size_t> begins;
  size_t total = 0;
  for (const int64_t count : counts)
    begins.push_back(std::exchange(total, total + size_t(count) * element));
  NcclLink* const link = n > 1 ? link_for(operation) : nullptr;
  if (n > 1 && !link) {
    std::byte* const buffer = for_collectives_.get(aligned(bytes_of(in)) + total);
    copy(operation, buffer, in.data, bytes_of(in));
    wait_for_gpu(operation.gpu);
    const Memory host_in{buffer, in.count, in.dtype};
    const Memory host_out{buffer + aligned(bytes_of(in)), out.count, out.dtype};
    backend_.all_gather_uneven(operation.what, host_in, host_out, counts, operation.timeouts);
    copy(operation, out.data, host_out.data, total);
    return wait_for_gpu(operation.gpu);
  }
  if (link && total)
    link->launch(operation, [&] {
      for (int r = 0; r < n; ++r) {
        if (r == me) continue;
        const size_t theirs = size_t(counts[size_t(r)]) * element;
        if (in.count) link->communicator().send(in.data, bytes_of(in), r, stream);
        if (theirs) link->communicator().recv(at(out.data, begins[size_t(r)]), theirs, r, stream);
      }
    });
  if (in.count)
    support_.runtime.copy(operation.gpu, at(out.data, begins[size_t(me)]), in.data, bytes_of(in),
                          stream);
}

}  // namespace tutti::group
