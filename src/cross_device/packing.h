// SPDX-License-Identifier: Apache-2.0
// The packing plan: how a batch of tensors is cut and joined before it travels. Pure, so that every
// rank and every test comes to the same plan; it never changes a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::cross_device {

struct PackingOptions {
  int num_packs = 1;
  int64_t agg_small_grads_max_bytes = 0;
  int agg_small_grads_max_group = 10;
  int64_t bytes_per_pack = 0;
};

// Elements [begin, end) of one tensor of the batch.
struct Piece {
  size_t tensor;
  int64_t begin, end;
  friend bool operator==(const Piece&, const Piece&) = default;
};
using Pack = std::vector<Piece>;

// The packs for tensors of one dtype, given by their numbers of elements. Every element is in
// exactly one pack.
// - num_packs > 0: all tensors end to end, cut into num_packs packs of total / num_packs elements,
// the last with the rest;
//   packs may be empty.
// - else, with agg_small_grads_max_bytes and _max_group > 0: runs of tensors smaller than
// max_bytes, at most max_group each
//   and at least two, come first; then every other tensor by itself.
// - else every tensor by itself, or, with bytes_per_pack, the whole batch as one pack to be cut by
// it. bytes_per_pack > 0 then cuts each pack between pieces, after the piece that takes it beyond
// that many bytes.
std::vector<Pack> packing_plan(std::span<const int64_t> elements, size_t element_size,
                               const PackingOptions& options);

// Positions grouped in order, a new group starting when the last one exceeds bytes_per_pack; 0
// makes one group.
std::vector<std::vector<size_t>> group_by_bytes(std::span<const int64_t> bytes,
                                                int64_t bytes_per_pack);

}  // namespace tutti::cross_device
