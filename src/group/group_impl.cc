// SPDX-License-Identifier: Apache-2.0
#include "group/group_impl.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"
#include "job/job.h"
#include "observe/timeline.h"
#include "tensor/tensor_impl.h"

namespace tutti::detail {

using group::Collective;
using group::Description;
using group::Timeouts;

namespace {

[[noreturn]] void invalid(Collective kind, const std::string& why) {
  throw InvalidArgumentError(fmt::format("{}: {}", group::name(kind), why));
}

std::string text_of(const Memory& memory) {
  if (memory.tensor)
    return fmt::format("{}{}", name(memory.dtype), memory.tensor->shape().to_string());
  return fmt::format("{}[{}]", name(memory.dtype), memory.count);
}

void set_shape(Description& what, const Memory& memory) {
  what.dtype = memory.dtype;
  what.rank = 1;
  what.extents = {memory.count};
  if (!memory.tensor) return;
  const Shape& shape = memory.tensor->shape();
  what.rank = uint32_t(shape.rank());
  if (shape.rank() <= what.extents.size()) std::ranges::copy(shape, what.extents.begin());
}

int64_t bytes_of(const Memory& memory) { return memory.count * int64_t(size_of(memory.dtype)); }

int64_t bytes_of(const GroupCall& call) { return std::max(bytes_of(call.in), bytes_of(call.out)); }

int64_t bytes_of(std::span<const group::Piece> pieces) {
  int64_t bytes = 0;
  for (const group::Piece& piece : pieces)
    bytes += piece.count * int64_t(size_of(piece.dtype)) *
             int64_t(std::max(piece.inputs.size(), piece.outputs.size()));
  return bytes;
}

Timeouts timeouts_of(const CommunicationOptions& options) {
  const base::Settings& settings = base::settings();
  return {options.timeout.value_or(settings.timeout), settings.warn_after};
}

// The GPU that holds it; -1: host memory.
int gpu_of(const Memory& memory) {
  return memory.tensor ? TensorAccess::device(*memory.tensor).gpu() : -1;
}

[[noreturn]] void on_two_devices(Collective kind, const Tensor* one, const Tensor* other) {
  const auto text = [](const Tensor* tensor) {
    return tensor ? fmt::format("on {}", tensor->device()) : "in host memory";
  };
  invalid(kind, fmt::format("one buffer is {} and another {}; those of one call lie in one memory",
                            text(one), text(other)));
}

int gpu_of(const GroupCall& call, int rank) {
  const int in = gpu_of(call.in), out = gpu_of(call.out);
  if (in < 0 && out < 0) return -1;
  const group::Uses uses = group::uses_of(call, rank);
  if (uses.in && uses.out && in != out) on_two_devices(call.kind, call.in.tensor, call.out.tensor);
  return uses.in ? in : out;
}

group::Route route_of(int gpu, const CommunicationOptions& options) {
  if (gpu < 0) return group::Route::host;
  return options.implementation == CommunicationImplementation::RING ? group::Route::gpu_by_host
                                                                     : group::Route::gpu;
}

// Two buffers of one call may be the same from `allowed` on, or must lie apart.
void check_apart(Collective kind, const Memory& in, const Memory& out, int64_t allowed) {
  const auto* const a = static_cast<const std::byte*>(in.data);
  const auto* const b = static_cast<const std::byte*>(out.data);
  if (a == b && in.dtype == out.dtype && allowed == 0) return;
  const size_t a_bytes = size_t(in.count) * size_of(in.dtype);
  const size_t b_bytes = size_t(out.count) * size_of(out.dtype);
  if (!a_bytes || !b_bytes || a + a_bytes <= b || b + b_bytes <= a) return;
  const bool same = kind == Collective::all_gather || kind == Collective::gather
                        ? a == b + allowed * int64_t(size_of(out.dtype))
                        : b == a + allowed * int64_t(size_of(in.dtype));
  if (!same || in.dtype != out.dtype)
    invalid(kind, fmt::format("the input {} and the output {} overlap", text_of(in), text_of(out)));
}

// What the root of a call stands for; null: it has none.
const char* meaning_of_root(Collective kind) {
  switch (kind) {
    case Collective::reduce:
    case Collective::broadcast:
    case Collective::gather:
    case Collective::scatter: return "root";
    case Collective::send:
    case Collective::recv: return "peer";
    case Collective::all_reduce:
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::barrier:
    case Collective::split: break;
  }
  return nullptr;
}

void check_root(const GroupCall& call, int rank, int size) {
  const char* const meaning = meaning_of_root(call.kind);
  if (!meaning) return;
  if (call.root < 0 || call.root >= size)
    invalid(call.kind, fmt::format("{} is {}, expected 0 to {}", meaning, call.root, size - 1));
  const bool is_between_two = call.kind == Collective::send || call.kind == Collective::recv;
  if (is_between_two && call.root == rank)
    invalid(call.kind, fmt::format("rank {} is this rank", rank));
}

void expect_output(const GroupCall& call, DType dtype) {
  if (call.out.dtype != dtype)
    invalid(call.kind, fmt::format("the output is {}, expected {} for an input of {}{}",
                                   name(call.out.dtype), name(dtype), name(call.in.dtype),
                                   call.in.data == call.out.data ? " (SUM works in place)" : ""));
}

// The elements of the input and of the output are to each other as these are.
struct Parts {
  int64_t in, out;
};
void expect_parts(const GroupCall& call, int size, Parts parts) {
  if (call.in.count * parts.out != call.out.count * parts.in)
    invalid(call.kind,
            fmt::format("the input is {} and the output {}, expected {} times as many "
                        "elements in the {}, for {} ranks",
                        text_of(call.in), text_of(call.out), std::max(parts.in, parts.out),
                        parts.in > parts.out ? "input" : "output", size));
}

void check_counts(const GroupCall& call, std::span<const int64_t> counts, int rank) {
  int64_t total = 0, before = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    if (int(r) == rank) before = total;
    if (counts[r] < 0 || __builtin_add_overflow(total, counts[r], &total))
      invalid(call.kind, fmt::format("the counts are {}, expected numbers of elements",
                                     fmt::join(counts, ", ")));
  }
  if (call.in.count != counts[size_t(rank)] || call.out.count != total)
    invalid(call.kind,
            fmt::format("the input is {} and the output {}, expected {} and {} elements by the "
                        "counts {} of all ranks",
                        text_of(call.in), text_of(call.out), counts[size_t(rank)], total,
                        fmt::join(counts, ", ")));
  expect_output(call, call.in.dtype);
  check_apart(call.kind, call.in, call.out, before);
}

// Checks all that one rank can check, and says what the others must agree with.
Description checked(const GroupCall& call, int rank, int size) {
  const Collective kind = call.kind;
  const Memory &in = call.in, &out = call.out;
  check_root(call, rank, size);
  Description what{.kind = kind, .op = call.op, .root = call.root};
  const bool at_root = call.root == rank;
  switch (kind) {
    case Collective::barrier: break;
    case Collective::all_reduce:
    case Collective::reduce:
      set_shape(what, in);
      expect_output(call, result_dtype(call.op, in.dtype));
      if (kind == Collective::reduce && !at_root) break;
      if (in.count != out.count)
        invalid(kind, fmt::format("the input is {} and the output {}, expected as many elements",
                                  text_of(in), text_of(out)));
      check_apart(kind, in, out, 0);
      break;
    case Collective::broadcast: set_shape(what, out); break;
    case Collective::all_gather:
    case Collective::split:
    case Collective::gather:
      set_shape(what, in);
      if (kind == Collective::gather && !at_root) break;
      expect_output(call, in.dtype);
      expect_parts(call, size, {.in = 1, .out = size});
      check_apart(kind, in, out, rank * in.count);
      break;
    case Collective::reduce_scatter:
      set_shape(what, in);
      expect_output(call, result_dtype(call.op, in.dtype));
      expect_parts(call, size, {.in = size, .out = 1});
      check_apart(kind, in, out, rank * out.count);
      break;
    case Collective::all_to_all:
      set_shape(what, in);
      expect_output(call, in.dtype);
      if (in.count != out.count || in.count % size)
        invalid(kind, fmt::format("the input is {} and the output {}, expected as many elements in "
                                  "both, a multiple of {} ranks",
                                  text_of(in), text_of(out), size));
      check_apart(kind, in, out, 0);
      break;
    case Collective::scatter:
      set_shape(what, out);
      if (!at_root) break;
      expect_output(call, in.dtype);
      expect_parts(call, size, {.in = size, .out = 1});
      check_apart(kind, in, out, rank * out.count);
      break;
    case Collective::send: set_shape(what, in); break;
    case Collective::recv: set_shape(what, out); break;
  }
  return what;
}

}  // namespace

