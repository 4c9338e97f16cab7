// SPDX-License-Identifier: Apache-2.0
// Arguments become a GroupCall on the stack, and exceptions become codes.
#include <fmt/format.h>
#include <tutti/c.h>
#include <tutti/cuda.h>
#include <tutti/error.h>
#include <tutti/version.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/reduce_op.h"
#include "group/group_impl.h"
#include "tensor/dlpack.h"
#include "tensor/tensor_impl.h"

// What handles point to; empty once the handle was destroyed.
struct tutti_group {
  std::optional<tutti::Group> value;
};
struct tutti_work {
  std::optional<tutti::Work> value;
  void* stream = nullptr;  // of the caller's, if it is to go on after the operation
  std::string device = {};
};

namespace tutti::c {

namespace {

using detail::Collective;
using detail::GroupAccess;
using detail::GroupImpl;
using detail::Memory;

// Programs were compiled with these numbers.
constexpr int code_of(ErrorCode code) { return int(code) + 1; }
static_assert(TUTTI_INVALID_ARGUMENT == code_of(ErrorCode::invalid_argument) &&
              TUTTI_FAILED_PRECONDITION == code_of(ErrorCode::failed_precondition) &&
              TUTTI_UNAVAILABLE == code_of(ErrorCode::unavailable) &&
              TUTTI_DEADLINE_EXCEEDED == code_of(ErrorCode::deadline_exceeded) &&
              TUTTI_ABORTED == code_of(ErrorCode::aborted) &&
              TUTTI_CANCELLED == code_of(ErrorCode::cancelled) &&
              TUTTI_UNIMPLEMENTED == code_of(ErrorCode::unimplemented) &&
              TUTTI_OUT_OF_RANGE == code_of(ErrorCode::out_of_range) &&
              TUTTI_NOT_FOUND == code_of(ErrorCode::not_found) &&
              TUTTI_ALREADY_EXISTS == code_of(ErrorCode::already_exists) &&
              TUTTI_DATA_LOSS == code_of(ErrorCode::data_loss) &&
              TUTTI_RESOURCE_EXHAUSTED == code_of(ErrorCode::resource_exhausted) &&
              TUTTI_UNAUTHENTICATED == code_of(ErrorCode::unauthenticated) &&
              TUTTI_INTERNAL == code_of(ErrorCode::internal));
constexpr bool same(int number, auto value) { return number == int(value); }
static_assert(same(TUTTI_BOOL, DType::boolean) && same(TUTTI_INT8, DType::int8) &&
              same(TUTTI_INT16, DType::int16) && same(TUTTI_INT32, DType::int32) &&
              same(TUTTI_INT64, DType::int64) && same(TUTTI_UINT8, DType::uint8) &&
              same(TUTTI_UINT16, DType::uint16) && same(TUTTI_UINT32, DType::uint32) &&
              same(TUTTI_UINT64, DType::uint64) && same(TUTTI_FLOAT16, DType::float16) &&
              same(TUTTI_BFLOAT16, DType::bfloat16) && same(TUTTI_FLOAT32, DType::float32) &&
              same(TUTTI_FLOAT64, DType::float64) && detail::num_dtypes() == TUTTI_FLOAT64 + 1);
static_assert(same(TUTTI_SUM, ReduceOp::SUM) && same(TUTTI_MEAN, ReduceOp::MEAN) &&
              same(TUTTI_MIN, ReduceOp::MIN) && same(TUTTI_MAX, ReduceOp::MAX) &&
              same(TUTTI_PROD, ReduceOp::PROD) && base::num_reduce_ops() == TUTTI_PROD + 1);
static_assert(same(TUTTI_AUTO, CommunicationImplementation::AUTO) &&
              same(TUTTI_RING, CommunicationImplementation::RING) &&
              same(TUTTI_NCCL, CommunicationImplementation::NCCL));
static_assert(sizeof(void*) != 8 || (sizeof(tutti_tensor) == 40 && sizeof(tutti_options) == 32));

// A thread's last text. Handlers at exit and destructors of static objects may still ask for it,
// when the variables of the thread that have destructors are gone.
thread_local std::string* last_error = nullptr;
struct LastErrorOwner {
  ~LastErrorOwner() { delete std::exchange(last_error, nullptr); }
};

int failed(ErrorCode code, const char* text) {
  static thread_local const LastErrorOwner owner;
  (void)&owner;  // made, so that it is destroyed
  try {
    if (!last_error) last_error = new std::string;
    *last_error = text;
  } catch (const std::bad_alloc&) {
    if (last_error) last_error->clear();
  }
  return code_of(code);
}

// `function` is the name that errors begin with; `operation` gets it, since lambdas have others.
template <class F>
int guarded(const char* function, const F& operation) {
  try {
    operation(function);
    return TUTTI_OK;
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::resource_exhausted, "there is no memory left");
  } catch (const std::exception& error) {
    return failed(ErrorCode::internal, error.what());
  }
}

template <class... Args>
[[noreturn]] void invalid(const char* function, fmt::format_string<Args...> why, Args&&... args) {
  throw InvalidArgumentError(
      fmt::format("{}: {}", function, fmt::format(why, std::forward<Args>(args)...)));
}

template <class Handle>
auto& value_of(const char* function, const char* type, Handle* handle) {
  if (!handle) [[unlikely]]
    invalid(function, "the {} is NULL", type);
  if (!handle->value) [[unlikely]]
    invalid(function, "the {} was destroyed", type);
  return *handle->value;
}
Group& value_of(const char* function, tutti_group* group) {
  return value_of(function, "group", group);
}
Work& value_of(const char* function, tutti_work* work) { return value_of(function, "work", work); }

// Their memory is kept for other handles of the type, so that a destroyed one can be told apart.
template <class Handle>
class Handles {
 public:
  template <class Value>
  Handle* add(Value value) {
    std::lock_guard lock(mutex_);
    if (free_.empty()) free_.push_back(&all_.emplace_back());
    Handle* const handle = free_.front();
    handle->value.emplace(std::move(value));
    free_.pop_front();
    return handle;
  }
  void destroy(const char* function, Handle* handle) {
    if (!handle) return;
    (void)value_of(function, handle);
    handle->value.reset();
    std::lock_guard lock(mutex_);
    free_.push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::deque<Handle> all_;
  std::deque<Handle*> free_;  // the one that was destroyed first is used first
};

// These outlive static objects, whose destructors may still use them.
Handles<tutti_group>& groups() {
  static auto* const all = new Handles<tutti_group>;
  return *all;
}
Handles<tutti_work>& works() {
  static auto* const all = new Handles<tutti_work>;
  return *all;
}

struct Allocations {
  std::mutex mutex;
  std::unordered_map<void*, Tensor> all;
};
Allocations& allocations() {
  static auto* const all = new Allocations;
  return *all;
}

// The result of a function, which is NULL after an error.
template <class Result>
void set_null(const char* function, Result** result) {
  if (!result) invalid(function, "the place of the result is NULL");
  *result = nullptr;
}

struct Hints {
  CommunicationOptions options = {};
  void* stream = nullptr;
};

Hints hints_of(const char* function, const tutti_options* given) {
  if (!given) return {};
  constexpr size_t kMost = 4096;
  const size_t size = given->size;
  if (size < sizeof size || size > kMost)
    invalid(function, "the size of the options is {}, expected sizeof(tutti_options)", size);
  tutti_options known{};
  std::memcpy(&known, given, std::min(size, sizeof known));
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  const bool has_more = std::any_of(bytes + std::min(size, sizeof known), bytes + size,
                                    [](unsigned char byte) { return byte != 0; });
  if (has_more || known.reserved)
    throw UnimplementedError(fmt::format(
        "{}: the options set a field that version {} does not know", function, version()));
  if (known.timeout_ns < TUTTI_NO_TIMEOUT)
    invalid(function, "the timeout is {} ns, expected 0 or more, or TUTTI_NO_TIMEOUT",
            known.timeout_ns);
  Hints hints{.stream = known.stream};
  if (known.timeout_ns)
    hints.options.timeout = std::chrono::nanoseconds(std::max<int64_t>(known.timeout_ns, 0));
  hints.options.implementation = CommunicationImplementation(known.implementation);
  hints.options.validate(function);
  return hints;
}

// While it lives, operations on the GPU of `tensor`, if it is on one, are on the caller's stream.
class OnStream {
 public:
  OnStream(const char* function, void* stream, std::span<const Tensor> tensors) {
    if (!stream) return;
    for (const Tensor& tensor : tensors) {
      if (!tensor || detail::TensorAccess::device(tensor).gpu() < 0) continue;
      if (!device_.empty() && device_ != tensor.device())
        invalid(function,
                "the stream of the options is for one GPU, and there are tensors on {} and {}",
                device_, tensor.device());
      device_ = tensor.device();
    }
    if (device_.empty()) return;
    stream_ = stream;
    scope_.emplace(stream, device_);
  }
  // The caller's stream goes on after the work that is waited for, too.
  tutti_work* handle(Work work) const {
    tutti_work* const handle = works().add(std::move(work));
    handle->stream = stream_;
    handle->device = device_;
    return handle;
  }

