// SPDX-License-Identifier: Apache-2.0
// What lies in the memory that the ranks of a host share. Atomics without locks, and no pointers.
#pragma once

#include <tutti/dtype.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "group/core/operation.h"
#include "group/liveness/failure_latch.h"

namespace tutti::group {

constexpr size_t kArea = 512 << 10;   // what a rank shows in one phase, at most
constexpr size_t kPacket = 64 << 10;  // what travels at once between two ranks

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

// What a rank shows in a phase.
struct alignas(kLine) Slot {
  std::atomic<uint32_t> phase;  // that the rest belongs to
  uint32_t flag;
  uint64_t hash;      // of the operation
  std::byte few[48];  // data that fits here comes with the phase, in one line
};

struct Packet {
  int64_t tag;
  uint64_t bytes;  // of the whole message
  DType dtype;
  alignas(kLine) std::byte data[kPacket];
};

// Packets from one rank to another. Each counter has one writer.
struct Channel {
  alignas(kLine) std::atomic<uint32_t> written;
  alignas(kLine) std::atomic<uint32_t> taken;
  alignas(kLine) std::atomic<uint32_t> sleepers;
  Packet packets[2];
};

// One rank's part. It is free once all ranks are gone.
struct Block {
  Slot slots[2];
  alignas(kLine) Description descriptions[2];
  alignas(kLine) std::atomic<uint32_t> sleepers;   // threads that wait on a slot of this block
  alignas(kLine) std::atomic<uint64_t> operation;  // the one this rank is in, or was in last
  std::atomic<uint32_t> left;                      // this rank has left the group
  std::atomic<uint32_t> gone;                      // ranks that will never look here again
  std::atomic<uint32_t> touching;                  // this rank works on the memory of others
  std::atomic<uint32_t> listed;  // the phase whose area holds a list instead of data
  // By Role: 1 plus the rank that this rank's thread sleeps for; 0: none; kElsewhere: a rank on
  // another host.
  static constexpr uint32_t kElsewhere = UINT32_MAX;
  std::atomic<uint32_t> awaited[3];
  std::atomic<int64_t> elsewhere_at;     // when it last said kElsewhere; of the steady clock
  alignas(kLine) SharedFailure failure;  // that of rank 0 counts
  alignas(4096) std::byte areas[2][kArea];

  Channel& to(int peer) { return reinterpret_cast<Channel*>(this + 1)[peer]; }
  static size_t bytes(int ranks) { return sizeof(Block) + sizeof(Channel) * size_t(ranks); }
};

// The three things that a rank may do at once.
enum class Role : size_t { collective, send, recv };
inline Role role_of(Collective kind) {
  return kind == Collective::send   ? Role::send
         : kind == Collective::recv ? Role::recv
                                    : Role::collective;
}

}  // namespace tutti::group