std::shared_ptr<GroupImpl> GroupImpl::make(std::unique_ptr<group::Backend> backend,
                                           int stragglers) {
  return {new GroupImpl(std::move(backend), stragglers), [](GroupImpl* impl) {
            if (!impl->in_job_ || !base::is_forked_child()) delete impl;
          }};
}

void GroupImpl::refuse_child(std::string_view operation) const {
  if (in_job_) throw FailedPreconditionError(fmt::format("{}: {}", operation, group::kForkedChild));
}

GroupImpl::~GroupImpl() {
  // One that is under way ends at once, rather than at its deadline.
  queue_->close([&] {
    backend_->poison(
        ErrorCode::aborted,
        fmt::format("rank {} left the group while an operation was under way", rank()));
  });
}

void GroupImpl::explain(const Error& error, const group::Record& record) {
  if (const std::string& folder = base::settings().record_dir; !folder.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    const std::string file = fmt::format("{}/tutti-record-rank{}-{}.txt", folder, rank(), getpid());
    // Other groups of this process write here, too.
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || !base::write_all(fd, fmt::format("{}\n\nthe last operations, in coordinated "
                                                   "universal time\n{}",
                                                   error.what(), record.all())))
      base::log_once(base::LogLevel::warning, fmt::format("TUTTI_RECORD_DIR: cannot write {}: {}",
                                                          file, base::why_not_written(errno)));
    if (fd >= 0) close(fd);
  }
  throw_error(error.code(), fmt::format("{}\n  the last operations of rank {}: {}", error.what(),
                                        rank(), record.last(8)));
}

