// The meeting place of a group's ranks: memory that all of them reach, whether they are threads or
// processes. It knows phases and waiting, and nothing of what is being done.
//
// Each rank has a block. In every phase a rank puts something there, shows it, and waits until all
// have shown theirs. Two areas take turns: who has met the others in phase p knows that all have
// read what was shown in phase p - 1, and may write over it. So one meeting a phase is enough.
#pragma once

#include <tutti/error.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/running_time.h"
#include "cluster/coordination.h"
#include "group/core/operation.h"

namespace tutti::group {

// What the outside knows of the ranks.
class Members {
 public:
  virtual ~Members() = default;
  virtual std::string address(int rank) const = 0;  // "127.0.0.1:5002"; empty for a thread
  // What errors call a rank, where those that meet here are only some of a group.
  virtual int number(int rank) const { return rank; }
  // Why nothing more can come from this rank, without having said so; empty while it may.
  virtual std::string loss(int rank) const = 0;
  // Why the whole job cannot go on; asked when `alarm` is set, or null.
  virtual std::optional<cluster::Failure> failure() const = 0;
  virtual const std::atomic<bool>* alarm() const = 0;
  // Why this process suspects its own network instead of the ranks it does not hear, as what
  // follows its name; empty if it does not.
  virtual std::string isolation() const { return {}; }
  // A rank that is stopped may write to this process's memory whenever it goes on: what it can
  // reach must not be used for anything else.
  virtual void abandon_memory() const = 0;
  virtual bool crowded() const = 0;  // are there more ranks than cores to run them on?
  virtual bool separate_processes() const = 0;
};

constexpr size_t kLine = 64;          // what one core takes from another at once
constexpr size_t kArea = 512 << 10;   // what a rank shows in one phase, at most
constexpr size_t kPacket = 64 << 10;  // what travels at once between two ranks

// How far a call's patience is used up.
struct Waiting {
  Patience patience;
  std::optional<base::RunningTime> waited = {};  // since its first wait began
  bool warned = false;
  std::optional<std::chrono::steady_clock::time_point> lost =
      {};  // the connection to whom it waits for
  std::optional<std::chrono::steady_clock::time_point> told = {};  // others, that it waits
};

// Warns of a wait that has become long, once; where its time is over, what the error says. Both
// name those that missing() tells, or are left out where it tells nothing.
std::string overdue(Waiting& waiting, const Description& what, uint64_t number,
                    const std::function<std::string()>& missing);

// What lies in shared memory. Atomics without locks, and no pointers.
struct alignas(kLine) Slot {
  std::atomic<uint32_t> phase;  // what is shown belongs to this one
  uint32_t flag;
  uint64_t hash;      // of the operation
  std::byte few[48];  // with so little, all comes in one line
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

struct Poison {
  std::atomic<uint32_t> state;  // 0: none, 1: being written, 2: there
  ErrorCode code;
  char text[4096 - 8];
};

struct Block {
  Slot slots[2];
  alignas(kLine) Description descriptions[2];
  alignas(kLine) std::atomic<uint32_t> sleepers;   // who wait on a slot of this block
  alignas(kLine) std::atomic<uint64_t> operation;  // the one this rank is in, or was in last
  std::atomic<uint32_t> left;
  std::atomic<uint32_t>
      gone;  // ranks that will never look here again; with all of them, it is free
  std::atomic<uint32_t> touching;  // this rank works on the memory of others
  std::atomic<uint32_t> listed;    // the phase whose area holds a list instead of data
  // The rank that each of this rank's threads sleeps for, and 1 more; 0: none; kElsewhere: one that
  // is not in the window. In a collective, a send, a recv.
  static constexpr uint32_t kElsewhere = UINT32_MAX;
  std::atomic<uint32_t> awaited[3];
  std::atomic<int64_t> elsewhere_at;  // when it last said that it is; of the steady clock
  alignas(kLine) Poison poison;       // that of rank 0 counts
  alignas(4096) std::byte areas[2][kArea];

  Channel& to(int peer) { return reinterpret_cast<Channel*>(this + 1)[peer]; }
  static size_t bytes(int ranks) { return sizeof(Block) + sizeof(Channel) * size_t(ranks); }
};

class Window {
 public:
  // `blocks` are zeroed, and stay until all ranks are gone.
  Window(int rank, std::vector<Block*> blocks, std::shared_ptr<const Members> members);
  ~Window();  // leaves
  Window(const Window&) = delete;

