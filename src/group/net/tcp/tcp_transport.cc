// SPDX-License-Identifier: Apache-2.0
// A Transport over sockets.
//
// A message is its head and its bytes. An awaited message goes from the socket to its memory
// without a copy in between, and a thread that waits for one rank reads its socket alone.
#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "group/liveness/timing.h"
#include "group/net/tcp/connector.h"
#include "group/net/transport_parts.h"

namespace tutti::group::tcp {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How many bytes may be read beyond the end of a message.
constexpr size_t kAhead = 16 << 10;
// Up to this size a message is written from one place, with its head.
constexpr size_t kLittle = 4 << 10;
// Bytes of early messages that are kept from one rank. Beyond them the sender waits.
constexpr size_t kMostEarly = 64 << 20;

struct Head {
  uint64_t bytes;
  uint32_t tag;
  uint32_t mark = kMark;
};

struct TcpMessage : Transport::Message {
  int peer;
  bool sending;
  Transport::State state;
  std::byte* data;
  size_t bytes;
  Head head;        // of a send; for a receive, only the tag counts
  size_t done = 0;  // bytes of head and data that were sent
};

TcpMessage* own(Transport::Message* message) { return static_cast<TcpMessage*>(message); }

// A message that came before its receive was posted.
struct Early {
  uint32_t tag;
  size_t bytes;
  std::unique_ptr<std::byte[]> data;
};

struct Peer {
  explicit Peer(int r) : rank(r) {}
  const int rank;
  File file;  // none before it is connected, and after it was lost
  std::string loss = {};
  uint32_t interest = 0;  // of the epoll

  // What is being read: a head, then `left` bytes, which go to `to`; null: they are dropped.
  Head head{};
  size_t head_bytes = 0;
  size_t left = 0;
  std::byte* to = nullptr;
  TcpMessage* into = nullptr;
  std::unique_ptr<Early> aside;
  std::deque<TcpMessage*> posted;
  std::list<std::unique_ptr<Early>> early;
  size_t early_bytes = 0;

  std::deque<TcpMessage*> unsent;

  bool in_message() const { return head_bytes == sizeof(Head); }
  // One receive is always posted, for notices.
  bool is_full() const { return early_bytes >= kMostEarly && posted.size() <= 1 && !into; }
};

class TcpTransport : public Transport {
 public:
  explicit TcpTransport(Place place)
      : rank_(place.rank), peers_(place.ranks.size()), connector_(std::move(place), epoll_.get()) {}
  ~TcpTransport() override {
    for (const Peer* peer : connected_) shutdown(peer->file.get(), SHUT_WR);
  }

  // Returns when the system of another host has taken a call.
  void reach_another_host(Clock::time_point until, const std::function<void()>& check) {
    const int next = next_host();
    if (next == rank_) return;
    std::lock_guard lock(mutex_);
    const Peer& peer = called(next);
    while (peer.loss.empty() && !connector_.is_reached(next)) {
      check();
      if (Clock::now() > until)
        fail_to_reach(next,
                      fmt::format("at {}: it does not answer", connector_.address(next).text));
      nap(duration_cast<milliseconds>(timing::kConnectPoll));
      progress_locked();
    }
    if (!peer.loss.empty()) fail_to_reach(next, peer.loss);
  }

  const char* name() const override { return "tcp"; }

  Message* send(int to, uint64_t tag, const void* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    Peer& peer = called(to);
    const Head head{bytes, uint32_t(tag)};
    if (!peer.loss.empty()) return message({{}, to, true, State::failed, nullptr, 0, head});
    auto* const from = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    ssize_t sent = 0;
    if (peer.file && peer.unsent.empty()) {
      sent = bytes <= kLittle ? send_little(peer, head, data, bytes)
                              : send_from(peer, head, from, bytes, 0);
      if (sent == ssize_t(sizeof(head) + bytes)) return nullptr;
      // read() will find the reason, and what the peer sent before.
      if (sent < 0) return message({{}, to, true, State::failed, nullptr, 0, head});
    }
    TcpMessage* const waits =
        message({{}, to, true, State::under_way, from, bytes, head, size_t(sent)});
    peer.unsent.push_back(waits);
    ++unsent_;
    watch(peer);
    return waits;
  }

