// SPDX-License-Identifier: Apache-2.0
#include "group/shm/collectives.h"

namespace tutti::group {

void SharedMemoryCollectives::all_to_all(const GroupCall& call) {
  const size_t bytes = size_in_bytes(call.in) / size_t(window_.size());
  in_chunks(
      bytes, part_chunk(), [&](size_t at, size_t now) { show_parts(call, at, now, bytes); },
      [&](size_t at, size_t now) {
        for (int r = 0; r < window_.size(); ++r)
          copy_bytes(bytes_of(call.out.data) + size_t(r) * bytes + at, part_from(r, now), now);
      });
}

}  // namespace tutti::group
