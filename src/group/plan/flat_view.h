// SPDX-License-Identifier: Apache-2.0
// The tensors of a reduction as one stretch of bytes, which algorithms cut as they like.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/world.h"
#include "group/core/operation.h"
#include "kernels/reduce.h"

namespace tutti::group {

// A rank's share of the work starts on a line of its own.
constexpr size_t kAlign = kLine;

constexpr size_t rounded_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

inline const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }
inline std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes && to != from && !base::is_length_only(bytes)) std::memcpy(to, from, bytes);
}

inline void reduce_here(const kernels::Reduction& reduction, bool stream) {
  const size_t buffers = reduction.inputs.size() + reduction.outputs.size();
  if (!base::is_length_only(buffers * size_t(reduction.count) * size_of(reduction.dtype)))
    kernels::reduce_here(reduction, stream);
}

inline size_t size_in_bytes(const detail::Memory& memory) {
  return size_t(memory.count) * size_of(memory.dtype);
}

// The tensors of a reduction end to end, each starting on a line. Chunks are ranges of bytes of it.
class FlatView {
 public:
  FlatView(const LeafReduction& reduction, int rank, int ranks) : reduction_(reduction) {
    if (!is_one_each(reduction.owners, ranks)) {
      std::vector<int> leaves(size_t(ranks), 0);
      indices_.reserve(reduction.owners.size());
      for (const int owner : reduction.owners) indices_.push_back(leaves[size_t(owner)]++);
      most_leaves_ = size_t(*std::ranges::max_element(leaves));
      mine_ = size_t(leaves[size_t(rank)]);
    }
    starts_.reserve(reduction.pieces.size() + 1);
    size_t at = 0, widest = 1;
    for (const Piece& piece : reduction.pieces) {
      starts_.push_back(at);
      at = rounded_up(at + size_t(piece.count) * size_of(piece.dtype));
      outputs_ = std::max(outputs_, piece.outputs.size());
      widest =
          std::max(widest, size_of(result_dtype(reduction.op, piece.dtype)) / size_of(piece.dtype));
    }
    starts_.push_back(at);
    widest_ = widest;
  }

  const LeafReduction& reduction() const { return reduction_; }
  size_t bytes() const { return starts_.back(); }
  size_t most_leaves() const { return most_leaves_; }  // that any rank has
  size_t my_leaves() const { return mine_; }
  size_t outputs() const { return outputs_; }  // of this rank, at most
  size_t widest() const { return widest_; }    // bytes of results per byte, at most
  int owner(size_t leaf) const { return reduction_.owners[leaf]; }
  // Among the leaves of its owner.
  size_t index_in_rank(size_t leaf) const { return indices_.empty() ? 0 : size_t(indices_[leaf]); }
  size_t leaves() const { return reduction_.owners.size(); }

  struct Part {
    const Piece& piece;
    size_t index;  // of the piece
    size_t first;  // byte of the piece
    size_t bytes;
    size_t at;                             // byte of the view
    size_t result_at(ReduceOp op) const {  // byte of its results
      return first / size_of(piece.dtype) * size_of(result_dtype(op, piece.dtype));
    }
    size_t result_bytes(ReduceOp op) const {
      return bytes / size_of(piece.dtype) * size_of(result_dtype(op, piece.dtype));
    }
    int64_t count() const { return int64_t(bytes / size_of(piece.dtype)); }
  };

  // f(part) for every piece of a tensor in [begin, end) of the view, which are multiples of a
  // line.
  template <class F>
  void for_each_part(size_t begin, size_t end, const F& f) const {
    size_t i = size_t(std::ranges::upper_bound(starts_, begin) - starts_.begin()) - 1;
    for (; i < reduction_.pieces.size() && starts_[i] < end; ++i) {
      const Piece& piece = reduction_.pieces[i];
      const size_t bytes = size_t(piece.count) * size_of(piece.dtype);
      const size_t first = std::max(begin, starts_[i]) - starts_[i];
      if (first >= bytes) continue;
      f(Part{piece, i, first, std::min(bytes, end - starts_[i]) - first, starts_[i] + first});
    }
  }

  // Every leaf of this rank, in [begin, end), to `to` + leaf * stride.
  void copy_leaves(size_t begin, size_t end, std::byte* to, size_t stride, size_t base) const {
    for_each_part(begin, end, [&](const Part& part) {
      for (size_t leaf = 0; leaf < mine_; ++leaf)
        copy_bytes(to + leaf * stride + (part.at - base),
                   bytes_of(part.piece.inputs[leaf]) + part.first, part.bytes);
    });
  }

  // Combines [begin, end): input(leaf, part) says where a leaf lies, add_outputs(part, outputs)
  // where the result goes.
  template <class Input, class AddOutputs>
  void combine(size_t begin, size_t end, const Input& input, const AddOutputs& add_outputs,
               bool stream = false) const {
    inputs_now_.resize(leaves());
    for_each_part(begin, end, [&](const Part& part) {
      for (size_t leaf = 0; leaf < leaves(); ++leaf) inputs_now_[leaf] = input(leaf, part);
      outputs_now_.clear();
      add_outputs(part, outputs_now_);
      reduce_here({.inputs = inputs_now_,
                   .outputs = outputs_now_,
                   .count = part.count(),
                   .dtype = part.piece.dtype,
                   .op = reduction_.op,
                   .divisor = int64_t(leaves())},
                  stream);
    });
  }

  void add_my_outputs(const Part& part, std::vector<void*>& outputs) const {
    for (void* output : part.piece.outputs)
      outputs.push_back(bytes_of(output) + part.result_at(reduction_.op));
  }

 private:
  // Whether each rank has a leaf, in their order.
  static bool is_one_each(std::span<const int> owners, int ranks) {
    if (owners.size() != size_t(ranks)) return false;
    for (int i = 0; i < ranks; ++i)
      if (owners[size_t(i)] != i) return false;
    return true;
  }

  const LeafReduction& reduction_;
  std::vector<int> indices_;  // none if each rank has one leaf
  std::vector<size_t> starts_;
  size_t most_leaves_ = 1, mine_ = 1, outputs_ = 0, widest_ = 1;
  mutable std::vector<const void*> inputs_now_;
  mutable std::vector<void*> outputs_now_;
};

}  // namespace tutti::group