  Message* receive(int from, uint64_t tag, void* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    Peer& peer = called(from);
    const uint32_t short_tag = uint32_t(tag);
    auto* const to = static_cast<std::byte*>(data);
    TcpMessage asked{{}, from, false, State::under_way, to, bytes, {bytes, short_tag}};
    const auto found =
        std::ranges::find(peer.early, short_tag, [](const auto& e) { return e->tag; });
    if (found != peer.early.end()) {
      const std::unique_ptr<Early> early = std::move(*found);
      peer.early.erase(found);
      peer.early_bytes -= early->bytes;
      watch(peer);
      deliver(*early, asked);
      return asked.state == State::over ? nullptr : message(asked);
    }
    if (peer.aside && peer.aside->tag == short_tag) {
      // The message is on its way: the rest of it goes straight to its memory.
      const std::unique_ptr<Early> aside = std::move(peer.aside);
      peer.to = nullptr;
      if (aside->bytes > bytes) {
        asked.state = State::too_long;
        return message(asked);
      }
      const size_t there = aside->bytes - peer.left;
      if (there) std::memcpy(to, aside->data.get(), there);
      peer.to = to + there;
      peer.into = message(asked);
      watch(peer);
      return peer.into;
    }
    TcpMessage* const waits = message(asked);
    peer.posted.push_back(waits);
    watch(peer);
    return waits;
  }

  State test(Message* message) override {
    if (!message) return State::over;
    std::lock_guard lock(mutex_);
    return test_locked(own(message));
  }
  State advance(Message* given, int times) override {
    if (!given) return State::over;
    std::lock_guard lock(mutex_);
    TcpMessage* const message = own(given);
    Peer& peer = peer_of(message->peer);
    State state = test_locked(message);
    for (int i = 0; i < times && state == State::under_way; ++i) {
      // If nothing waits to be sent, only one socket matters; the others are read now and then.
      // Else nothing may be read to where it is awaited before its head is known: collectives in
      // place may still be sending from there.
      bool much = false;
      if (message->sending || unsent_ || !peer.file || i + 1 == times)
        progress_locked();
      else if ((much = read(peer, message)))
        sleepers_.wake();
      state = test_locked(message);
      if (much) break;  // other threads may want to send
    }
    return state;
  }

  bool is_under_way(const Message* message) override {
    std::lock_guard lock(mutex_);
    return message && is_under_way_locked(message);
  }

  bool cancel(Message* given) override {
    if (!given) return true;
    std::lock_guard lock(mutex_);
    TcpMessage* const message = own(given);
    Peer& peer = peer_of(message->peer);
    if (message->sending && message->state == State::under_way) {
      if (message->done == 0) {
        std::erase(peer.unsent, message);
        --unsent_;
      } else {
        // Messages that are cancelled together share one wait.
        const auto now = Clock::now();
        if (now > cancel_until_ + timing::kCancel) cancel_until_ = now + timing::kCancel;
        while (message->state == State::under_way && Clock::now() < cancel_until_)
          if (!progress_locked()) nap(milliseconds(1));
        // The peer does not take the message, so only cutting the connection frees its memory.
        if (message->state == State::under_way) lose(peer, "it does not take what is sent to it");
      }
    } else if (message->state == State::under_way) {
      std::erase(peer.posted, message);
      if (peer.into == message) {
        peer.into = nullptr;
        peer.to = nullptr;
      }
      watch(peer);
    }
    messages_.drop(message);
    return true;
  }

  void progress() override {
    std::lock_guard lock(mutex_);
    progress_locked();
  }

  void sleep(const Message* message, std::chrono::nanoseconds at_most) override {
    std::unique_lock lock(mutex_);
    if (message && !is_under_way_locked(message)) return;
    sleepers_.sleep(lock, epoll_.get(), at_most);
  }

  std::string loss(int rank) const override {
    std::lock_guard lock(mutex_);
    const Peer* const peer = peers_[size_t(rank)].get();
    return peer ? peer->loss : "";
  }

  bool connects_on_demand() const override { return true; }
  std::vector<Connection> new_connections() override {
    if (!has_new_.load(std::memory_order_relaxed)) return {};
    std::lock_guard lock(mutex_);
    has_new_.store(false, std::memory_order_relaxed);
    return std::exchange(new_, {});
  }
  int port() const override { return connector_.port(); }
  std::string refused() override {
    std::lock_guard lock(mutex_);
    return connector_.take_refused();
  }

