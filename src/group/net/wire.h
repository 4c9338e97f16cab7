// The ranks of a group where they do not share memory: messages between any two of them, with the
// failure contract around every wait. Like a Window, it knows nothing of what is being done.
#pragma once

#include <tutti/error.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "group/core/operation.h"
#include "group/net/network.h"
#include "group/shm/window.h"

namespace tutti::group {

// With so little, an operation's data travels with its greeting; and with this much at most.
constexpr size_t kSmallMessage = 8 << 10;
constexpr size_t kMostTold = 32 << 10;

// The ranks of one group, and the number that its messages are known by.
struct WireGroup {
  std::vector<int> ranks;  // of the job, by rank of the group
  int rank;                // of this process, in the group
  uint32_t id;
};

class Wire final : private Network::Listener {
 public:
  // `window`: of the ranks on this host, or null; it is poisoned with the wire.
  Wire(WireGroup group, std::shared_ptr<Network> network, std::shared_ptr<const Members> members,
       Window* window);
  ~Wire();  // leaves
  Wire(const Wire&) = delete;

  int rank() const { return group_.rank; }
  int size() const { return int(group_.ranks.size()); }
  const WireGroup& group() const { return group_; }
  const Members& members() const { return *members_; }

  // A new operation. Throws where the group has failed.
  void begin(const Description& what, Patience patience, std::span<const Piece> list = {});

  // Messages under way, which are waited for, or got rid of, before their memory is gone. For
  // collectives: one thread at a time.
  class Flight {
   public:
    explicit Flight(Wire& wire);
    ~Flight();
    Flight(const Flight&) = delete;

    size_t send(int peer, Lane lane, const void* data, size_t bytes);
    size_t receive(int peer, Lane lane, void* data, size_t bytes);
    void wait(size_t number);
    void wait_all();
    // Takes in what is there, and sends what can be sent.
    void progress() { wire_.transport_.progress(); }
    // Takes in what comes, so long at most.
    void settle(std::chrono::nanoseconds at_most);
    // Those from whom something is still to come.
    std::vector<int> pending();

   private:
    friend class Wire;
    struct Item {
      Transport::Message* message;
      int peer;
      bool sending;
    };
    Wire& wire_;
    size_t over_ = 0;  // all before this one are
    std::vector<Item> items_;
  };

  // Tells `peers` what this rank is doing, with `bytes` of to_tell(peer) for each; and hears the
  // same from them, which must be doing the same. What they told is in told(peer) until the next.
  class Greetings {
   public:
    Greetings(Wire& wire, std::span<const int> peers, std::span<const size_t> bytes = {});
    void finish();

   private:
    Wire& wire_;
    std::span<const int> peers_;
    uint64_t hash_;
    Flight flight_;
  };

  // At once, with fill(peer, memory) -> bytes for each, at most kMostTold.
  // `neighbours` meet in their window meanwhile, where they may be in a reduction.
  template <class Fill>
  void meet(std::span<const int> peers, const Fill& fill, Window* neighbours = nullptr) {
    told_bytes_.clear();
    for (const int peer : peers) told_bytes_.push_back(fill(peer, to_tell(peer)));
    meet(peers, neighbours, told_bytes_);
  }
  void meet(std::span<const int> peers, Window* neighbours, std::span<const size_t> bytes = {}) {
    Greetings greetings(*this, peers, bytes);
    if (neighbours) neighbours->meet();
    greetings.finish();
  }
  const std::byte* told(int peer) const;

  // Between two ranks, beside the collectives.
  void send(const Description& what, const detail::Memory& in, int64_t tag, Patience patience);
  void recv(const Description& what, const detail::Memory& out, int64_t tag, Patience patience);

  // A message could not be called back, and may still be written to: memory that it might be in is
  // never used again.
  bool has_lost_memory() const { return lost_memory_.load(); }

  [[noreturn]] void fail(ErrorCode code, const std::string& text);
  void poison(ErrorCode code, const std::string& text);
  void check();
  // Also where a rank is lost; `during` starts the text. On any thread.
  void check_ranks(const std::string& during);

 private:
  struct Greeting;
  struct Head;
  // What somebody waits for.
  struct Need {
    int peer;
    const Description& what;
    uint64_t number;
    Waiting& waiting;
    Flight* flight = nullptr;  // that it is part of
  };
  struct Stored {
    int64_t tag;
    DType dtype;
    std::vector<std::byte> data;
  };

  uint32_t tag(Lane lane) const { return Network::tag(group_.id, lane); }
  int outer(int peer) const { return group_.ranks[size_t(peer)]; }
  // One message, got rid of where it is not waited for to the end.
  struct Parcel {
    Parcel(Wire& w, Transport::Message* m) : wire(w), message(m) {}
    ~Parcel() { wire.give_up(message); }
    Parcel(const Parcel&) = delete;
    Wire& wire;
    Transport::Message* message;
  };
  void give_up(Transport::Message* message);
  std::byte* to_tell(int peer) const;
  // Until it is over, and null.
  void await(Transport::Message*& message, const Need& need);
  [[noreturn]] void broken(const Need& need);
  void look_around(const Need& need);
  void hear(int from, const Network::Notice& notice) override;
  void tell_all(const Network::Notice& notice);
  bool waits(int peer) const;  // for another, as it says
  [[noreturn]] void disagree(std::span<const int> peers);
  void show_list();
  std::vector<ListedTensor> list_of(int peer, const Greeting& greeting);
  std::string name_of(int peer) const;
  std::string progress(int peer) const;
  std::byte* greeting_from(int peer) const;
  std::byte* greeting_to(int peer) const;

  const WireGroup group_;
  const std::shared_ptr<Network> network_;
  Transport& transport_;
  const std::shared_ptr<const Members> members_;
  Window* const window_;
  const bool crowded_;
  const std::atomic<bool>* const alarm_;

  uint64_t number_ = 0, sent_ = 0, received_ = 0;
  Description what_;
  std::span<const Piece> list_;  // of the operation
  Waiting waiting_{};
  std::unique_ptr<std::byte[]> greetings_;  // to and from each peer
  // Kept, since most operations need as much as the last.
  std::vector<size_t> told_bytes_;
  std::vector<std::vector<Flight::Item>> spare_items_;

  // What peers say besides: that they failed, or that they leave.
  mutable std::mutex mutex_;
  std::optional<cluster::Failure> poison_;
  std::atomic<bool> poisoned_{false}, lost_memory_{false};
  std::vector<std::optional<std::chrono::steady_clock::time_point>> left_;
  std::vector<std::optional<std::chrono::steady_clock::time_point>> waits_;  // when it said so last
  std::vector<std::vector<ListedTensor>> lists_;                             // that peers show
  std::vector<std::atomic<uint64_t>> heard_;    // the last operation that a peer greeted for
  std::vector<std::vector<Stored>> unclaimed_;  // messages by sender, received before their turn
};

}  // namespace tutti::group
