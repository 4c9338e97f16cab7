// SPDX-License-Identifier: Apache-2.0
// One operation of a group: what ranks must agree on, and the memory it works on.
#pragma once

#include <tutti/detail/group_call.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tutti::group {

constexpr size_t kLine = 64;  // bytes that one core takes from another at once

using detail::Collective;

std::string_view name(Collective kind);

// Where an operation's memory is, and what moves it: the group, or NCCL for GPUs if it can.
enum class Route : uint8_t { host, gpu, gpu_by_host };

// What all ranks must say alike. Plain bytes, since it lies where other processes read it.
struct Description {
  Collective kind = Collective::barrier;
  DType dtype = DType::float32;
  Route route = Route::host;
  ReduceOp op = ReduceOp::SUM;
  int32_t root = -1;
  uint32_t tensors = 1;
  uint32_t rank = 1;  // of the shape; if larger than extents, extents[0] is the count
  std::array<int64_t, 3> extents = {};  // of the first tensor
  uint64_t others = 0;  // stands for the other tensors, and for the owners of leaves
  // `others` of what ranks tell each other for the straggler report.
  static constexpr uint64_t kStragglers = 0x73747261'67676c65;
  // And of what they tell each other of their GPUs.
  static constexpr uint64_t kGpus = 0x67707573'67707573;

  uint64_t hash() const;
  // "float32[3, 2], SUM"; of a list, in brief only its length.
  std::string to_string(bool in_brief = false) const;
  friend bool operator==(const Description&, const Description&) = default;
};

// One tensor of a reduction: every output becomes the combination of all leaves of all ranks.
struct Piece {
  std::span<const void* const> inputs;  // the leaves of this rank, by their ids
  std::span<void* const> outputs;  // of this rank; each is one of the inputs, or apart from all
  int64_t count;
  DType dtype;
  const Shape* shape = nullptr;  // for errors; null: [count]
  int64_t number = -1;           // in the caller's list; -1: its index among the pieces
};

// A tensor of a list, as ranks show it to each other once they know that their lists differ. Plain
// bytes.
struct ListedTensor {
  int64_t number;
  int64_t count;
  DType dtype;
  uint32_t rank;  // of the shape; more than extents holds: only the count is known
  std::array<int64_t, 3> extents;

  std::string to_string() const;  // "float32[3, 2]"
  friend bool operator==(const ListedTensor&, const ListedTensor&) = default;
};
std::vector<ListedTensor> listed(std::span<const Piece> pieces, size_t at_most);

// "tensor 2 is float32[3] on rank 0 and float32[4] on rank 1"; empty if none differs.
std::string first_difference(const std::string& one, std::vector<ListedTensor> ones,
                             const std::string& other, std::vector<ListedTensor> others);
// Whether two ranks that disagree may have lists to compare.
bool are_lists(const Description& one, const Description& other);

// A reduction over leaves. Leaf i belongs to rank owners[i]; a rank may have any number of them.
struct LeafReduction {
  std::span<const Piece> pieces;
  std::span<const int> owners;
  ReduceOp op;
  int gpu = -1;  // whose memory all pieces are in; -1: the host's
};

// How long a call may wait, in all; counted from its first wait.
struct Timeouts {
  std::chrono::nanoseconds timeout;     // 0: without end
  std::chrono::nanoseconds warn_after;  // 0: never
};

// The words of errors: "rank 2 (worker-2:5000)", or "rank 2" if the address is empty; "all_reduce
// #12 (float32[3], SUM)", "2.5 s", and what two ranks call.
std::string rank_name(int rank, const std::string& address);
std::string described(const Description& what, uint64_t number);
std::string seconds(std::chrono::nanoseconds time);
// `difference`: that of their lists, if it is known.
std::string disagreement(uint64_t number, const std::string& one, const Description& ones,
                         const std::string& other, const Description& others,
                         const std::string& difference = "");

}  // namespace tutti::group
