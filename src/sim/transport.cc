// SPDX-License-Identifier: Apache-2.0
#include "sim/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "group/net/control_plane.h"
#include "group/net/greeting.h"
#include "group/net/transport_parts.h"

namespace tutti::sim {

using group::MessageKind;
using group::Transport;

namespace {

// Up to this size a send is over at once: the sender's host keeps the message.
constexpr size_t kKept = 64 << 10;

// How many bytes of a message move in a world that moves lengths alone.
size_t head_of(uint32_t tag, size_t bytes) {
  switch (MessageKind(tag & 7)) {
    case MessageKind::handshake: return std::min(bytes, group::kGreetingData);
    case MessageKind::data:
    case MessageKind::results:
    case MessageKind::message: return 0;
    case MessageKind::header:
    case MessageKind::notice: break;
  }
  return bytes;
}

}  // namespace

class SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(Fabric& fabric, int rank)
      : fabric_(fabric), world_(fabric.world_), rank_(rank) {}
  ~SimulatedTransport() override {
    fabric_.open_[size_t(rank_)] = nullptr;
    fabric_.closed_[size_t(rank_)] = true;
    int receives = 0;
    for (const auto& [rank, peer] : peers_)
      for (const Item* item = peer.receives; item; item = item->next) ++receives;
    if (receives || unsent_)
      fabric_.leaks_.push_back(
          fmt::format("rank {} leaves {} receives and {} sends behind", rank_, receives, unsent_));
    hang_up();
  }

  const char* name() const override { return "simulated"; }

  Message* send(int to, uint64_t tag, const void* data, size_t bytes) override {
    if (world_.is_over()) return nullptr;
    Peer& peer = connected(to);
    if (peer.is_lost) return messages_.make({.peer = to, .state = State::failed});
    peer.is_used = true;
    Envelope envelope{uint32_t(tag), bytes, {}, nullptr};
    if (const size_t moved = moves_data_ ? bytes : head_of(uint32_t(tag), bytes)) {
      const auto* const from = static_cast<const std::byte*>(data);
      envelope.data.assign(from, from + moved);
    }
    Item* const waits = bytes > kKept
                            ? messages_.make({.peer = to, .tag = uint32_t(tag), .sending = true})
                            : nullptr;
    envelope.sender = waits;
    if (waits) ++unsent_;
    world_.send(fabric_.process_of(rank_), fabric_.process_of(to), bytes + kHead,
                [fabric = &fabric_, from = rank_, to, envelope = std::move(envelope)]() mutable {
                  if (SimulatedTransport* const there = fabric->answer(to, from))
                    there->take(from, std::move(envelope));
                });
    return waits;
  }

  Message* receive(int from, uint64_t tag, void* data, size_t bytes) override {
    Item wanted{.data = data, .bytes = bytes, .peer = from, .tag = uint32_t(tag)};
    call(from);
    Peer& peer = connected(from);
    const auto early = std::ranges::find(peer.early, wanted.tag, &Envelope::tag);
    if (early != peer.early.end()) {
      fill(wanted, *early);
      peer.early.erase(early);
      return wanted.state == State::over ? nullptr : messages_.make(wanted);
    }
    if (peer.is_lost) wanted.state = State::failed;
    Item* const made = messages_.make(wanted);
    if (!peer.is_lost) *end_of(peer) = made;
    return made;
  }

  State test(Message* message) override {
    if (!message) return State::over;
    Item* const item = own(message);
    if (item->state == State::under_way) return State::under_way;
    const State state = item->state;
    messages_.drop(item);
    return state;
  }
  bool is_under_way(const Message* message) override {
    return message && static_cast<const Item*>(message)->state == State::under_way;
  }
  bool cancel(Message* message) override {
    if (!message) return true;
    Item* const item = own(message);
    if (item->state == State::under_way && !item->sending) remove(item);
    // The envelope under way has a copy of the data. When it arrives, this message is dropped.
    if (item->state == State::under_way && item->sending) {
      --unsent_;
      cancelled_.push_back(item);
      return true;
    }
    messages_.drop(item);
    return true;
  }

  void progress() override {}
  void flush(nanoseconds at_most) override {
    const World::Time until = world_.now() + at_most;
    while (unsent_ > 0 && world_.now() < until) world_.wait(this, until);
  }
  void sleep(const Message* message, nanoseconds at_most) override {
    if (message && !is_under_way(message)) return;
    world_.wait(this, world_.now() + at_most);
  }
  std::string loss(int rank) const override {
    const auto found = peers_.find(rank);
    return found != peers_.end() && found->second.is_lost ? "Connection reset by peer" : "";
  }

  // Called when the peer has closed the connection, or died.
  void lose(int from) {
    Peer& peer = connected(from);
    if (std::exchange(peer.is_lost, true)) return;
    for (Item* item = peer.receives; item; item = item->next) item->state = State::failed;
    peer.receives = nullptr;
    world_.wake(this);
  }
  int count_connections() {
    int count = 0;
    for (auto& [rank, peer] : peers_) count += std::exchange(peer.is_used, false);
    return count;
  }
  // Whether this transport has a connection to a rank, or asked for one.
  bool calls(int rank) const { return peers_.contains(rank); }

