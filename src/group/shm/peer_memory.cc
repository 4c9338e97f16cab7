// SPDX-License-Identifier: Apache-2.0
#include "group/shm/peer_memory.h"

#include <algorithm>

namespace tutti::group {

Block* BlockPool::make(PeerMemory& memory, int ranks, size_t extra) {
  std::lock_guard lock(mutex_);
  std::erase_if(kept_, [](const Kept& kept) {
    return static_cast<Block*>(kept.memory.get())->gone.load() == kept.ranks;
  });
  kept_.push_back({memory.allocate_zeroed(Block::bytes(ranks) + extra), uint32_t(ranks)});
  return static_cast<Block*>(kept_.back().memory.get());
}

}  // namespace tutti::group
