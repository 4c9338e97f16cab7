// SPDX-License-Identifier: Apache-2.0
// The memory that the ranks of a host share, whether they are threads or processes. A Window knows
// phases, messages and waiting, and nothing of the collectives.
//
// Each rank has a block. In every phase a rank writes to its block, shows it, and waits until all
// ranks have shown theirs. Two areas take turns: a rank that has ended phase p knows that all ranks
// have read what was shown in phase p - 1, and may write over it. So one wait a phase is enough.
#pragma once

#include <tutti/error.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "group/liveness/deadline.h"
#include "group/liveness/liveness.h"
#include "group/liveness/receive.h"
#include "group/shm/block.h"
#include "group/shm/wait_graph.h"

namespace tutti::group {

class PeerMemory;

class Window {
 public:
  // `blocks` are zeroed, and stay until all ranks are gone. `pump` may be null.
  Window(int rank, Blocks blocks, std::shared_ptr<const PeerMonitor> peers, Pump* pump = nullptr);
  ~Window();  // leaves
  Window(const Window&) = delete;

  int rank() const { return rank_; }
  int size() const { return blocks_.size(); }
  const PeerMonitor& peers() const { return liveness_.peers(); }
  const WaitGraph& wait_graph() const { return wait_graph_; }
  FailureLatch& latch() { return latch_; }
  const FailureLatch& latch() const { return latch_; }
  // Called now and then by a thread that waits. Set before the window is used.
  void on_wait(std::function<void(Deadline&)> hook) { on_wait_ = std::move(hook); }

  // A new operation, which all ranks must describe alike. Throws if the group has failed.
  // `list`: the tensors that errors name.
  void begin(const Description& what, Timeouts timeouts, std::span<const Piece> list = {});

  // Where to write up to `bytes` for the next phase, and what `rank` has shown in this one.
  std::byte* mine(size_t bytes) { return memory_of(rank_, phase_ + 1, bytes); }
  const std::byte* shown(int rank, size_t bytes) const { return memory_of(rank, phase_, bytes); }
  uint32_t flag(int rank) const { return slot(rank, phase_).flag; }

  // Shows what was written, and waits until all ranks have shown theirs.
  void next_phase(uint32_t flag = 0);

  // While all ranks let the others at their memory.
  class Touch {
   public:
    Touch(Window& window, const PeerMemory& memory) : window_(window), memory_(memory) {}
    // If the operation fails: waits until no rank works on this rank's memory any more, so that its
    // owner can have it back.
    ~Touch();
    Touch(const Touch&) = delete;

    void begin();  // on the others' memory. Throws if the group has failed.
    void end();
    void all_done() { all_done_ = true; }

   private:
    Window& window_;
    const PeerMemory& memory_;
    bool all_done_ = false;
  };

  // Between two ranks; `what` is a send or a recv. The other's dtype and size must be the same. A
  // thread may send and another receive while a third is in a collective.
  void send(const Description& what, const detail::Memory& in, int64_t tag, Timeouts timeouts);
  void recv(const Description& what, const detail::Memory& out, int64_t tag, Timeouts timeouts);

  // Throws if the group has failed.
  void check() const { latch_.check(); }
  // Also if a rank is lost, which fails the group; `during` starts the text. On any thread.
  void check_ranks(const std::string& during) const;

 private:
  struct Wait;

  Slot& slot(int rank, uint32_t phase) const { return blocks_[rank].slots[phase & 1]; }
  std::byte* memory_of(int rank, uint32_t phase, size_t bytes) const {
    return bytes <= sizeof(Slot::few) ? slot(rank, phase).few : blocks_.area(rank, phase);
  }
  Channel& channel(int from, int to) const { return blocks_.channel(from, to); }
  uint64_t operation_of(int rank) const { return blocks_[rank].operation.load(); }
  [[noreturn]] void disagree(int other);
  std::string compare_lists(int other, const Description& theirs);
  void await(Wait& wait);
  // Whether it was over before the thread should sleep.
  bool look(const Wait& wait);
  void adapt_looks(std::chrono::nanoseconds slept);
  bool yield_until(auto over);
  void check_wait(Wait& wait) const;
  void check_loss(const std::string& during, int rank) const;
  void wake(std::atomic<uint32_t>& word, const std::atomic<uint32_t>& sleepers) const;

  const int rank_;
  const Blocks blocks_;
  FailureLatch latch_;
  const Liveness liveness_;
  const WaitGraph wait_graph_;
  std::function<void(Deadline&)> on_wait_;
  const bool crowded_;  // more ranks than cores
  const bool separate_processes_;
  const int least_looks_;
  std::atomic<int> looks_ = least_looks_;  // before a thread sleeps
  std::atomic<std::chrono::steady_clock::time_point> no_yield_before_{};
  std::atomic<std::chrono::nanoseconds> no_yield_for_{};  // the last time
  uint64_t number_ = 0;                                   // of the collective
  uint64_t sent_ = 0, received_ = 0;
  uint32_t phase_ = 0;
  Description what_;
  std::span<const Piece> list_;  // of the operation
  uint64_t hash_ = what_.hash();
  Deadline deadline_;
  std::vector<std::vector<EarlyMessage>> unclaimed_;  // by sender
};

// Something that another rank will do: `word` leaves `value` (sends, receives) or becomes it
// (phases).
struct Window::Wait {
  std::atomic<uint32_t>& word;
  uint32_t value;
  bool until_equal;
  std::atomic<uint32_t>& sleepers;
  int peer;
  const Description& what;
  uint64_t number;
  Deadline& deadline;

  bool over(uint32_t now) const { return (now == value) == until_equal; }
  bool over() const { return over(word.load(std::memory_order_acquire)); }
};

}  // namespace tutti::group
