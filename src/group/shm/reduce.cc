// SPDX-License-Identifier: Apache-2.0
#include "group/shm/combine.h"

namespace tutti::group {

void SharedMemoryCollectives::reduce(const GroupCall& call) {
  const bool wanted = call.kind == Collective::all_reduce || window_.rank() == call.root;
  in_chunks(
      size_in_bytes(call.in), kArea,
      [&](size_t at, size_t now) {
        copy_bytes(window_.mine(now), bytes_of(call.in.data) + at, now);
      },
      [&](size_t at, size_t now) {
        if (wanted) combine(call, at, now, [&](int r) { return window_.shown(r, now); });
      });
}

}  // namespace tutti::group