// The service hears of an error of an operation before others speak of it.
void GroupImpl::tell_of(ErrorCode code, const std::string& text, const Description& what) {
  const std::optional<cluster::Failure> failure = backend_->failure();
  const bool of_group = failure && failure->text == text;
  group::report_failure({of_group ? failure->rank : -1, code, text});
  // The others cannot be matched any more. An error that came from them is there already.
  backend_->poison(code, fmt::format("{}: rank {}: {}", group::name(what.kind), rank(), text));
}

template <class F>
void GroupImpl::recorded(group::Record& record, const Step& step, const F& operation) {
  const Description& what = step.what;
  observe::Span span(group::name(what.kind).data());
  record.begin(what);
  if (span) {
    span.set("operation", int64_t(record.number()));
    span.set("bytes", step.bytes);
    span.set("what", what.to_string());
    span.set("rank", rank());
    span.set("ranks", size());
    span.set("backend", backend_->name());
  }
  // A collective on GPUs may use the backend for a little of its own.
  const bool chooses = &record == &collectives_ && what.route == group::Route::host;
  const auto note_way = [&] {
    if (!chooses) return;
    record.set_way(way_);
    if (span && way_ != group::Way::only) span.set("way", std::string(group::name(way_)));
  };
  try {
    operation();
  } catch (const Error& error) {
    note_way();
    tell_of(error.code(), error.what(), what);
    explain(error, record);
  } catch (const std::exception& error) {
    tell_of(ErrorCode::internal, error.what(), what);
    throw;
  }
  note_way();
  record.end();
}

