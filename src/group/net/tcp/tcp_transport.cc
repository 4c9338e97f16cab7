// SPDX-License-Identifier: Apache-2.0
// A Transport over sockets.
//
// A message is its head and its bytes. An awaited message goes from the socket to its memory
// without a copy in between, and a thread that waits for one rank reads its socket alone. The bytes
// of a large message may take a connection of their own: the system locks one while it copies, so
// that two threads could not send and receive on it at once.
#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
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
#include <optional>
#include <span>
#include <utility>

#include "group/liveness/timing.h"
#include "group/net/tcp/connector.h"
#include "group/net/tcp/sender.h"
#include "group/net/transport_parts.h"

namespace tutti::group::tcp {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How many bytes may be read beyond the end of a message.
constexpr size_t kAhead = 16 << 10;
// Up to this size a message is written from one place, with its head.
constexpr size_t kLittle = 4 << 10;
// From this size on the bytes of a message may go in bulk, unless more peers than these are
// connected.
constexpr size_t kLarge = 256 << 10, kFewPeers = 64;
// Bytes of early messages that are kept from one rank. Beyond them the sender waits.
constexpr size_t kMostEarly = 64 << 20;
// Bytes that one call reads in bulk.
constexpr size_t kAtOnce = 1 << 20;
// Marks the head of a message whose bytes come in bulk.
constexpr uint32_t kInBulk = kMark + 1;

struct Head {
  uint64_t bytes;
  uint32_t tag;
  uint32_t mark = kMark;
  bool is_right() const { return mark == kMark || mark == kInBulk; }
};

struct TcpMessage : Transport::Message {
  int peer;
  bool sending;
  Transport::State state;
  std::byte* data;
  size_t bytes;
  Head head;        // of a send; for a receive, only the tag counts
  size_t done = 0;  // of a send: bytes of the head, and of the data that follows it, that were sent

  bool is_in_bulk() const { return head.mark == kInBulk; }
  bool is_written() const { return done == sizeof(Head) + (is_in_bulk() ? 0 : bytes); }
};

TcpMessage* own(Transport::Message* message) { return static_cast<TcpMessage*>(message); }

// A message whose head came before its receive was posted.
struct Early {
  uint32_t tag;
  size_t bytes;
  std::unique_ptr<std::byte[]> data = {};
  bool is_whole = false;
};

// A message that is coming in: `left` bytes go to `to`. Null: an early message has no memory yet,
// and any other is dropped.
struct Incoming {
  size_t left = 0;
  std::byte* to = nullptr;
  TcpMessage* into = nullptr;  // or
  Early* early = nullptr;      // or neither: its receive was cancelled, or was too short for it
};

struct Peer {
  explicit Peer(int r) : rank(r) {}
  const int rank;
  File file;                                 // none before it is connected, and after it was lost
  File bulk_out, bulk_in;                    // the same
  uint32_t interest = 0, bulk_interest = 0;  // of the epoll, in `file` and `bulk_in`
  std::string loss = {};
  std::optional<int> end;  // what ended the connection, while something may still be in bulk_in

  Head head{};
  size_t head_bytes = 0;
  Incoming coming;
  std::deque<Incoming> bulk;  // whose bytes come from bulk_in
  std::deque<TcpMessage*> posted;
  std::list<Early> early;  // in the order in which they were sent
  size_t early_bytes = 0;  // of those that are whole

  std::deque<TcpMessage*> unsent;