 private:
  std::optional<StreamScope> scope_;
  void* stream_ = nullptr;
  std::string device_;
};

Memory memory_of(const char* function, const tutti_tensor& tensor) {
  if (tensor.dtype < 0 || size_t(tensor.dtype) >= detail::kDTypes.size())
    invalid(function, "{} is not a dtype", tensor.dtype);
  const DType dtype = DType(tensor.dtype);
  int64_t bytes;
  if (tensor.count < 0 || __builtin_mul_overflow(tensor.count, int64_t(size_of(dtype)), &bytes))
    invalid(function, "{} is not a number of elements of {}", tensor.count, name(dtype));
  if (!tensor.data && bytes)
    invalid(function, "the data of {}[{}] is NULL", name(dtype), tensor.count);
  if (reinterpret_cast<uintptr_t>(tensor.data) & (size_of(dtype) - 1))
    invalid(function, "the data at {} is not aligned for {}", tensor.data, name(dtype));
  if (tensor.flags & ~TUTTI_READ_ONLY)
    throw UnimplementedError(fmt::format("{}: version {} does not know all of the flags {:#x}",
                                         function, version(), tensor.flags));
  return {tensor.data, tensor.count, dtype};
}

Tensor tensor_of(const char* function, const tutti_tensor& tensor) {
  constexpr int kMaxDims = 64;  // as for DLPack
  const Memory memory = memory_of(function, tensor);
  if (tensor.ndim < 0 || tensor.ndim > kMaxDims || (tensor.ndim && !tensor.shape))
    invalid(function, "a tensor has {} axes, and a shape {}", tensor.ndim,
            tensor.shape ? "of at most 64" : "that is NULL");
  const Shape shape =
      tensor.shape ? Shape(std::span(tensor.shape, size_t(tensor.ndim))) : Shape{tensor.count};
  if (shape.num_elements() != tensor.count)
    invalid(function, "a tensor of shape {} counts {} elements", shape.to_string(), tensor.count);
  detail::Device* const device =
      tensor.device < 0 ? nullptr : detail::device_of_gpu(tensor.device - 1);
  if (!device)
    invalid(function, "a tensor is on device {}, and this process has no such GPU", tensor.device);
  return detail::TensorAccess::wrap({}, tensor.data, shape, memory.dtype, *device,
                                    tensor.flags & TUTTI_READ_ONLY);
}

std::vector<Tensor> tensors_of(const char* function, const tutti_tensor* tensors, size_t n) {
  if (!tensors && n) invalid(function, "the list of {} tensors is NULL", n);
  std::vector<Tensor> list;
  for (size_t i = 0; i < n; ++i) list.push_back(tensor_of(function, tensors[i]));
  return list;
}

// What a group takes for a tensor. Without a shape and in host memory it needs no Tensor.
struct Operand {
  Operand(const char* function, const tutti_tensor* given) {
    if (!given) return;
    if (given->device == 0 && !given->shape && given->ndim == 0) {
      memory = memory_of(function, *given);
      return;
    }
    tensor = tensor_of(function, *given);
    memory = detail::read(tensor);
  }
  Operand(const Operand&) = delete;

