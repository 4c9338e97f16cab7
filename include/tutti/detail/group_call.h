// SPDX-License-Identifier: Apache-2.0
// A call of a Group as the library sees it: which collective, and the memory it works on.
#pragma once

#include <tutti/reduce_op.h>
#include <tutti/tensor.h>

#include <concepts>
#include <cstdint>
#include <ranges>
#include <type_traits>

namespace tutti::detail {
class GroupImpl;
struct GroupAccess;
}  // namespace tutti::detail

#pragma GCC visibility push(default)

namespace tutti::detail {

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

// The elements of a buffer. `tensor` is set if they came as one: the caller's handle.
struct Memory {
  void* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::float32;
  const Tensor* tensor = nullptr;
};

struct GroupCall {
  Collective kind;
  Memory in, out;
  ReduceOp op = ReduceOp::SUM;
  int root = -1;  // or the peer of send and recv
  int64_t tag = 0;
};

template <class B>
concept Range = std::ranges::contiguous_range<B> && std::ranges::sized_range<B> &&
                Element<std::remove_reference_t<std::ranges::range_reference_t<B>>>;
template <class B>
concept Readable = Range<B> || std::same_as<std::remove_cvref_t<B>, Tensor>;
template <class B>
concept Writable =
    std::same_as<std::remove_cvref_t<B>, Tensor> ||
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

// The buffer itself, not a copy.
inline const Tensor& as_tensor(const Tensor& tensor) { return tensor; }
template <Range B>
Tensor as_tensor(B&& buffer) {
  const Memory memory = write(buffer);
  return Tensor::borrow(memory.data, Shape{memory.count}, memory.dtype);
}

template <Readable In, Writable Out>
GroupCall call(Collective kind, const In& in, Out&& out, ReduceOp op = ReduceOp::SUM,
               int root = -1) {
  return {kind, read(in), write(out), op, root};
}
inline GroupCall in_place(Collective kind, const Memory& data, ReduceOp op, int root = -1) {
  return {kind, data, data, op, root};
}
template <Writable B>
GroupCall in_place(Collective kind, B&& data, ReduceOp op, int root = -1) {
  return in_place(kind, write(data), op, root);
}

}  // namespace tutti::detail

#pragma GCC visibility pop
