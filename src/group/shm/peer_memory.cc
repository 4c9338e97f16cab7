// SPDX-License-Identifier: Apache-2.0
#include "group/shm/peer_memory.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <new>

namespace tutti::group {

std::shared_ptr<void> allocate_private(size_t bytes) {
  void* const memory = ::operator new(bytes, std::align_val_t(kLine), std::nothrow);
  if (!memory)
    throw ResourceExhaustedError(fmt::format("group: the system has no {} bytes", bytes));
  return {memory, [](void* data) { ::operator delete(data, std::align_val_t(kLine)); }};
}

Blocks BlockPool::make(PeerMemory& memory, int ranks, size_t extra) {
  std::lock_guard lock(mutex_);
  std::erase_if(kept_, [](const Kept& kept) {
    return Blocks(kept.memory.get(), kept.ranks).gone().load() == uint32_t(kept.ranks);
  });
  kept_.push_back({memory.allocate_zeroed(Blocks::bytes(ranks) + extra), ranks});
  return {kept_.back().memory.get(), ranks};
}

}  // namespace tutti::group