  Tensor tensor;
  Memory memory;
};

struct Operands {
  const tutti_tensor *in, *out;
};

// Whether a call without an input means the output, in place.
bool works_in_place(Collective kind) {
  return kind == Collective::all_reduce || kind == Collective::reduce ||
         kind == Collective::broadcast;
}

// Which operands it cannot do without on this rank.
struct Needs {
  bool in, out;
};
Needs needs_of(Collective kind, bool at_root, bool has_in) {
  switch (kind) {
    case Collective::barrier:
    case Collective::split: return {false, false};
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::recv: return {false, true};
    case Collective::reduce: return {false, at_root || !has_in};
    case Collective::gather: return {true, at_root};
    case Collective::scatter: return {at_root, true};
    case Collective::send: return {true, false};
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::all_to_all: break;
  }
  return {true, true};
}

// `call` has all but the operands. `work`: the place of its handle, if it is to go on in the
// background.
int run(const char* function, tutti_group* group, detail::GroupCall call, const Operands& given,
        const tutti_options* options, tutti_work** work = nullptr) {
  return guarded(function, [&](const char*) {
    if (work) *work = nullptr;
    GroupImpl& impl = GroupAccess::impl(value_of(function, group));
    const Needs needs = needs_of(call.kind, call.root == impl.rank(), given.in);
    if (needs.in && !given.in) invalid(function, "the input is NULL");
    if (needs.out && !given.out) invalid(function, "the output is NULL");
    if (needs.out && given.out->flags & TUTTI_READ_ONLY)
      invalid(function, "the output is read-only");
    const Operand in(function, given.in), out(function, given.out);
    call.in = !given.in && works_in_place(call.kind) ? out.memory : in.memory;
    call.out = out.memory;
    if (call.kind == Collective::reduce && !given.out)
      call.out.dtype = result_dtype(call.op, call.in.dtype);
    const Hints hints = hints_of(function, options);
    const OnStream on(function, hints.stream, std::array{in.tensor, out.tensor});
    if (work)
      *work = on.handle(impl.start(call, hints.options));
    else
      impl.run(call, hints.options);
  });
}

// `what` is a ReduceOp or a WeightedMean.
template <class What>
int reduce_list(const char* function, tutti_group* group, std::span<const tutti_tensor> tensors,
                What what, const tutti_options* options, tutti_work** work) {
  return guarded(function, [&](const char*) {
    if (work) *work = nullptr;
    GroupImpl& impl = GroupAccess::impl(value_of(function, group));
    const std::vector<Tensor> list = tensors_of(function, tensors.data(), tensors.size());
    const Hints hints = hints_of(function, options);
    const OnStream on(function, hints.stream, list);
    if (work)
      *work = on.handle(impl.start_all_reduce(list, what, hints.options));
    else
      impl.all_reduce(list, what, hints.options);
  });
}

template <class F>
int number_of(const char* function, tutti_group* group, const F& f) {
  int number = -1;
  guarded(function, [&](const char*) { number = f(value_of(function, group)); });
  return number;
}

template <class Managed>
int from_dlpack(const char* function, const Managed* managed, tutti_tensor* tensor) {
  return guarded(function, [&](const char*) {
    if (!tensor) invalid(function, "the place of the result is NULL");
    *tensor = {};
    const detail::DLPackView view = detail::view(managed);
    static constexpr int64_t kNoExtents = 0;  // also a scalar has a shape
    *tensor = {.data = view.data,
               .count = view.shape.num_elements(),
               .dtype = int32_t(view.dtype),
               .device = view.device.gpu() + 1,
               .shape = view.extents ? view.extents : &kNoExtents,
               .ndim = int32_t(view.shape.rank()),
               .flags = view.read_only ? TUTTI_READ_ONLY : 0};
  });
}

}  // namespace
}  // namespace tutti::c

