// The collectives over a window, the same for threads and for processes.
//
// What is small is shown whole, once. What is large goes through the window chunk by chunk, each
// rank combining its share of a chunk; or is combined where it lies, if all ranks can reach it.
#pragma once

#include "group/shm/reach.h"
#include "group/shm/window.h"

namespace tutti::group {

class Stream;

class Windowed {
 public:
  Windowed(Window& window, const Reach& reach) : window_(window), reach_(reach) {}

  void run(const Description& what, const detail::GroupCall& call, Patience patience,
           std::span<const Piece> list = {});
  void all_reduce(const Description& what, const LeafReduction& reduction, Patience patience);
  void all_gather_uneven(const Description& what, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts,
                         Patience patience);

 private:
  template <class Show, class Take>
  void in_chunks(size_t bytes, size_t chunk, const Show& show, const Take& take);
  void all_at_once(const Stream& stream);
  void through_window(const Stream& stream);
  void in_place(const Stream& stream);

  Window& window_;
  const Reach& reach_;
};

}  // namespace tutti::group
