// SPDX-License-Identifier: Apache-2.0
// Messages between any two ranks of a group that spans several hosts, by the transport, with the
// failure contract around every wait. Like a Window, it knows nothing of the collectives.
#pragma once

#include <tutti/error.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "group/core/operation.h"
#include "group/liveness/liveness.h"
#include "group/liveness/receive.h"
#include "group/net/control_plane.h"
#include "group/net/greeting.h"
#include "group/shm/window.h"

namespace tutti::group {

// The ranks of one group, and the number that its messages are known by. It refers to vectors that
// outlive it.
struct GroupMembers {
  const std::vector<int>& ranks;  // of the job, by rank of the group
  int rank;                       // of this process, in the group
  uint32_t id;
  const std::vector<int>& hosts;  // by rank of the group: a number of its host
};

class PeerChannels final : private ControlPlane::Listener {
 public:
  // `window`: of the ranks on this host, or null. `latch`: the group's, which is the window's if
  // there is one.
  PeerChannels(GroupMembers group, std::shared_ptr<ControlPlane> control,
               std::shared_ptr<const PeerMonitor> peers, Window* window, FailureLatch& latch);
  ~PeerChannels();  // leaves
  PeerChannels(const PeerChannels&) = delete;

  int rank() const { return group_.rank; }
  int size() const { return int(group_.ranks.size()); }
  const PeerMonitor& peers() const { return liveness_.peers(); }
  size_t reserved() const;  // as that of Backend

  // A new operation. Throws if the group has failed. `list`: the tensors that errors name.
  void begin(const Description& what, Timeouts timeouts, std::span<const Piece> list = {});

  // Messages under way. Each is waited for, or cancelled, before its memory is gone. For
  // collectives: one thread at a time.
  class Transfers {
   public:
    explicit Transfers(PeerChannels& channels);
    ~Transfers();
    Transfers(const Transfers&) = delete;

    // Both return the number of the message.
    size_t send(int peer, MessageKind kind, const void* data, size_t bytes);
    size_t receive(int peer, MessageKind kind, void* data, size_t bytes);
    void wait(size_t number);
    void wait_all();
    // Takes in what is there, and sends what can be sent.
    void progress() { channels_.transport_.progress(); }
    // Takes in what comes within this time.
    void settle(std::chrono::nanoseconds at_most);
    // The peers from which something is still to come.
    std::vector<int> pending();

   private:
    friend class PeerChannels;
    struct Item {
      Transport::Message* message;
      int peer;
      bool sending;
    };
    PeerChannels& channels_;
    size_t over_ = 0;  // all messages before this one are over
    std::vector<Item> items_;
  };

  // Sends `peers` a greeting, which says what this rank is doing, with `bytes` of to_tell(peer) for
  // each, and receives theirs. They must be doing the same. What they told is in told(peer) until
  // the next handshake.
  class Handshake {
   public:
    Handshake(PeerChannels& channels, std::span<const int> peers,
              std::span<const size_t> bytes = {})
        : Handshake(channels, peers, bytes, peers) {}
    // Sends greetings to some ranks, and receives those of others.
    Handshake(PeerChannels& channels, std::span<const int> to, std::span<const size_t> bytes,
              std::span<const int> from);
    void finish();

   private:
    PeerChannels& channels_;
    const size_t told_;
    std::span<const int> from_;
    Transfers transfers_;
  };

  // A whole handshake, with fill(peer, memory) -> bytes for each, at most kMostTold. The ranks of
  // this host go through a phase of their `window` meanwhile, if it is given.
  template <class Fill>
  void shake_hands(std::span<const int> peers, const Fill& fill, Window* window = nullptr) {
    told_bytes_.clear();
    for (const int peer : peers) told_bytes_.push_back(fill(peer, to_tell(peer)));
    shake_hands(peers, window, told_bytes_);
  }
  void shake_hands(std::span<const int> peers, Window* window, std::span<const size_t> bytes = {}) {
    Handshake handshake(*this, peers, bytes);
    if (window) window->next_phase();
    handshake.finish();
  }
  const std::byte* told(int peer);
  std::byte* to_tell(int peer);

  // Between two ranks, beside the collectives.
  void send(const Description& what, const detail::Memory& in, int64_t tag, Timeouts timeouts);
  void recv(const Description& what, const detail::Memory& out, int64_t tag, Timeouts timeouts);

  // Whether a message could not be cancelled. Its memory may still be written to, so memory that
  // may hold it must never be used again.
  bool has_lost_memory() const { return lost_memory_.load(); }

  // Makes the group fail with this rank at fault, unless it has failed before, and tells the ranks
  // on all hosts.
  void fail_all(ErrorCode code, const std::string& text);
  // Throws if the group has failed or a rank is lost; `during` starts the text. On any thread.
  void check_ranks(const std::string& during);