template <class F>
void GroupImpl::collective(const Step& step, const F& operation) {
  std::lock_guard lock(collective_);
  if (!stragglers_.every()) return recorded(collectives_, step, operation);
  const auto began = group::Stragglers::Clock::now();
  recorded(collectives_, step, operation);
  if (stragglers_.add(began, group::Stragglers::Clock::now())) compare_stragglers();
}

// An operation of its own, after the same one on all ranks.
void GroupImpl::compare_stragglers() {
  int64_t mine = stragglers_.spent().count();
  std::vector<int64_t> all(static_cast<size_t>(size()));
  const Description what{.kind = Collective::all_gather,
                         .dtype = DType::int64,
                         .extents = {1},
                         .others = Description::kStragglers};
  const GroupCall call{
      what.kind, {&mine, 1, what.dtype}, {all.data(), int64_t(all.size()), what.dtype}};
  recorded(collectives_, {what, bytes_of(call)},
           [&] { backend_->run(what, call, timeouts_of({})); });
  const auto time = stragglers_.restart(group::Stragglers::Clock::now());
  if (rank() != 0) return;
  const group::Straggler found = group::straggler(all, time);
  const std::string address = found.rank < 0 ? "" : backend_->address(found.rank);
  const std::string name = group::rank_name(found.rank, address);
  base::log(found.rank < 0 ? base::LogLevel::info : base::LogLevel::warning,
            group::described(found, name, stragglers_.every()));
}

// Operations that were started in the background go first.
template <class F>
void GroupImpl::in_order(const Step& step, const F& operation) {
  expect_own_process(group::name(step.what.kind));
  const auto run = [&] { collective(step, operation); };
  if (queue_->is_free()) return run();
  queue_->run(run);
}

group::GpuCollectives& GroupImpl::on_gpus() {
  std::call_once(gpus_used_, [&] {
    on_gpus_ = std::make_unique<group::GpuCollectives>(*backend_, group::gpu_support(),
                                                       base::settings().backend == "nccl");
  });
  return *on_gpus_;
}

void GroupImpl::perform(const Description& what, int gpu, const GroupCall& call, Timeouts timeouts,
                        const group::Record& record) {
  if (gpu < 0) return backend_->run(what, call, timeouts);
  on_gpus().run({{what, record.number(), timeouts}, gpu}, call);
}

void GroupImpl::perform(const Description& what, const group::LeafReduction& reduction,
                        Timeouts timeouts) {
  if (reduction.gpu < 0) return backend_->all_reduce(what, reduction, timeouts);
  on_gpus().all_reduce({{what, collectives_.number(), timeouts}, reduction.gpu}, reduction);
}

void GroupImpl::run(const GroupCall& call, const CommunicationOptions& options) {
  if (options.bytes_per_pack != 0 || options.timeout ||
      options.implementation != CommunicationImplementation::AUTO)
    options.validate(group::name(call.kind));
  Description what = checked(call, rank(), size());
  const int gpu = gpu_of(call, rank());
  const Timeouts timeouts = timeouts_of(options);
  const Step step{what, bytes_of(call)};
  expect_own_process(group::name(call.kind));
  // `what.route` stays `host`: the peer's side of a message may be in host memory.
  if (call.kind == Collective::send) {
    std::lock_guard lock(sending_);
    return recorded(sent_, step, [&] { perform(what, gpu, call, timeouts, sent_); });
  }
  if (call.kind == Collective::recv) {
    std::lock_guard lock(receiving_);
    return recorded(received_, step, [&] { perform(what, gpu, call, timeouts, received_); });
  }
  what.route = route_of(gpu, options);
  in_order(step, [&] { perform(what, gpu, call, timeouts, collectives_); });
}