  bool connects_on_demand() const override { return true; }
  std::vector<Connection> new_connections() override { return std::exchange(new_, {}); }

  // Ends all connections, after what was sent before.
  void hang_up() {
    if (world_.is_over()) return;
    for (const auto& [rank, peer] : peers_) fabric_.hang_up(rank_, rank);
  }

 private:
  static constexpr size_t kHead = 16;  // of a message on the wire

  struct Item : Message {
    Item* next = nullptr;  // the next receive from this peer
    void* data = nullptr;
    size_t bytes = 0;
    int peer = 0;
    uint32_t tag = 0;
    State state = State::under_way;
    bool sending = false;
  };
  struct Envelope {
    uint32_t tag;
    size_t bytes;
    std::vector<std::byte> data;
    Item* sender;  // the send that is over when this arrives; null if it was over at once
  };

  struct Peer {
    Item* receives = nullptr;          // the first receive that waits
    std::vector<Envelope> early = {};  // messages that are not received yet
    bool is_lost = false, is_used = false;
  };

  static Item* own(Message* message) { return static_cast<Item*>(message); }

  Peer& connected(int rank) {
    const auto [found, is_new] = peers_.try_emplace(rank);
    if (is_new) new_.push_back({rank, -1});
    return found->second;
  }
  // A rank that waits for a message connects as well. In a world of lengths, whose times are for
  // ranks that are connected, it does not.
  void call(int rank) {
    if (!moves_data_ || world_.is_over() || peers_.contains(rank)) return;
    world_.send(fabric_.process_of(rank_), fabric_.process_of(rank), 0,
                [fabric = &fabric_, from = rank_, rank] {
                  if (SimulatedTransport* const there = fabric->answer(rank, from))
                    there->connected(from);
                });
  }

  static Item** end_of(Peer& peer) {
    Item** at = &peer.receives;
    while (*at) at = &(*at)->next;
    return at;
  }
  void remove(Item* item) {
    Item** at = &peers_[item->peer].receives;
    while (*at != item) at = &(*at)->next;
    *at = item->next;
  }

  void fill(Item& item, const Envelope& envelope) {
    item.state = envelope.bytes > item.bytes ? State::too_long : State::over;
    if (item.state == State::over && !envelope.data.empty())
      std::memcpy(item.data, envelope.data.data(), envelope.data.size());
  }

  void take(int from, Envelope envelope) {
    if (envelope.sender)
      if (SimulatedTransport* const sender = fabric_.open_[size_t(from)])
        sender->arrived(envelope.sender);
    Peer& peer = connected(from);
    peer.is_used = true;
    Item* item = peer.receives;
    while (item && item->tag != envelope.tag) item = item->next;
    if (item) {
      remove(item);
      fill(*item, envelope);
    } else {
      peer.early.push_back(std::move(envelope));
    }
    world_.wake(this);
  }
  void arrived(Item* item) {
    if (std::erase(cancelled_, item)) return messages_.drop(item);
    item->state = State::over;
    --unsent_;
    world_.wake(this);
  }

  Fabric& fabric_;
  World& world_;
  const int rank_;
  const bool moves_data_ = world_.moves_data();
  std::unordered_map<int, Peer> peers_;  // those with a connection, now or before
  std::vector<Connection> new_;
  group::Pool<Item> messages_;
  std::vector<Item*> cancelled_;  // cancelled sends that are still on their way
  int unsent_ = 0;
};

Fabric::Fabric(World& world, std::vector<int> processes)
    : world_(world),
      processes_(std::move(processes)),
      open_(processes_.size()),
      closed_(processes_.size()) {
  // The system of a host closes the connections of a process that died.
  world_.on_death([this](int process) {
    const int rank = rank_of(process);
    if (rank < 0) return;
    if (SimulatedTransport* const transport = open_[size_t(rank)]) transport->hang_up();
    closed_[size_t(rank)] = true;
  });
  // It also refuses new connections to such a process.
  world_.on_refusal([this](int from, int to) {
    const int caller = rank_of(from), rank = rank_of(to);
    if (caller < 0 || rank < 0) return;
    if (SimulatedTransport* const transport = open_[size_t(caller)])
      if (transport->calls(rank)) hang_up(rank, caller);
  });
}

int Fabric::rank_of(int process) const {
  const auto found = std::ranges::find(processes_, process);
  return found == processes_.end() ? -1 : int(found - processes_.begin());
}

SimulatedTransport* Fabric::answer(int rank, int caller) {
  if (!closed_[size_t(rank)]) return open_[size_t(rank)];
  hang_up(rank, caller);
  return nullptr;
}

void Fabric::hang_up(int rank, int peer) {
  world_.send(process_of(rank), process_of(peer), 0, [this, rank, peer] {
    if (SimulatedTransport* const there = open_[size_t(peer)]) there->lose(rank);
  });
}

int Fabric::count_connections(int rank) { return open_[size_t(rank)]->count_connections(); }

std::unique_ptr<group::Transport> Fabric::open(int rank) {
  auto transport = std::make_unique<SimulatedTransport>(*this, rank);
  open_[size_t(rank)] = transport.get();
  return transport;
}

}  // namespace tutti::sim