  void flush(std::chrono::nanoseconds at_most) override {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now(), until = now + at_most;
    // The system sends what it has taken by itself, unless something is unread when the connection
    // is closed. So that is waited for only briefly.
    const auto quick = std::min(until, now + timing::kCancel);
    do {
      if (!progress_locked() && !is_all_taken()) nap(milliseconds(1));
    } while (Clock::now() < (unsent_ ? until : quick) && !is_all_taken());
  }

 private:
  TcpMessage* message(const TcpMessage& what) { return messages_.make(what); }
  static bool is_under_way_locked(const Message* message) {
    return static_cast<const TcpMessage*>(message)->state == State::under_way;
  }
  State test_locked(TcpMessage* message) {
    const State state = message->state;
    if (state != State::under_way) messages_.drop(message);
    return state;
  }

  Peer& peer_of(int rank) {
    std::unique_ptr<Peer>& peer = peers_[size_t(rank)];
    if (!peer) peer = std::make_unique<Peer>(rank);
    return *peer;
  }
  // The peer, with a connection or a call under way, unless it is lost.
  Peer& called(int rank) {
    Peer& peer = peer_of(rank);
    if (peer.file || !peer.loss.empty()) return peer;
    connector_.call(rank);
    settle_calls();
    return peer;
  }
  void settle_calls() {
    for (Connector::Made& made : connector_.take_made()) {
      Peer& peer = peer_of(made.rank);
      peer.file = std::move(made.file);
      connected_.push_back(&peer);
      new_.push_back({made.rank, peer.file.get()});
      has_new_.store(true, std::memory_order_relaxed);
      watch(peer);
    }
    for (const Connector::Failed& failed : connector_.take_failed())
      lose(peer_of(failed.rank), failed.why);
  }
  // The next rank with another address, or the next one; this one if it is alone.
  int next_host() const {
    const int ranks = int(peers_.size());
    const auto host_of = [&](int rank) {
      const std::string& text = connector_.address(rank).text;
      return std::string_view(text).substr(0, text.rfind(':'));
    };
    for (int i = 1; i < ranks; ++i)
      if (const int rank = (rank_ + i) % ranks; host_of(rank) != host_of(rank_)) return rank;
    return (rank_ + 1) % ranks;
  }
  [[noreturn]] void fail_to_reach(int rank, const std::string& why) const {
    throw UnavailableError(fmt::format(
        "tcp: rank {} cannot be reached from rank {} {}; are their interfaces in one network, and "
        "no firewall between them? TUTTI_INTERFACES names those to use",
        rank, rank_, why));
  }

  static void deliver(const Early& early, TcpMessage& message) {
    if (early.bytes > message.bytes) {
      message.state = State::too_long;
      return;
    }
    if (early.bytes) std::memcpy(message.data, early.data.get(), early.bytes);
    message.state = State::over;
  }

  // Whether all that was sent has reached the other sides.
  bool is_all_taken() const {
    if (unsent_) return false;
    return std::ranges::none_of(connected_, [](const Peer* peer) {
      int left = 0;
      return ioctl(peer->file.get(), SIOCOUTQ, &left) == 0 && left > 0;
    });
  }

  // What the epoll is to look at for this rank.
  void watch(Peer& peer) {
    if (!peer.file) return;
    const uint32_t interest =
        (peer.is_full() ? 0u : uint32_t(EPOLLIN)) | (peer.unsent.empty() ? 0u : uint32_t(EPOLLOUT));
    if (interest == peer.interest) return;
    epoll_event event{};
    event.events = interest;
    event.data.u64 = uint64_t(peer.rank);
    const int what = !peer.interest ? EPOLL_CTL_ADD : !interest ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    if (epoll_ctl(epoll_.get(), what, peer.file.get(), &event) != 0)
      return lose(peer, "the system cannot watch it any more");
    peer.interest = interest;
  }

  // Ends the connection to a rank. Receives from it stay under way: their caller asks for the loss.
  void lose(Peer& peer, const std::string& why) {
    peer.loss = why;
    for (TcpMessage* const waits : peer.unsent) {
      waits->state = State::failed;
      --unsent_;
    }
    peer.unsent.clear();
    sleepers_.wake();
    peer.into = nullptr;
    peer.to = nullptr;
    if (!peer.file) return;
    // A forked child may hold the file as well, so closing it would not end the connection.
    if (peer.interest) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.file.get(), nullptr);
    shutdown(peer.file.get(), SHUT_RDWR);
    std::erase(connected_, &peer);
    peer.file = File();
    peer.interest = 0;
  }
  void lose(Peer& peer, int error) {
    switch (error) {
      case 0: return lose(peer, "the other side closed it");
      case ECONNRESET: return lose(peer, "the other side reset it");
      case ETIMEDOUT: return lose(peer, "the other side does not answer");
      case EHOSTUNREACH:
      case ENETUNREACH: return lose(peer, "there is no way to the other side");
      default: return lose(peer, "the system reports an error");
    }
  }