Work GroupImpl::start(const GroupCall& call, const CommunicationOptions& options) {
  expect_own_process(group::name(call.kind));
  options.validate(group::name(call.kind));
  Description what = checked(call, rank(), size());
  const int gpu = gpu_of(call, rank());
  what.route = route_of(gpu, options);
  // The caller's handles may be gone before the operation is done.
  const auto handle = [](const Memory& memory) {
    return memory.tensor ? *memory.tensor : Tensor();
  };
  return queue_->start([this, what, gpu, call = GroupCall(call), in = handle(call.in),
                        out = handle(call.out), timeouts = timeouts_of(options)]() mutable {
    call.in.tensor = in ? &in : nullptr;
    call.out.tensor = out ? &out : nullptr;
    collective({what, bytes_of(call)}, [&] { perform(what, gpu, call, timeouts, collectives_); });
  });
}

namespace {

// A list of tensors, as the leaves of one reduction.
struct TensorList {
  TensorList(std::span<const Tensor> list, ReduceOp op, int size,
             const CommunicationOptions& options)
      : tensors(list.begin(), list.end()) {
    what = {.kind = Collective::all_reduce, .op = op, .tensors = uint32_t(list.size())};
    for (const Tensor& tensor : tensors) {
      const Memory memory = write(tensor);
      if (inputs.empty()) gpu = gpu_of(memory);
      if (gpu_of(memory) != gpu) on_two_devices(Collective::all_reduce, &tensors[0], &tensor);
      if (result_dtype(op, memory.dtype) != memory.dtype)
        invalid(Collective::all_reduce,
                fmt::format("the {} of {} is {}, which does not fit in place", name(op),
                            text_of(memory), name(result_dtype(op, memory.dtype))));
      if (inputs.empty()) set_shape(what, memory);
      what.others = base::mixed(what.others + uint64_t(memory.dtype), uint64_t(memory.count));
      inputs.push_back(memory.data);
      outputs.push_back(memory.data);
    }
    for (size_t i = 0; i < tensors.size(); ++i)
      pieces.push_back({{&inputs[i], 1},
                        {&outputs[i], 1},
                        tensors[i].num_elements(),
                        tensors[i].dtype(),
                        &tensors[i].shape()});
    for (int r = 0; r < size; ++r) owners.push_back(r);
    what.route = route_of(gpu, options);
    check_apart_from_each_other();
  }
  TensorList(const TensorList&) = delete;

  void check_apart_from_each_other() const {
    std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
    for (const Tensor& tensor : tensors)
      if (const auto* const data = static_cast<const std::byte*>(tensor.const_data());
          tensor.num_bytes())
        ranges.emplace_back(data, data + tensor.num_bytes());
    std::ranges::sort(ranges);
    for (size_t i = 1; i < ranges.size(); ++i)
      if (ranges[i].first < ranges[i - 1].second)
        invalid(Collective::all_reduce, "two tensors of the list overlap, or are the same");
  }

  std::vector<Tensor> tensors;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<group::Piece> pieces;
  std::vector<int> owners;
  int gpu = -1;
  Description what;
};

}  // namespace

void GroupImpl::all_reduce(std::span<const Tensor> tensors, ReduceOp op,
                           const CommunicationOptions& options) {
  if (tensors.size() == 1)  // no different from the tensor itself, on whatever rank
    return run(in_place(Collective::all_reduce, write(tensors[0]), op), options);
  options.validate("all_reduce");
  const TensorList list(tensors, op, size(), options);
  in_order({list.what, bytes_of(list.pieces)}, [&] {
    perform(list.what, {list.pieces, list.owners, op, list.gpu}, timeouts_of(options));
  });
}

Work GroupImpl::start_all_reduce(std::span<const Tensor> tensors, ReduceOp op,
                                 const CommunicationOptions& options) {
  if (tensors.size() == 1)
    return start(in_place(Collective::all_reduce, write(tensors[0]), op), options);
  options.validate("all_reduce");
  expect_own_process("all_reduce");
  const auto list = std::make_shared<const TensorList>(tensors, op, size(), options);
  return queue_->start([this, list, op, timeouts = timeouts_of(options)] {
    collective({list->what, bytes_of(list->pieces)}, [&] {
      perform(list->what, {list->pieces, list->owners, op, list->gpu}, timeouts);
    });
  });
}

