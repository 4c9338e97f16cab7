// SPDX-License-Identifier: Apache-2.0
// The collectives over a window, the same for threads and for processes; a file for each.
//
// Small data is shown whole, once. Large data goes through the window chunk by chunk, each rank
// combining its share of a chunk; or is combined where it lies, if all ranks can reach it.
#pragma once

#include "group/plan/flat_view.h"
#include "group/plan/way.h"
#include "group/shm/peer_memory.h"
#include "group/shm/window.h"

namespace tutti::group {

class SharedMemoryCollectives {
 public:
  SharedMemoryCollectives(Window& window, const PeerMemory& memory, const Costs& costs)
      : window_(window),
        memory_(memory),
        most_whole_(most_whole_within_host(size_t(window.size()), costs)) {}

  const Way& way() const { return way_; }
  void run(const Description& what, const detail::GroupCall& call, Timeouts timeouts,
           std::span<const Piece> list = {});
  void all_reduce(const Description& what, const LeafReduction& reduction, Timeouts timeouts);
  void all_gather_uneven(const Description& what, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts,
                         Timeouts timeouts);

 private:
  using GroupCall = detail::GroupCall;

  Way way_of(size_t bytes) const { return bytes > most_whole_ ? Way::shares : Way::whole; }
  void reduce(const GroupCall& call);  // and a small all_reduce
  void broadcast(const GroupCall& call);
  void gather(const GroupCall& call);  // to the root, or to all
  void scatter(const GroupCall& call);
  void all_to_all(const GroupCall& call);
  void reduce_scatter(const GroupCall& call);

  void all_at_once(const FlatView& view);
  void through_window(const FlatView& view);
  void in_place(const FlatView& view);

  // show(at, now), a phase, and take(at, now), for every chunk of `bytes`; once if there are none.
  template <class Show, class Take>
  void in_chunks(size_t bytes, size_t chunk, const Show& show, const Take& take) {
    size_t at = 0;
    do {
      const size_t now = std::min(chunk, bytes - at);
      show(at, now);
      window_.next_phase();
      take(at, now);
      at += now;
    } while (at < bytes);
  }
  // The parts that a rank shows for every other share its area: what of a part fits, ...
  size_t part_chunk() const { return kArea / size_t(window_.size()) / kAlign * kAlign; }
  // ... [at, at + now) of each part shown, ...
  void show_parts(const GroupCall& call, size_t at, size_t now, size_t part_bytes);
  // ... and what `rank` has shown for this one.
  const std::byte* part_from(int rank, size_t now) const;
  // Combines what leaf(rank) points to, `bytes` of each, into the results at byte `at`.
  template <class Leaf>
  void combine(const GroupCall& call, size_t at, size_t bytes, const Leaf& leaf);

  Window& window_;
  const PeerMemory& memory_;
  const size_t most_whole_;
  Way way_ = Way::only;  // of the last operation
};

}  // namespace tutti::group
