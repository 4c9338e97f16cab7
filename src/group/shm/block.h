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

// One rank's part.
struct alignas(2 * kLine) Block {
  Slot slots[2];
  alignas(kLine) Description descriptions[2];
  alignas(kLine) std::atomic<uint32_t> sleepers;   // threads that wait on a slot of this block
  alignas(kLine) std::atomic<uint64_t> operation;  // the one this rank is in, or was in last
  std::atomic<uint32_t> left;                      // this rank has left the group
  std::atomic<uint32_t> touching;                  // this rank works on the memory of others
  std::atomic<uint32_t> listed;  // the phase whose area holds a list instead of data
  // By Role: 1 plus the rank that this rank's thread sleeps for; 0: none; kElsewhere: a rank on
  // another host.
  static constexpr uint32_t kElsewhere = UINT32_MAX;
  std::atomic<uint32_t> awaited[3];
  std::atomic<int64_t> elsewhere_at;  // when it last said kElsewhere; of the steady clock
};

// What the ranks of a group share, in one piece of zeroed memory. All blocks come first, and what
// only larger data needs follows: ranks that do no more than meet touch few pages, however many
// they are.
class Blocks {
 public:
  Blocks() = default;
  Blocks(void* memory, int ranks) : memory_(static_cast<std::byte*>(memory)), ranks_(ranks) {}

  int size() const { return ranks_; }
  Block& operator[](int rank) const {
    return reinterpret_cast<Block*>(memory_ + sizeof(Header))[rank];
  }
  // Where `rank` shows data in phases of this parity.
  std::byte* area(int rank, uint32_t phase) const {
    return memory_ + areas_at(ranks_) + (2 * size_t(rank) + (phase & 1)) * kArea;
  }
  Channel& channel(int from, int to) const {
    return reinterpret_cast<Channel*>(
        memory_ + channels_at(ranks_))[size_t(from) * size_t(ranks_) + size_t(to)];
  }
  SharedFailure& failure() const { return header().failure; }  // of the group
  // How many ranks will never look here again.
  std::atomic<uint32_t>& gone() const { return header().gone; }
  void* begin() const { return memory_; }
  std::byte* end() const { return memory_ + bytes(ranks_); }

  static size_t bytes(int ranks) {
    return channels_at(ranks) + sizeof(Channel) * size_t(ranks) * size_t(ranks);
  }

 private:
  struct alignas(2 * kLine) Header {
    SharedFailure failure;
    std::atomic<uint32_t> gone;
  };

  static size_t areas_at(int ranks) {
    constexpr size_t kPage = 4096;
    return (sizeof(Header) + sizeof(Block) * size_t(ranks) + kPage - 1) / kPage * kPage;
  }
  static size_t channels_at(int ranks) { return areas_at(ranks) + 2 * kArea * size_t(ranks); }
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }

  std::byte* memory_ = nullptr;
  int ranks_ = 0;
};

// The three things that a rank may do at once.
enum class Role : size_t { collective, send, recv };
inline Role role_of(Collective kind) {
  return kind == Collective::send   ? Role::send
         : kind == Collective::recv ? Role::recv
                                    : Role::collective;
}

}  // namespace tutti::group