using namespace tutti;
using namespace tutti::c;

const char* tutti_version() { return version().data(); }
const char* tutti_last_error() { return last_error ? last_error->c_str() : ""; }

int tutti_group_from_environment(tutti_group** group) {
  return guarded(__func__, [&](const char* function) {
    set_null(function, group);
    *group = groups().add(Group::from_environment());
  });
}

int tutti_group_in_process(int n, tutti_group** ranks) {
  return guarded(__func__, [&](const char* function) {
    if (!ranks) invalid(function, "the place of the results is NULL");
    std::vector<Group> made = Group::in_process(n);
    for (Group& group : made) *ranks++ = groups().add(std::move(group));
  });
}

int tutti_group_split(tutti_group* group, int color, int key, tutti_group** part) {
  return guarded(__func__, [&](const char* function) {
    set_null(function, part);
    *part = groups().add(value_of(function, group).split(color, key));
  });
}

int tutti_group_destroy(tutti_group* group) {
  return guarded(__func__, [&](const char* function) { groups().destroy(function, group); });
}

int tutti_group_abort(tutti_group* group, const char* reason) {
  return guarded(__func__, [&](const char* function) {
    if (!reason) invalid(function, "the reason is NULL");
    value_of(function, group).abort(reason);
  });
}

int tutti_group_rank(tutti_group* group) {
  return number_of(__func__, group, [](const Group& g) { return g.rank(); });
}
int tutti_group_size(tutti_group* group) {
  return number_of(__func__, group, [](const Group& g) { return g.size(); });
}
int tutti_group_local_rank(tutti_group* group) {
  return number_of(__func__, group, [](const Group& g) { return g.local_rank(); });
}
int tutti_group_local_size(tutti_group* group) {
  return number_of(__func__, group, [](const Group& g) { return g.local_size(); });
}

