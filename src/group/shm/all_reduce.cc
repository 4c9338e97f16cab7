// SPDX-License-Identifier: Apache-2.0
// An all_reduce of many leaves, or of more than fits a phase.
#include <algorithm>

#include "group/shm/collectives.h"
#include "kernels/reduce.h"

namespace tutti::group {

namespace {

// What goes through the window at once: all that the ranks of a core touch should stay in its
// cache.
constexpr size_t kChunk = 256 << 10;

}  // namespace

void SharedMemoryCollectives::all_at_once(const FlatView& view) {
  const size_t end = view.bytes(), shown = end * view.most_leaves();
  view.copy_leaves(0, end, window_.mine(shown), end, 0);
  window_.next_phase();
  view.combine(
      0, end,
      [&](size_t leaf, const FlatView::Part& part) {
        return window_.shown(view.owner(leaf), shown) + view.index_in_rank(leaf) * end + part.at;
      },
      [&](const FlatView::Part& part, std::vector<void*>& outputs) {
        view.add_my_outputs(part, outputs);
      });
}

// If all ranks reach each other's memory, each combines its share of the whole, and writes it to
// all. If one does not, all go through the window.
void SharedMemoryCollectives::in_place(const FlatView& view) {
  const auto& pieces = view.reduction().pieces;
  const size_t mine = view.my_leaves(), outputs = view.outputs();
  const size_t words = 2 + pieces.size() * (mine + outputs);
  bool reachable = words * 8 <= kArea;
  auto* const table = reinterpret_cast<uint64_t*>(window_.mine(kArea));
  if (reachable) {
    uint64_t* to = table;
    *to++ = mine;
    *to++ = outputs;
    for (const Piece& piece : pieces) {
      const auto add = [&](const void* data, DType dtype) {
        const size_t bytes = size_t(piece.count) * size_of(dtype);
        *to = bytes ? memory_.position(data, bytes) : 0;
        reachable &= *to++ != PeerMemory::kUnreachable;
      };
      for (const void* input : piece.inputs) add(input, piece.dtype);
      for (const void* output : piece.outputs)
        add(output, result_dtype(view.reduction().op, piece.dtype));
      to = std::fill_n(to, outputs - piece.outputs.size(), PeerMemory::kUnreachable);
      if (!reachable) break;
    }
  }
  // From here on others may work on this rank's memory, and it on theirs.
  Window::Touch touch(window_, memory_);
  window_.next_phase(reachable);
  for (int r = 0; r < window_.size(); ++r)
    if (!window_.flag(r)) return through_window(view);
  touch.begin();

  const int n = window_.size(), me = window_.rank();
  const size_t share = rounded_up((view.bytes() + size_t(n) - 1) / size_t(n));
  const size_t begin = std::min(view.bytes(), share * size_t(me));
  const auto position_of = [&](int rank, size_t piece, size_t column) {
    const auto* t = reinterpret_cast<const uint64_t*>(window_.shown(rank, kArea));
    return t[2 + piece * (t[0] + t[1]) + column];
  };
  const auto count_of = [&](int rank, size_t which) {
    return reinterpret_cast<const uint64_t*>(window_.shown(rank, kArea))[which];
  };
  view.combine(
      begin, std::min(view.bytes(), begin + share),
      [&](size_t leaf, const FlatView::Part& part) {
        const int owner = view.owner(leaf);
        return bytes_of(
                   memory_.find(owner, position_of(owner, part.index, view.index_in_rank(leaf)))) +
               part.first;
      },
      [&](const FlatView::Part& part, std::vector<void*>& to) {
        for (int r = 0; r < n; ++r)
          for (size_t k = 0; k < count_of(r, 1); ++k)
            if (const uint64_t position = position_of(r, part.index, count_of(r, 0) + k);
                position != PeerMemory::kUnreachable)
              to.push_back(bytes_of(memory_.find(r, position)) +
                           part.result_at(view.reduction().op));
      });
  touch.end();
  window_.next_phase();
  touch.all_done();
}

// Chunk by chunk. A rank shows what the others need of it, combines its own share of the chunk from
// its own memory and from what they show, shows the result, and takes theirs.
void SharedMemoryCollectives::through_window(const FlatView& view) {
  const int n = window_.size(), me = window_.rank();
  const ReduceOp op = view.reduction().op;
  const size_t chunk = kChunk / std::max(view.most_leaves(), view.widest()) / kAlign * kAlign;
  for (size_t at = 0; at < view.bytes(); at += chunk) {
    const size_t end = std::min(view.bytes(), at + chunk);
    const size_t share = rounded_up((end - at + size_t(n) - 1) / size_t(n));
    const auto begin_of = [&](int rank) { return std::min(end, at + share * size_t(rank)); };
    const size_t begin = begin_of(me), stop = begin_of(me + 1);

    std::byte* const to = window_.mine(kArea);
    view.copy_leaves(at, begin, to, chunk, at);
    view.copy_leaves(stop, end, to, chunk, at);
    window_.next_phase();

    std::byte* const results = window_.mine(kArea);
    const size_t wide = view.widest();
    view.combine(
        begin, stop,
        [&](size_t leaf, const FlatView::Part& part) -> const std::byte* {
          const int owner = view.owner(leaf);
          if (owner == me)
            return bytes_of(part.piece.inputs[view.index_in_rank(leaf)]) + part.first;
          return window_.shown(owner, kArea) + view.index_in_rank(leaf) * chunk + (part.at - at);
        },
        [&](const FlatView::Part& part, std::vector<void*>& outputs) {
          outputs.push_back(results + (part.at - at) * wide);
          view.add_my_outputs(part, outputs);
        });
    window_.next_phase();

    for (int r = 0; r < n; ++r) {
      if (r == me) continue;
      view.for_each_part(begin_of(r), begin_of(r + 1), [&](const FlatView::Part& part) {
        for (void* output : part.piece.outputs)
          copy_bytes(bytes_of(output) + part.result_at(op),
                     window_.shown(r, kArea) + (part.at - at) * wide, part.result_bytes(op));
      });
    }
  }
}

}  // namespace tutti::group
