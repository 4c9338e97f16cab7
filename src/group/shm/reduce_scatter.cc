// SPDX-License-Identifier: Apache-2.0
#include "group/shm/combine.h"

namespace tutti::group {

void SharedMemoryCollectives::reduce_scatter(const GroupCall& call) {
  const size_t part_bytes = size_in_bytes(call.in) / size_t(window_.size());
  in_chunks(
      part_bytes, part_chunk(),
      [&](size_t at, size_t now) { show_parts(call, at, now, part_bytes); },
      [&](size_t at, size_t now) {
        combine(call, at, now, [&](int r) { return part_from(r, now); });
      });
}

}  // namespace tutti::group