const char* tutti_group_backend(tutti_group* group) {
  const char* name = nullptr;
  guarded(__func__, [&](const char* function) {
    name = GroupAccess::impl(value_of(function, group)).backend().name();
  });
  return name;
}

int tutti_alloc(tutti_group* group, int64_t bytes, void** data) {
  return guarded(__func__, [&](const char* function) {
    set_null(function, data);
    if (bytes < 0) invalid(function, "{} is not a number of bytes", bytes);
    const Tensor memory = value_of(function, group).empty({bytes}, DType::uint8);
    std::lock_guard lock(allocations().mutex);
    allocations().all.emplace(memory.data(), memory);
    *data = memory.data();
  });
}

int tutti_free(void* data) {
  return guarded(__func__, [&](const char* function) {
    if (!data) return;
    std::unique_lock lock(allocations().mutex);
    const auto memory = allocations().all.extract(data);
    lock.unlock();
    if (memory.empty()) invalid(function, "{} is not memory of tutti_alloc", data);
  });
}

int tutti_tensor_from_dlpack(const DLManagedTensor* managed, tutti_tensor* tensor) {
  return from_dlpack(__func__, managed, tensor);
}
int tutti_tensor_from_dlpack_versioned(const DLManagedTensorVersioned* managed,
                                       tutti_tensor* tensor) {
  return from_dlpack(__func__, managed, tensor);
}

int tutti_all_reduce(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int op,
                     const tutti_options* options, tutti_work** work) {
  return run(__func__, group, {Collective::all_reduce, {}, {}, ReduceOp(op)}, {in, out}, options,
             work);
}

int tutti_all_reduce_list(tutti_group* group, const tutti_tensor* tensors, size_t n, int op,
                          const tutti_options* options, tutti_work** work) {
  return reduce_list(__func__, group, {tensors, n}, ReduceOp(op), options, work);
}

int tutti_all_reduce_weighted(tutti_group* group, const tutti_tensor* tensors, size_t n,
                              double weight, const tutti_options* options, tutti_work** work) {
  return reduce_list(__func__, group, {tensors, n}, WeightedMean{weight}, options, work);
}