  bool in_message() const { return head_bytes == sizeof(Head); }
  // One receive is always posted, for notices.
  bool is_full() const {
    return early_bytes >= kMostEarly && posted.size() <= 1 && !coming.into &&
           std::ranges::none_of(bulk, &Incoming::into);
  }
  // What is coming in for this receive, or is kept as this early message; null: nothing.
  Incoming* find_coming(const void* receive_or_early) {
    const auto is = [&](const Incoming& one) {
      return one.into == receive_or_early || one.early == receive_or_early;
    };
    if (is(coming)) return &coming;
    const auto found = std::ranges::find_if(bulk, is);
    return found == bulk.end() ? nullptr : &*found;
  }
};

class TcpTransport : public Transport {
 public:
  explicit TcpTransport(Place place)
      : rank_(place.rank),
        peers_(place.ranks.size()),
        sends_in_bulk_(place.sends_in_bulk),
        connector_(std::move(place), epoll_.get()) {
    if (sched_getaffinity(0, sizeof(cores_), &cores_) != 0) sends_in_bulk_ = false;
  }
  ~TcpTransport() override {
    sender_.reset();
    for (const Peer* peer : connected_) {
      shutdown(peer->file.get(), SHUT_WR);
      if (peer->bulk_out) shutdown(peer->bulk_out.get(), SHUT_WR);
    }
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
    auto* const from = const_cast<std::byte*>(static_cast<const std::byte*>(data));
    TcpMessage going{{}, to, true, State::under_way, from, bytes, {bytes, uint32_t(tag)}};
    if (goes_in_bulk(peer, bytes)) going.head.mark = kInBulk;
    if (!peer.loss.empty()) {
      going.state = State::failed;
    } else if (peer.file && peer.unsent.empty()) {
      const ssize_t sent =
          bytes <= kLittle ? send_little(peer, going) : send_from(peer.file.get(), going);
      if (sent == ssize_t(sizeof(Head) + bytes)) return nullptr;
      // read() will find the reason, and what the peer sent before.
      if (sent < 0) going.state = State::failed;
      going.done = size_t(sent);
    }
    TcpMessage* const waits = message(going);
    if (waits->state == State::failed) return waits;
    if (waits->is_written()) {
      hand_over(peer, *waits);
    } else {
      peer.unsent.push_back(waits);
      ++unsent_;
      watch(peer);
    }
    return waits;
  }

  Message* receive(int from, uint64_t tag, void* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    Peer& peer = called(from);
    const uint32_t short_tag = uint32_t(tag);
    auto* const to = static_cast<std::byte*>(data);
    TcpMessage asked{{}, from, false, State::under_way, to, bytes, {bytes, short_tag}};
    const auto found = std::ranges::find(peer.early, short_tag, &Early::tag);
    if (found != peer.early.end()) {
      if (found->bytes > bytes) asked.state = State::too_long;
      const bool fits = asked.state == State::under_way;
      Incoming* const rest = peer.find_coming(&*found);
      const size_t there = found->bytes - (rest ? rest->left : 0);
      if (fits && there) std::memcpy(to, found->data.get(), there);
      if (!rest) {
        peer.early_bytes -= found->bytes;
        if (fits) asked.state = State::over;
      }
      peer.early.erase(found);
      TcpMessage* const waits = asked.state == State::over ? nullptr : message(asked);
      // What is still on its way goes straight to its memory.
      if (rest) *rest = {rest->left, fits ? to + there : nullptr, fits ? waits : nullptr};
      watch(peer);
      return waits;
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
      if (message->sending || unsent_ || handed_ || !peer.file || i + 1 == times)
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
  bool is_coming(const Message* message) override {
    std::lock_guard lock(mutex_);
    return !is_under_way_locked(message) ||
           peer_of(static_cast<const TcpMessage*>(message)->peer).find_coming(message);
  }

  bool cancel(Message* given) override {
    if (!given) return true;
    std::lock_guard lock(mutex_);
    TcpMessage* const message = own(given);
    Peer& peer = peer_of(message->peer);
    settle_sent();
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
        settle_sent();
      }
    } else if (message->state == State::under_way) {
      std::erase(peer.posted, message);
      if (Incoming* const coming = peer.find_coming(message)) *coming = {coming->left};
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
    } while (Clock::now() < (unsent_ + handed_ ? until : quick) && !is_all_taken());
  }

