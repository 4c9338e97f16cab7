// SPDX-License-Identifier: Apache-2.0
#include "group/shm/collectives.h"

namespace tutti::group {

void SharedMemoryCollectives::scatter(const GroupCall& call) {
  const size_t bytes = size_in_bytes(call.out);
  in_chunks(
      bytes, part_chunk(),
      [&](size_t at, size_t now) {
        if (window_.rank() == call.root) show_parts(call, at, now, bytes);
      },
      [&](size_t at, size_t now) {
        copy_bytes(bytes_of(call.out.data) + at, part_from(call.root, now), now);
      });
}

}  // namespace tutti::group