namespace {

void check_weighted(std::span<const Tensor> tensors, double weight,
                    const CommunicationOptions& options) {
  options.validate("all_reduce");
  if (!(weight >= 0) || std::isinf(weight))
    invalid(Collective::all_reduce,
            fmt::format("the weight is {}, expected a finite number of 0 or more", weight));
  const TensorList checked(tensors, ReduceOp::MEAN, 1, options);
}

// A list whose mean is weighted: a sum of float64, with the weights in the same operation.
class WeightedList {
 public:
  WeightedList(std::span<const Tensor> tensors, double weight)
      : results_(tensors.begin(), tensors.end()) {
    for (const Tensor& tensor : results_) sums_.push_back(scaled(tensor, weight));
    sums_.push_back(
        Tensor::scalar<double>(weight, results_.empty() ? std::string() : results_[0].device()));
  }

  const std::vector<Tensor>& sums() const { return sums_; }
  // Once these are those of all ranks.
  void divide() const {
    const double weights = sums_.back().item<double>();
    if (weights == 0)
      invalid(Collective::all_reduce, "the weights of all ranks are 0, so there is no mean");
    for (size_t i = 0; i < results_.size(); ++i) {
      scale(sums_[i], weights, true);
      assign(results_[i], sums_[i].to(results_[i].dtype()));
    }
  }

 private:
  std::vector<Tensor> results_, sums_;
};

}  // namespace

void GroupImpl::all_reduce(std::span<const Tensor> tensors, WeightedMean mean,
                           const CommunicationOptions& options) {
  expect_own_process("all_reduce");
  check_weighted(tensors, mean.weight, options);
  const WeightedList list(tensors, mean.weight);
  all_reduce(list.sums(), ReduceOp::SUM, options);
  list.divide();
}

// Copies the values when it runs, so that those of a queue do not all take memory at once.
Work GroupImpl::start_all_reduce(std::span<const Tensor> tensors, WeightedMean mean,
                                 const CommunicationOptions& options) {
  expect_own_process("all_reduce");
  check_weighted(tensors, mean.weight, options);
  return queue_->start([this, list = std::vector(tensors.begin(), tensors.end()), mean, options] {
    all_reduce(list, mean, options);
  });
}

// Small tensors travel together.
void GroupImpl::broadcast(std::span<const Tensor> tensors, int root,
                          const CommunicationOptions& options) {
  constexpr size_t kTogether = 1 << 20;
  const auto is_small = [](const Tensor& tensor) {
    return gpu_of(read(tensor)) < 0 && tensor.num_bytes() < kTogether;
  };
  options.validate("broadcast");
  for (const Tensor& tensor : tensors) write(tensor);  // none is refused when others have moved
  for (size_t first = 0, end; first < tensors.size(); first = end) {
    size_t bytes = 0;
    for (end = first; end < tensors.size() && bytes < kTogether && is_small(tensors[end]); ++end)
      bytes += write(tensors[end]).tensor->num_bytes();
    if (end <= first + 1) {
      run(in_place(Collective::broadcast, write(tensors[first]), ReduceOp::SUM, root), options);
      end = first + 1;
      continue;
    }
    const std::span<const Tensor> together = tensors.subspan(first, end - first);
    std::vector<std::byte> packed(bytes);
    const Memory memory{packed.data(), int64_t(bytes), DType::uint8};
    const GroupCall call = in_place(Collective::broadcast, memory, ReduceOp::SUM, root);
    Description what = checked(call, rank(), size());
    what.tensors = uint32_t(together.size());
    set_shape(what, read(together[0]));
    std::vector<group::Piece> list;
    for (const Tensor& tensor : together) {
      what.others =
          base::mixed(what.others + uint64_t(tensor.dtype()), uint64_t(tensor.num_elements()));
      list.push_back({{},
                      {},
                      tensor.num_elements(),
                      tensor.dtype(),
                      &tensor.shape(),
                      int64_t(first + list.size())});
    }
    const auto for_each = [&](const auto& copy) {
      std::byte* at = packed.data();
      for (const Tensor& tensor : together) {
        if (tensor.num_bytes())
          copy(at, static_cast<std::byte*>(tensor.data()), tensor.num_bytes());
        at += tensor.num_bytes();
      }
    };
    if (rank() == root)
      for_each([](std::byte* at, const std::byte* data, size_t n) { std::memcpy(at, data, n); });
    in_order({what, int64_t(bytes)},
             [&] { backend_->run(what, call, timeouts_of(options), list); });
    if (rank() != root)
      for_each([](const std::byte* at, std::byte* data, size_t n) { std::memcpy(data, at, n); });
  }
}