 private:
  TcpMessage* message(const TcpMessage& what) { return messages_.make(what); }
  static bool is_under_way_locked(const Message* message) {
    return static_cast<const TcpMessage*>(message)->state == State::under_way;
  }
  State test_locked(TcpMessage* message) {
    if (message->sending) settle_sent();
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
      const bool is_bulk = made.purpose == Connector::Purpose::bulk;
      if (!peer.loss.empty()) {
        shutdown(made.file.get(), SHUT_RDWR);
        continue;
      }
      new_.push_back({made.rank, made.file.get(), is_bulk});
      has_new_.store(true, std::memory_order_relaxed);
      if (!is_bulk) connected_.push_back(&peer);
      (!is_bulk ? peer.file : made.called ? peer.bulk_out : peer.bulk_in) = std::move(made.file);
      watch(peer);
    }
    for (const Connector::Failed& failed : connector_.take_failed())
      lose(peer_of(failed.rank), failed.why);
  }
  std::string_view host_of(int rank) const {
    const std::string& text = connector_.address(rank).text;
    return std::string_view(text).substr(0, text.rfind(':'));
  }
  // The next rank with another address, or the next one; this one if it is alone.
  int next_host() const {
    const int ranks = int(peers_.size());
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

  // Whether all that was sent has reached the other sides.
  bool is_all_taken() const {
    if (unsent_ + handed_) return false;
    const auto has_more = [](const File& file) {
      int left = 0;
      return file && ioctl(file.get(), SIOCOUTQ, &left) == 0 && left > 0;
    };
    return std::ranges::none_of(connected_, [&](const Peer* peer) {
      return has_more(peer->file) || has_more(peer->bulk_out);
    });
  }

  // What the epoll is to look at for this rank.
  void watch(Peer& peer) {
    const uint32_t input = peer.is_full() ? 0u : uint32_t(EPOLLIN);
    const uint32_t output = peer.unsent.empty() ? 0u : uint32_t(EPOLLOUT);
    watch(peer, peer.file, uint64_t(peer.rank), peer.interest, peer.end ? 0 : input | output);
    watch(peer, peer.bulk_in, peers_.size() + uint64_t(peer.rank), peer.bulk_interest,
          peer.bulk.empty() ? 0 : input);
  }
  void watch(Peer& peer, const File& file, uint64_t number, uint32_t& is, uint32_t becomes) {
    if (!file || is == becomes) return;
    epoll_event event{};
    event.events = becomes;
    event.data.u64 = number;
    const int what = !is ? EPOLL_CTL_ADD : !becomes ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    if (epoll_ctl(epoll_.get(), what, file.get(), &event) != 0)
      return lose(peer, "the system cannot watch it any more");
    is = becomes;
  }

  // Ends the connection to a rank. Receives from it stay under way: their caller asks for the loss.
  void lose(Peer& peer, const std::string& why) {
    peer.loss = why;
    if (peer.bulk_out && sender_) {
      shutdown(peer.bulk_out.get(), SHUT_RDWR);
      drop_handed(peer);
    }
    for (TcpMessage* const waits : peer.unsent) {
      waits->state = State::failed;
      --unsent_;
    }
    peer.unsent.clear();
    sleepers_.wake();
    peer.coming = {};
    peer.bulk.clear();
    std::erase_if(peer.early, [](const Early& early) { return !early.is_whole; });
    std::erase(connected_, &peer);
    close(peer.file, peer.interest);
    close(peer.bulk_in, peer.bulk_interest);
    uint32_t none = 0;
    close(peer.bulk_out, none);
  }
  // A forked child may hold the file as well, so closing it alone would not end the connection.
  void close(File& file, uint32_t& interest) const {
    if (!file) return;
    if (interest) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, file.get(), nullptr);
    shutdown(file.get(), SHUT_RDWR);
    file = File();
    interest = 0;
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

  static ssize_t send_little(const Peer& peer, const TcpMessage& message) {
    std::byte all[sizeof(Head) + kLittle];
    std::memcpy(all, &message.head, sizeof(Head));
    if (message.bytes) std::memcpy(all + sizeof(Head), message.data, message.bytes);
    return went(
        ::send(peer.file.get(), all, sizeof(Head) + message.bytes, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  // Sends the rest of a message, without what goes in bulk.
  static ssize_t send_from(int socket, const TcpMessage& what) {
    std::array<iovec, 2> parts;
    size_t n = 0;
    if (what.done < sizeof(Head))
      parts[n++] = {const_cast<char*>(reinterpret_cast<const char*>(&what.head)) + what.done,
                    sizeof(Head) - what.done};
    const size_t skip = what.done < sizeof(Head) ? 0 : what.done - sizeof(Head);
    if (what.bytes > skip && !what.is_in_bulk()) parts[n++] = {what.data + skip, what.bytes - skip};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = n;
    return went(sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  // Whether the bytes of a message go on a connection of their own; calls for one if so.
  bool goes_in_bulk(const Peer& peer, size_t bytes) {
    if (bytes < kLarge || !sends_in_bulk_ || !peer.file || connected_.size() > kFewPeers)
      return false;
    if (peer.bulk_out) return make_sender();
    connector_.call(peer.rank, Connector::Purpose::bulk);
    return false;
  }
  // When it is first needed. False: the system has no thread or file for it.
  bool make_sender() try {
    if (sender_) return true;
    auto made = std::make_unique<Sender>(cores_);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = 2 * peers_.size();
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, made->events(), &event) != 0)
      throw std::system_error(errno, std::generic_category());
    sender_ = std::move(made);
    return true;
  } catch (const std::exception&) {
    sends_in_bulk_ = false;
    return false;
  }
  void hand_over(const Peer& peer, TcpMessage& message) {
    sender_->add(peer.rank, peer.bulk_out.get(), &message, message.data, message.bytes);
    ++handed_;
  }
  void settle_sent() {
    if (!handed_) return;
    const Sender::Done done = sender_->take_done();
    for (Message* const message : done.written) own(message)->state = State::over;
    handed_ -= done.written.size();
    if (!done.written.empty()) sleepers_.wake();
    for (const auto& [rank, error] : done.broken) {
      Peer& peer = peer_of(rank);
      drop_handed(peer);
      give_up_sending(peer, error);
    }
  }
  void drop_handed(const Peer& peer) {
    for (Message* const dropped : sender_->drop(peer.rank)) {
      own(dropped)->state = State::failed;
      --handed_;
    }
    sleepers_.wake();
  }
  // Takes in the messages that a peer sent before its end.
  void drain(Peer& peer) {
    while (peer.file && read_messages(peer)) {
    }
  }
  void give_up_sending(Peer& peer, int error) {
    drain(peer);
    if (peer.file && !peer.end) end(peer, error);
    if (peer.file && peer.bulk.empty()) lose(peer, *peer.end);
  }
  // The connection has ended, or that for bulk. What the peer has sent in bulk before counts,
  // unless its host is gone.
  void end(Peer& peer, int error) {
    peer.end = error;
    if (peer.bulk.empty()) return;
    if (error != 0 && error != ECONNRESET) return lose(peer, error);
    const int soon = 1, few = 5;  // seconds, and questions without an answer
    setsockopt(peer.bulk_in.get(), IPPROTO_TCP, TCP_KEEPIDLE, &soon, sizeof(soon));
    setsockopt(peer.bulk_in.get(), IPPROTO_TCP, TCP_KEEPINTVL, &soon, sizeof(soon));
    setsockopt(peer.bulk_in.get(), IPPROTO_TCP, TCP_KEEPCNT, &few, sizeof(few));
    watch(peer);
  }

  bool write(Peer& peer) {
    bool happened = false;
    while (!peer.unsent.empty()) {
      TcpMessage& next = *peer.unsent.front();
      const ssize_t sent = send_from(peer.file.get(), next);
      if (sent == 0) return happened;
      happened = true;
      if (sent < 0 && next.done > 0) {  // nothing could follow it
        give_up_sending(peer, errno);
        return true;
      }
      if (sent > 0) {
        next.done += size_t(sent);
        if (!next.is_written()) return true;
      }
      peer.unsent.pop_front();
      --unsent_;
      if (sent > 0 && next.is_in_bulk())
        hand_over(peer, next);
      else
        next.state = sent > 0 ? State::over : State::failed;
    }
    watch(peer);
    return happened;
  }

  // Called with the whole head: finds where the rest goes.
  static Incoming begin_message(Peer& peer) {
    const auto [bytes, tag, mark] = peer.head;
    const auto found =
        std::ranges::find(peer.posted, tag, [](const TcpMessage* m) { return m->head.tag; });
    if (found == peer.posted.end())
      return {.left = bytes, .early = &peer.early.emplace_back(Early{tag, bytes})};
    TcpMessage* const waits = *found;
    peer.posted.erase(found);
    if (bytes <= waits->bytes) return {.left = bytes, .to = waits->data, .into = waits};
    waits->state = State::too_long;
    return {.left = bytes};
  }
  // For an early message. False: there is none.
  static bool make_memory(Incoming& one) {
    if (!one.early || one.to) return true;
    one.early->data.reset(new (std::nothrow) std::byte[one.early->bytes]);
    one.to = one.early->data.get();
    return one.to;
  }
  static void arrived(Incoming& one, size_t bytes) {
    one.left -= bytes;
    if (one.to) one.to += bytes;
  }
  static void end_message(Peer& peer, const Incoming& one) {
    if (one.into) one.into->state = State::over;
    if (!one.early) return;
    one.early->is_whole = true;
    peer.early_bytes += one.early->bytes;
  }
  // Takes in bytes that were read. Returns why the connection cannot go on; null if it can.
  const char* take(Peer& peer, const std::byte* data, size_t bytes) {
    while (bytes) {
      if (peer.in_message()) {
        const size_t now = std::min(bytes, peer.coming.left);
        if (peer.coming.to && peer.coming.to != data) std::memmove(peer.coming.to, data, now);
        arrived(peer.coming, now);
        data += now;
        bytes -= now;
      } else {
        const size_t now = std::min(bytes, sizeof(Head) - peer.head_bytes);
        std::memcpy(reinterpret_cast<std::byte*>(&peer.head) + peer.head_bytes, data, now);
        peer.head_bytes += now;
        data += now;
        bytes -= now;
        if (!peer.in_message()) return nullptr;
        if (!peer.head.is_right()) return "it sent bytes that are not a message of this protocol";
        peer.coming = begin_message(peer);
        if (peer.head.mark == kInBulk && peer.coming.left) {
          peer.bulk.push_back(std::exchange(peer.coming, {}));
          peer.head_bytes = 0;
          continue;
        }
        if (!make_memory(peer.coming)) return "there is no memory for what it sent";
      }
      if (peer.coming.left == 0) {
        peer.head_bytes = 0;
        end_message(peer, std::exchange(peer.coming, {}));
      }
    }
    return nullptr;
  }

  // Where to read the next bytes of this rank to. If a message begins with them, this bets on the
  // awaited one: its bytes then need not be moved. Those of a large one would come in bulk.
  std::span<const iovec> next_places(const Peer& peer, const TcpMessage* awaited) {
    const iovec ahead{ahead_.data(), ahead_.size()};
    const iovec head{ahead_.data(), sizeof(Head)};
    if (peer.in_message() && peer.coming.to) {
      places_ = {{{peer.coming.to, peer.coming.left}, ahead}};
      return std::span(places_).first(2);
    }
    places_[0] = ahead;
    if (peer.head_bytes == 0 && awaited) {
      if (awaited->bytes >= kLarge && peer.bulk_in) return std::span(places_).first(1);
      places_ = {{head,
                  {awaited->data, awaited->bytes},
                  {ahead_.data() + sizeof(Head), ahead_.size() - sizeof(Head)}}};
      return places_;
    }
    const auto is_long = [](const TcpMessage* message) { return message->bytes > kAhead; };
    if (peer.head_bytes == 0 && std::ranges::any_of(peer.posted, is_long)) places_[0] = head;
    return std::span(places_).first(1);
  }

  // Takes in what has come from this rank. Returns whether anything has.
  bool read(Peer& peer, const TcpMessage* awaited = nullptr) {
    const bool messages = read_messages(peer, awaited), bulk = read_bulk(peer);
    if (peer.file && peer.end && peer.bulk.empty()) lose(peer, *peer.end);
    if (messages || bulk) watch(peer);
    return messages || bulk;
  }
  bool read_messages(Peer& peer, const TcpMessage* awaited = nullptr) {
    bool happened = false;
    // A fast sender must not keep the others waiting.
    for (int i = 0; i < 16 && peer.file && !peer.end && !peer.is_full(); ++i) {
      const std::span<const iovec> places = next_places(peer, std::exchange(awaited, nullptr));
      const ssize_t got = readv(peer.file.get(), places.data(), int(places.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return happened;
      happened = true;
      if (got <= 0) {
        end(peer, got == 0 ? 0 : errno);
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
        if (now < place.iov_len) return true;
      }
    }
    return happened;
  }
  bool read_bulk(Peer& peer) {
    bool happened = false;
    for (int i = 0; i < 16 && peer.bulk_in && !peer.bulk.empty() && !peer.is_full(); ++i) {
      Incoming& next = peer.bulk.front();
      if (!make_memory(next)) {
        lose(peer, "there is no memory for what it sent");
        return true;
      }
      const ssize_t got = recv(peer.bulk_in.get(), next.to, std::min(next.left, kAtOnce),
                               MSG_DONTWAIT | (next.to ? 0 : MSG_TRUNC));  // which drops it
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return happened;
      happened = true;
      if (got <= 0) {
        const int error = got == 0 ? 0 : errno;
        drain(peer);
        if (peer.file) lose(peer, peer.end.value_or(error));
        return true;
      }
      arrived(next, size_t(got));
      if (next.left) continue;
      end_message(peer, next);
      peer.bulk.pop_front();
    }
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
      if (event == 2 * peers_.size()) {
        settle_sent();
        happened = true;
        continue;
      }
      Peer& peer = *peers_[event % peers_.size()];
      const uint32_t what = events[size_t(i)].events;
      if (what & ~uint32_t(EPOLLOUT)) happened |= read(peer);
      if (what & EPOLLOUT && peer.file && !peer.end) happened |= write(peer);
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
  bool sends_in_bulk_;
  cpu_set_t cores_{};  // that this process might use when it joined
  Connector connector_;
  std::array<std::byte, kAhead> ahead_;
  std::array<iovec, 3> places_;
  Pool<TcpMessage> messages_;
  Sleepers sleepers_;
  size_t unsent_ = 0, handed_ = 0;  // messages that wait in `unsent` of peers; that the sender has
  Clock::time_point cancel_until_{};
  std::unique_ptr<Sender> sender_;
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