  // How many bytes were sent; -1 if no more ever can be.
  static ssize_t went(ssize_t result) {
    return result >= 0 ? result : errno == EAGAIN || errno == EINTR || errno == ENOBUFS ? 0 : -1;
  }
  static ssize_t send_little(const Peer& peer, const Head& head, const void* data, size_t bytes) {
    std::byte all[sizeof(head) + kLittle];
    std::memcpy(all, &head, sizeof(head));
    if (bytes) std::memcpy(all + sizeof(head), data, bytes);
    return went(::send(peer.file.get(), all, sizeof(head) + bytes, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  static ssize_t send_from(const Peer& peer, const Head& head, std::byte* data, size_t bytes,
                           size_t done) {
    std::array<iovec, 2> parts;
    size_t n = 0;
    if (done < sizeof(head))
      parts[n++] = {const_cast<char*>(reinterpret_cast<const char*>(&head)) + done,
                    sizeof(head) - done};
    const size_t skip = done < sizeof(head) ? 0 : done - sizeof(head);
    if (bytes > skip) parts[n++] = {data + skip, bytes - skip};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = n;
    return went(sendmsg(peer.file.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  bool write(Peer& peer) {
    bool happened = false;
    while (!peer.unsent.empty()) {
      TcpMessage& next = *peer.unsent.front();
      const ssize_t sent = send_from(peer, next.head, next.data, next.bytes, next.done);
      if (sent == 0) return happened;
      happened = true;
      if (sent < 0 && next.done > 0) {  // nothing could follow it
        lose(peer, errno);
        return true;
      }
      if (sent > 0) {
        next.done += size_t(sent);
        if (next.done < sizeof(Head) + next.bytes) return true;
      }
      next.state = sent > 0 ? State::over : State::failed;
      peer.unsent.pop_front();
      --unsent_;
    }
    watch(peer);
    return happened;
  }

  // Called with the whole head: finds where the rest goes. False: there is no memory for it.
  bool begin_message(Peer& peer) {
    peer.left = peer.head.bytes;
    peer.to = nullptr;
    const uint32_t tag = peer.head.tag;
    const auto found =
        std::ranges::find(peer.posted, tag, [](const TcpMessage* m) { return m->head.tag; });
    if (found == peer.posted.end()) {
      std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[peer.left]);
      if (!memory) return false;
      peer.to = memory.get();
      peer.aside = std::make_unique<Early>(Early{tag, peer.left, std::move(memory)});
      return true;
    }
    TcpMessage* const waits = *found;
    peer.posted.erase(found);
    if (peer.left > waits->bytes) {
      waits->state = State::too_long;
      return true;
    }
    peer.into = waits;
    peer.to = waits->data;
    return true;
  }
  void end_message(Peer& peer) {
    peer.head_bytes = 0;
    if (peer.into) std::exchange(peer.into, nullptr)->state = State::over;
    if (!peer.aside) return;
    peer.early_bytes += peer.aside->bytes;
    peer.early.push_back(std::move(peer.aside));
  }
  void arrived(Peer& peer, size_t bytes) {
    peer.left -= bytes;
    if (peer.to) peer.to += bytes;
    if (peer.left == 0) end_message(peer);
  }
  // Takes in bytes that were read. Returns why the connection cannot go on; null if it can.
  const char* take(Peer& peer, const std::byte* data, size_t bytes) {
    while (bytes) {
      if (peer.in_message()) {
        const size_t now = std::min(bytes, peer.left);
        if (peer.to && peer.to != data) std::memmove(peer.to, data, now);
        arrived(peer, now);
        data += now;
        bytes -= now;
        continue;
      }
      const size_t now = std::min(bytes, sizeof(Head) - peer.head_bytes);
      std::memcpy(reinterpret_cast<std::byte*>(&peer.head) + peer.head_bytes, data, now);
      peer.head_bytes += now;
      data += now;
      bytes -= now;
      if (!peer.in_message()) return nullptr;
      if (peer.head.mark != kMark) return "it sent bytes that are not a message of this protocol";
      if (!begin_message(peer)) return "there is no memory for what it sent";
      if (peer.left == 0) end_message(peer);
    }
    return nullptr;
  }

  // Where to read the next bytes of this rank to. If a message begins with them, this bets on the
  // awaited one: its bytes then need not be moved.
  std::span<const iovec> next_places(const Peer& peer, const TcpMessage* awaited) {
    const iovec ahead{ahead_.data(), ahead_.size()};
    const iovec head{ahead_.data(), sizeof(Head)};
    if (peer.in_message() && peer.to) {
      places_ = {{{peer.to, peer.left}, ahead}};
      return std::span(places_).first(2);
    }
    if (peer.head_bytes == 0 && awaited) {
      places_ = {{head,
                  {awaited->data, awaited->bytes},
                  {ahead_.data() + sizeof(Head), ahead_.size() - sizeof(Head)}}};
      return places_;
    }
    const auto is_long = [](const TcpMessage* message) { return message->bytes > kAhead; };
    places_[0] = peer.head_bytes == 0 && std::ranges::any_of(peer.posted, is_long) ? head : ahead;
    return std::span(places_).first(1);
  }

  // Takes in what has come from this rank. Returns whether anything has.
  bool read(Peer& peer, const TcpMessage* awaited = nullptr) {
    bool happened = false;
    // A fast sender must not keep the others waiting.
    for (int i = 0; i < 16 && peer.file && !peer.is_full(); ++i) {
      const std::span<const iovec> places = next_places(peer, std::exchange(awaited, nullptr));
      const ssize_t got = readv(peer.file.get(), places.data(), int(places.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return happened;
      happened = true;
      if (got <= 0) {
        lose(peer, got == 0 ? 0 : errno);
        return true;
      }
      size_t left = size_t(got);
      for (const iovec& place : places) {
        const size_t now = std::min(left, place.iov_len);
        if (const char* const why = take(peer, static_cast<std::byte*>(place.iov_base), now)) {
          lose(peer, why);
          return true;
        }
        left -= now;
        if (now < place.iov_len) {
          watch(peer);
          return true;
        }
      }
    }
    watch(peer);
    return happened;
  }

  bool progress_locked() {
    std::array<epoll_event, 64> events;
    const int n = epoll_wait(epoll_.get(), events.data(), int(events.size()), 0);
    bool happened = false, attended = false;
    for (int i = 0; i < n; ++i) {
      const uint64_t event = events[size_t(i)].data.u64;
      if (Connector::owns(event)) {
        connector_.handle(event);
        happened = attended = true;
        continue;
      }
      Peer& peer = *peers_[event];
      const uint32_t what = events[size_t(i)].events;
      if (what & ~uint32_t(EPOLLOUT)) happened |= read(peer);
      if (what & EPOLLOUT && peer.file) happened |= write(peer);
    }
    if (attended || connector_.has_deadlines()) {
      connector_.check_deadlines();
      settle_calls();
    }
    if (happened) sleepers_.wake();
    return happened;
  }
  void nap(milliseconds at_most) {
    pollfd file{epoll_.get(), POLLIN, 0};
    poll(&file, 1, int(at_most.count()));
  }

  static File open_epoll() {
    File epoll(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll)
      throw ResourceExhaustedError(
          fmt::format("tcp: no epoll: {}; raise ulimit -n", problem(errno)));
    return epoll;
  }

  const int rank_;
  const File epoll_ = open_epoll();
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null before a message or a connection
  std::vector<Peer*> connected_;
  std::vector<Connection> new_;
  std::atomic<bool> has_new_{false};
  Connector connector_;
  std::array<std::byte, kAhead> ahead_;
  std::array<iovec, 3> places_;
  Pool<TcpMessage> messages_;
  Sleepers sleepers_;
  size_t unsent_ = 0;
  Clock::time_point cancel_until_{};
};

}  // namespace

std::unique_ptr<Transport> make_transport(Place place, std::chrono::nanoseconds timeout,
                                          const std::function<void()>& check) {
  constexpr std::chrono::nanoseconds kYear = std::chrono::hours(24 * 365);
  auto transport = std::make_unique<TcpTransport>(std::move(place));
  // The timeout may be the largest.
  transport->reach_another_host(Clock::now() + std::min(timeout, kYear), check);
  return transport;
}

}  // namespace tutti::group::tcp