 private:
  struct Header;
  // The state of one call, over all its waits.
  struct WaitState {
    Deadline deadline;
    std::optional<std::chrono::steady_clock::time_point> lost = {};  // when the connection was
  };
  // What a thread waits for.
  struct Wait {
    int peer;
    const Description& what;
    uint64_t number;
    WaitState& state;
    Transfers* transfers = nullptr;  // that the message is part of

    std::string during() const { return described(what, number); }
  };
  // What this rank keeps for a peer that it has exchanged greetings with.
  struct PeerState {
    std::atomic<uint64_t> heard{0};               // the operation of the peer's last greeting
    std::unique_ptr<std::byte[]> greetings = {};  // to it, and from it
  };
  // Peers are many, and those that a rank deals with few: their states are made when first needed,
  // by the thread of the collectives. Any thread may look one up.
  class PeerStates {
   public:
    explicit PeerStates(size_t peers) : chunks_((peers + kChunk - 1) / kChunk) {}
    ~PeerStates() {
      for (const std::atomic<Chunk*>& chunk : chunks_) delete chunk.load();
    }
    // Null if the peer has no state yet.
    PeerState* find(int peer) const {
      Chunk* const chunk = chunks_[size_t(peer) / kChunk].load(std::memory_order_acquire);
      return chunk ? &(*chunk)[size_t(peer) % kChunk] : nullptr;
    }
    PeerState& make(int peer) {
      if (PeerState* const made = find(peer)) return *made;
      chunks_[size_t(peer) / kChunk].store(new Chunk, std::memory_order_release);
      return *find(peer);
    }
    // Never frees the memory, since a lost message may still write to it.
    void abandon() { new std::vector<std::atomic<Chunk*>>(std::move(chunks_)); }
    size_t count_greetings() const;

   private:
    static constexpr size_t kChunk = 32;
    using Chunk = std::array<PeerState, kChunk>;
    std::vector<std::atomic<Chunk*>> chunks_;
  };
  // One message, cancelled if it is not waited for to the end.
  struct Transfer {
    Transfer(PeerChannels& c, Transport::Message* m) : channels(c), message(m) {}
    ~Transfer() { channels.cancel(message); }
    Transfer(const Transfer&) = delete;
    PeerChannels& channels;
    Transport::Message* message;
  };

  uint32_t tag(MessageKind kind) const { return ControlPlane::tag(group_.id, kind); }
  int outer(int peer) const { return group_.ranks[size_t(peer)]; }
  void cancel(Transport::Message* message);
  std::byte* greeting_to(int peer);
  std::byte* greeting_from(int peer);
  // Waits until the message is over, and sets it to null.
  void await(Transport::Message*& message, const Wait& wait);
  [[noreturn]] void fail_since_lost(const Wait& wait);
  void check_wait(const Wait& wait, bool is_coming);
  // `culprit`: the only rank of the job that is awaited, or -1.
  void announce(Deadline& deadline, int culprit);
  void hear(int from, const ControlPlane::Notice& notice) override;
  std::span<const int> members() const override { return group_.ranks; }
  void tell_all(const ControlPlane::Notice& notice) { control_->tell(group_.ranks, notice); }
  void tell_failure(const cluster::Failure& failure);
  std::optional<base::Clock::time_point> left_at(int peer) const;
  bool is_on_this_host(int of_job) const;
  bool waits(int peer) const;  // whether the peer announces that it waits for another rank
  // Whether a rank on a host of one of `peers` announces that it waits for a rank of this host.
  bool is_accused(std::span<const int> peers) const;
  [[noreturn]] void disagree(std::span<const int> peers);  // whose greetings are here
  void show_list();
  std::vector<ListedTensor> list_of(int peer, const Greeting& greeting);
  uint64_t operation_of(int peer) const;

  const GroupMembers group_;
  const std::shared_ptr<ControlPlane> control_;
  Transport& transport_;
  Window* const window_;
  FailureLatch& latch_;
  const Liveness liveness_;
  const bool crowded_;

  uint64_t number_ = 0, sent_ = 0, received_ = 0;
  Description what_;
  uint64_t hash_ = 0;            // of `what_`
  std::span<const Piece> list_;  // of the operation
  WaitState wait_state_;
  const size_t greeting_stride_;
  PeerStates peer_states_;
  // Kept, since most operations need as much as the last.
  std::vector<size_t> told_bytes_;
  std::vector<std::vector<Transfers::Item>> spare_items_;

  std::atomic<bool> told_failure_{false}, lost_memory_{false};
  std::map<int, std::vector<EarlyMessage>> unclaimed_;  // by sender
  // The notices of peers.
  mutable std::mutex mutex_;
  using Time = std::chrono::steady_clock::time_point;
  // When a peer last said: that it leaves; that it waits for another rank; that it waits for one of
  // this host.
  std::map<int, Time> left_, waits_, accuses_;
  std::map<int, std::vector<ListedTensor>> lists_;  // that peers show
};

}  // namespace tutti::group