void GroupImpl::all_reduce_leaves(const group::LeafReduction& reduction,
                                  const CommunicationOptions& options) {
  options.validate("all_reduce");
  Description what{.kind = Collective::all_reduce,
                   .route = route_of(reduction.gpu, options),
                   .op = reduction.op,
                   .tensors = uint32_t(reduction.pieces.size())};
  if (!reduction.pieces.empty()) {
    what.dtype = reduction.pieces[0].dtype;
    what.extents = {reduction.pieces[0].count};
  }
  for (const group::Piece& piece : reduction.pieces)
    what.others = base::mixed(what.others + uint64_t(piece.dtype), uint64_t(piece.count));
  for (const int owner : reduction.owners) what.others = base::mixed(what.others, uint64_t(owner));
  in_order({what, bytes_of(reduction.pieces)},
           [&] { perform(what, reduction, timeouts_of(options)); });
}

void GroupImpl::all_gather_uneven(const Memory& in, const Memory& out,
                                  std::span<const int64_t> counts,
                                  const CommunicationOptions& options) {
  const GroupCall call{Collective::all_gather, in, out};
  check_counts(call, counts, rank());
  const int gpu = gpu_of(call, rank());
  Description what{.kind = call.kind, .route = route_of(gpu, options)};
  what.dtype = in.dtype;
  what.extents = {out.count};
  for (const int64_t count : counts) what.others = base::mixed(what.others + 1, uint64_t(count));
  const Timeouts timeouts = timeouts_of(options);
  in_order({what, bytes_of(out)}, [&] {
    if (gpu < 0) return backend_->all_gather_uneven(what, in, out, counts, timeouts);
    on_gpus().all_gather_uneven({{what, collectives_.number(), timeouts}, gpu}, in, out, counts);
  });
}

std::shared_ptr<GroupImpl> GroupImpl::split(int color, int key) {
  const std::vector<int64_t> mine{color, key};
  std::vector<int64_t> all(2 * size_t(size()));
  run({Collective::split,
       {const_cast<int64_t*>(mine.data()), 2, DType::int64},
       {all.data(), int64_t(all.size()), DType::int64}},
      {});
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (all[2 * size_t(r)] == color) ranks.push_back(r);
  std::ranges::stable_sort(ranks, {}, [&](int r) { return all[2 * size_t(r) + 1]; });
  std::unique_ptr<group::Backend> part;
  const Description what{.kind = Collective::split};
  in_order({what, 0}, [&] { part = backend_->split(ranks, timeouts_of({})); });
  return make(std::move(part), stragglers_.every());
}

int GroupImpl::local_rank() const {
  int local = 0;
  for (int r = 0; r < rank(); ++r) local += backend_->is_local(r);
  return local;
}

int GroupImpl::local_size() const {
  int local = 0;
  for (int r = 0; r < size(); ++r) local += backend_->is_local(r);
  return local;
}

void GroupImpl::abort(const std::string& reason) {
  expect_own_process("abort");
  backend_->poison(ErrorCode::aborted, fmt::format("rank {} failed: {}", rank(), reason));
  if (in_job_) group::abort_job(reason);
}

void GroupImpl::fail(ErrorCode code, const std::string& text) {
  group::report_failure({rank(), code, text});
  backend_->poison(code, text);
}

}  // namespace tutti::detail
