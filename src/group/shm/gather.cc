// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "group/shm/collectives.h"

namespace tutti::group {

void SharedMemoryCollectives::gather(const GroupCall& call) {
  const bool wanted = call.kind != Collective::gather || window_.rank() == call.root;
  const size_t bytes = size_in_bytes(call.in);
  in_chunks(
      bytes, kArea,
      [&](size_t at, size_t now) {
        copy_bytes(window_.mine(now), bytes_of(call.in.data) + at, now);
      },
      [&](size_t at, size_t now) {
        for (int r = 0; wanted && r < window_.size(); ++r)
          copy_bytes(bytes_of(call.out.data) + size_t(r) * bytes + at, window_.shown(r, now), now);
      });
}

void SharedMemoryCollectives::all_gather_uneven(const Description& what, const detail::Memory& in,
                                                const detail::Memory& out,
                                                std::span<const int64_t> counts,
                                                Timeouts timeouts) {
  window_.begin(what, timeouts);
  const size_t each = size_of(in.dtype);
  const size_t most = size_t(*std::ranges::max_element(counts)) * each;
  const auto length = [&](int rank, size_t at, size_t now) {
    const size_t bytes = size_t(counts[size_t(rank)]) * each;
    return bytes <= at ? 0 : std::min(now, bytes - at);
  };
  in_chunks(
      most, kArea,
      [&](size_t at, size_t now) {
        copy_bytes(window_.mine(now), bytes_of(in.data) + at, length(window_.rank(), at, now));
      },
      [&](size_t at, size_t now) {
        std::byte* to = bytes_of(out.data);
        for (int r = 0; r < window_.size(); ++r) {
          copy_bytes(to + at, window_.shown(r, now), length(r, at, now));
          to += size_t(counts[size_t(r)]) * each;
        }
      });
}

}  // namespace tutti::group
