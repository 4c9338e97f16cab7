// SPDX-License-Identifier: Apache-2.0
#include "group/shm/collectives.h"

namespace tutti::group {

void SharedMemoryCollectives::run(const Description& what, const GroupCall& call, Timeouts timeouts,
                                  std::span<const Piece> list) {
  if (call.kind == Collective::send) return window_.send(what, call.in, call.tag, timeouts);
  if (call.kind == Collective::recv) return window_.recv(what, call.out, call.tag, timeouts);
  way_ = call.kind == Collective::all_reduce ? way_of(size_in_bytes(call.in)) : Way::only;
  if (way_ == Way::shares) {
    const void* const in = call.in.data;
    void* const out = call.out.data;
    const Piece piece{{&in, 1}, {&out, 1}, call.in.count, call.in.dtype};
    std::vector<int> owners(size_t(window_.size()));
    for (int r = 0; r < window_.size(); ++r) owners[size_t(r)] = r;
    return all_reduce(what, {{&piece, 1}, owners, call.op}, timeouts);
  }
  window_.begin(what, timeouts, list);
  switch (call.kind) {
    case Collective::all_reduce:
    case Collective::reduce: return reduce(call);
    case Collective::barrier: return window_.next_phase();
    case Collective::broadcast: return broadcast(call);
    case Collective::all_gather:
    case Collective::split:
    case Collective::gather: return gather(call);
    case Collective::scatter: return scatter(call);
    case Collective::all_to_all: return all_to_all(call);
    case Collective::reduce_scatter: return reduce_scatter(call);
    case Collective::send:
    case Collective::recv: break;
  }
}

void SharedMemoryCollectives::all_reduce(const Description& what, const LeafReduction& reduction,
                                         Timeouts timeouts) {
  way_ = Way::only;
  window_.begin(what, timeouts, reduction.pieces);
  const FlatView view(reduction, window_.rank(), window_.size());
  way_ = way_of(view.bytes() * view.most_leaves());
  way_ == Way::shares ? in_place(view) : all_at_once(view);
}

void SharedMemoryCollectives::show_parts(const GroupCall& call, size_t at, size_t now,
                                         size_t part_bytes) {
  const size_t n = size_t(window_.size()), stride = rounded_up(now);
  const std::byte* const in = bytes_of(static_cast<const void*>(call.in.data));
  std::byte* const to = window_.mine(stride * n);
  for (size_t r = 0; r < n; ++r) copy_bytes(to + r * stride, in + r * part_bytes + at, now);
}

const std::byte* SharedMemoryCollectives::part_from(int rank, size_t now) const {
  const size_t stride = rounded_up(now);
  return window_.shown(rank, stride * size_t(window_.size())) + size_t(window_.rank()) * stride;
}

}  // namespace tutti::group