int tutti_reduce(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int op,
                 int root, const tutti_options* options) {
  return run(__func__, group, {Collective::reduce, {}, {}, ReduceOp(op), root}, {in, out}, options);
}

int tutti_broadcast(tutti_group* group, const tutti_tensor* tensor, int root,
                    const tutti_options* options, tutti_work** work) {
  return run(__func__, group, {Collective::broadcast, {}, {}, ReduceOp::SUM, root},
             {nullptr, tensor}, options, work);
}

int tutti_broadcast_list(tutti_group* group, const tutti_tensor* tensors, size_t n, int root,
                         const tutti_options* options) {
  return guarded(__func__, [&](const char* function) {
    const Group& ranks = value_of(function, group);
    const std::vector<Tensor> list = tensors_of(function, tensors, n);
    const Hints hints = hints_of(function, options);
    const OnStream on(function, hints.stream, list);
    ranks.broadcast(list, root, hints.options);
  });
}

int tutti_all_gather(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                     const tutti_options* options, tutti_work** work) {
  return run(__func__, group, {Collective::all_gather, {}, {}}, {in, out}, options, work);
}

int tutti_all_gather_uneven(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                            const int64_t* counts, const tutti_options* options) {
  return guarded(__func__, [&](const char* function) {
    GroupImpl& impl = GroupAccess::impl(value_of(function, group));
    if (!in || !out || !counts)
      invalid(function, "the {} NULL", !in ? "input is" : !out ? "output is" : "counts are");
    if (out->flags & TUTTI_READ_ONLY) invalid(function, "the output is read-only");
    const Operand from(function, in), to(function, out);
    const Hints hints = hints_of(function, options);
    const OnStream on(function, hints.stream, {&to.tensor, 1});
    impl.all_gather_uneven(from.memory, to.memory, {counts, size_t(impl.size())}, hints.options);
  });
}

int tutti_reduce_scatter(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                         int op, const tutti_options* options, tutti_work** work) {
  return run(__func__, group, {Collective::reduce_scatter, {}, {}, ReduceOp(op)}, {in, out},
             options, work);
}

int tutti_all_to_all(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                     const tutti_options* options, tutti_work** work) {
  return run(__func__, group, {Collective::all_to_all, {}, {}}, {in, out}, options, work);
}

int tutti_gather(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int root,
                 const tutti_options* options) {
  return run(__func__, group, {Collective::gather, {}, {}, ReduceOp::SUM, root}, {in, out},
             options);
}

int tutti_scatter(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int root,
                  const tutti_options* options) {
  return run(__func__, group, {Collective::scatter, {}, {}, ReduceOp::SUM, root}, {in, out},
             options);
}

int tutti_barrier(tutti_group* group, const tutti_options* options) {
  return run(__func__, group, {Collective::barrier, {}, {}}, {}, options);
}

int tutti_send(tutti_group* group, const tutti_tensor* in, int peer, int64_t tag,
               const tutti_options* options) {
  return run(__func__, group, {Collective::send, {}, {}, ReduceOp::SUM, peer, tag}, {in, nullptr},
             options);
}

int tutti_recv(tutti_group* group, const tutti_tensor* out, int peer, int64_t tag,
               const tutti_options* options) {
  return run(__func__, group, {Collective::recv, {}, {}, ReduceOp::SUM, peer, tag}, {nullptr, out},
             options);
}

int tutti_work_wait(tutti_work* work) {
  return guarded(__func__, [&](const char* function) {
    Work& value = value_of(function, work);
    std::optional<StreamScope> on;
    if (work->stream) on.emplace(work->stream, work->device);
    value.wait();
  });
}

int tutti_work_done(tutti_work* work) {
  int done = -1;
  guarded(__func__, [&](const char* function) { done = value_of(function, work).done(); });
  return done;
}

int tutti_work_destroy(tutti_work* work) {
  return guarded(__func__, [&](const char* function) { works().destroy(function, work); });
}