  int rank() const { return rank_; }
  int size() const { return int(blocks_.size()); }
  const Members& members() const { return *members_; }
  uint64_t operation() const { return number_; }

  // A new operation, which all ranks must describe alike. Throws where the group has failed.
  // `list`: the tensors that errors speak of.
  void begin(const Description& what, Patience patience, std::span<const Piece> list = {});

  // Where to put up to `bytes` for the next phase, and what `rank` has shown in this one.
  std::byte* mine(size_t bytes) { return place(rank_, phase_ + 1, bytes); }
  const std::byte* shown(int rank, size_t bytes) const { return place(rank, phase_, bytes); }
  uint32_t flag(int rank) const { return slot(rank, phase_).flag; }

  // Shows what is in place and waits until all ranks have shown theirs.
  void meet(uint32_t flag = 0);

  // While all ranks let the others at their memory.
  class Touch {
   public:
    explicit Touch(Window& window) : window_(window) {}
    // Where the operation fails: waits until nobody works on this rank's memory any more, so that
    // its owner can have it back.
    ~Touch();
    Touch(const Touch&) = delete;

    void begin();  // on the others' memory. Throws where the group has failed.
    void end();
    void all_done() { all_done_ = true; }

   private:
    Window& window_;
    bool all_done_ = false;
  };

  // While this rank waits for one that is not in the window. Who waits here for this rank lets it
  // speak first, since it knows whom to name.
  class Elsewhere {
   public:
    Elsewhere(Window* window, Collective kind);  // null: there is nobody to know it
    ~Elsewhere();
    Elsewhere(const Elsewhere&) = delete;
    void say();  // often: who is stopped says nothing

   private:
    Block* const block_;
    const size_t role_;
  };

  // Between two ranks; `what` is a send or a recv. The other's dtype and size must be the same. A
  // thread may send and another receive while a third is in a collective.
  void send(const Description& what, const detail::Memory& in, int64_t tag, Patience patience);
  void recv(const Description& what, const detail::Memory& out, int64_t tag, Patience patience);

  // The group has failed: tells all ranks, unless another error was first, and throws the first.
  [[noreturn]] void fail(ErrorCode code, const std::string& text);
  // The same without throwing.
  void poison(ErrorCode code, const std::string& text);
  // Throws where the group has failed.
  void check() const;
  // Also where a rank is lost, which fails the group; `during` starts the text. On any thread.
  void check_ranks(const std::string& during);

 private:
  struct Wait;
  struct Message {
    int64_t tag;
    DType dtype;
    std::vector<std::byte> data;
  };

  Slot& slot(int rank, uint32_t phase) const { return blocks_[size_t(rank)]->slots[phase & 1]; }
  std::byte* place(int rank, uint32_t phase, size_t bytes) const {
    return bytes <= sizeof(Slot::few) ? slot(rank, phase).few
                                      : blocks_[size_t(rank)]->areas[phase & 1];
  }
  Channel& channel(int from, int to) const { return blocks_[size_t(from)]->to(to); }
  [[noreturn]] void disagree(int other);
  std::string compare_lists(int other, const Description& theirs);
  void await(Wait& wait);
  bool yield_until(auto over);
  void look_around(Wait& wait);
  std::string name_of(int rank) const;   // "rank 2 (127.0.0.1:5002)"
  std::string progress(int rank) const;  // "rank 2 is at #12"
  int awaited_by(int rank) const;        // the rank it waits for; -1: for none
  bool waits_elsewhere(int rank) const;  // or for somebody who does
  // "rank 2 (…), which waits for rank 0 (…); rank 0 is at #12"
  std::string blame(int rank) const;
  void wake(std::atomic<uint32_t>& word, const std::atomic<uint32_t>& sleepers) const;

  const int rank_;
  const std::vector<Block*> blocks_;
  const std::shared_ptr<const Members> members_;
  const bool crowded_;  // more ranks than cores
  std::atomic<std::chrono::steady_clock::time_point> no_yield_before_{};
  std::atomic<std::chrono::nanoseconds> no_yield_for_{};  // the last time
  const std::atomic<bool>* const alarm_;
  uint64_t number_ = 0;  // of the collective
  uint64_t sent_ = 0, received_ = 0;
  uint32_t phase_ = 0;
  Description what_;
  std::span<const Piece> list_;  // of the operation
  uint64_t hash_ = what_.hash();
  Waiting waiting_{};
  std::vector<std::vector<Message>> unclaimed_;  // messages by sender, received before their turn
};

}  // namespace tutti::group
