// SPDX-License-Identifier: Apache-2.0
#include "group/shm/collectives.h"

namespace tutti::group {

void SharedMemoryCollectives::broadcast(const GroupCall& call) {
  const bool is_root = window_.rank() == call.root;
  std::byte* const data = bytes_of(call.out.data);
  in_chunks(
      size_in_bytes(call.out), kArea,
      [&](size_t at, size_t now) {
        if (is_root) copy_bytes(window_.mine(now), data + at, now);
      },
      [&](size_t at, size_t now) {
        if (!is_root) copy_bytes(data + at, window_.shown(call.root, now), now);
      });
}

}  // namespace tutti::group
