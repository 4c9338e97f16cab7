// SPDX-License-Identifier: Apache-2.0
#include "group/net/tcp/connector.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "base/running_time.h"
#include "group/liveness/timing.h"

namespace tutti::group::tcp {

namespace {

constexpr uint64_t kListener = uint64_t{1} << 63;
constexpr int kAcceptedAtOnce = 64;

template <class Bytes>
void fill_randomly(Bytes& bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) != ssize_t(bytes.size()))
    throw UnavailableError(fmt::format("tcp: no random numbers: {}", problem(errno)));
}

size_t most_strangers(size_t ranks) {
  rlimit limit{};
  const size_t files =
      getrlimit(RLIMIT_NOFILE, &limit) == 0 ? size_t(limit.rlim_cur) : size_t(1024);
  return std::min(128 + ranks, std::max<size_t>(files / 8, 8));
}

std::string host_of(int socket) {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  std::array<char, NI_MAXHOST> host{};
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "an unknown host";
  return host.data();
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// Sets what the system allows, and ignores what it refuses.
void make_fast(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  // Within a machine nothing is congested: a system that paces what it sends (BBR) only delays it.
  sockaddr_storage other{};
  socklen_t size = sizeof(other);
  constexpr std::string_view kUnpaced = "cubic";
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&other), &size) == 0 && is_loopback(other))
    setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(), kUnpaced.size());
}

// Whether a call with this error would never succeed.
bool is_final(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case ENOBUFS:
    case ENOMEM:
    case EAGAIN:
    case EADDRNOTAVAIL:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ETIMEDOUT:
    case ECONNABORTED:
    case ECONNRESET: return false;
    default: return true;
  }
}

// These few bytes always fit the send buffer of a new connection.
template <class T>
bool send_whole(const File& file, const T& what) {
  return ::send(file.get(), &what, sizeof(what), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         ssize_t(sizeof(what));
}

}  // namespace

Connector::Connector(Place place, int epoll)
    : place_(std::move(place)),
      epoll_(epoll),
      most_strangers_(most_strangers(place_.ranks.size())),
      connected_(place_.ranks.size()),
      given_up_(place_.ranks.size()),
      bulk_called_(place_.ranks.size()),
      bulk_taken_(place_.ranks.size()) {
  connected_[size_t(place_.rank)] = true;
  listen(true);
}

Connector::~Connector() = default;

void Connector::listen(bool on) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, place_.listener.get(), &event);
  listens_ = on;
}

int Connector::port() const {
  sockaddr_storage name{};
  socklen_t size = sizeof(name);
  getsockname(place_.listener.get(), reinterpret_cast<sockaddr*>(&name), &size);
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                          : reinterpret_cast<sockaddr_in&>(name).sin_port);
}

Connector::Digest Connector::proof_of(Side side, const Pending& about) const {
  struct {
    uint32_t side;
    Opening opening;
    Nonce nonce;
  } const text{uint32_t(side), about.opening, about.challenge.nonce};
  static_assert(sizeof(text) == sizeof(uint32_t) + sizeof(Opening) + sizeof(Nonce));
  const Secret& secret = place_.ranks[about.opening.to].secret;
  Digest digest;
  unsigned int size = 0;
  if (!HMAC(EVP_sha256(), secret.data(), int(secret.size()),
            reinterpret_cast<const unsigned char*>(&text), sizeof(text), digest.data(), &size))
    throw InternalError("tcp: OpenSSL cannot compute an HMAC with SHA-256");
  return digest;
}

Connector::PendingList::iterator Connector::begin(File file, Stage stage, uint32_t interest) {
  const uint64_t number = kListener | ++events_;
  epoll_event event{};
  event.events = interest;
  event.data.u64 = number;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, file.get(), &event) != 0) return pending_.end();
  return pending_.insert(pending_.end(),
                         {number, std::move(file), stage, Clock::now() + timing::kStrangerTimeout});
}

// A forked child may hold the file as well, so closing it would not end the connection.
void Connector::end(PendingList::iterator pending) {
  if (pending->file) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, pending->file.get(), nullptr);
    shutdown(pending->file.get(), SHUT_RDWR);
  }
  pending_.erase(pending);
}

void Connector::call(int peer, Purpose purpose) {
  const bool is_bulk = purpose == Purpose::bulk;
  const CallKey key{peer, purpose};
  if ((is_bulk ? bulk_called_ : connected_)[size_t(peer)] || given_up_[size_t(peer)] ||
      calls_.contains(key))
    return;
  if (is_bulk) bulk_called_[size_t(peer)] = true;
  leave_out_suspensions();
  dial(key, calls_.emplace(key, Call{pending_.end()}).first->second);
}

void Connector::dial(CallKey key, Call& call) {
  call = {.pending = pending_.end(), .failing_since = call.failing_since};
  const auto [peer, purpose] = key;
  const PeerAddress& address = place_.ranks[size_t(peer)];
  File file(socket(address.name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!file ||
      (::connect(file.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0 &&
       errno != EINPROGRESS))
    return call_failed(key, errno);
  call.pending = begin(std::move(file), Stage::connecting, EPOLLOUT);
  if (call.pending == pending_.end()) return call_failed(key, errno);
  Opening& opening = call.pending->opening;
  opening.to = uint32_t(peer);
  opening.from = uint32_t(place_.rank);
  opening.purpose = purpose;
  fill_randomly(opening.nonce);
}

bool Connector::is_reached(int peer) const {
  const auto call = calls_.find({peer, Purpose::messages});
  return call == calls_.end() || (call->second.pending != pending_.end() &&
                                  call->second.pending->stage != Stage::connecting);
}

// Calls again, since the network may be cut for a while, the peer may have too many calls at once,
// or this process too many files.
void Connector::call_failed(CallKey key, int error) {
  Call& call = calls_.at(key);
  if (call.pending != pending_.end()) end(call.pending);
  const Clock::time_point now = Clock::now();
  if (!call.failing_since) call.failing_since = now;
  if (!is_final(error) && now - *call.failing_since <= timing::kStrangerTimeout) {
    call = {pending_.end(), now + timing::kCallAgain, call.failing_since};
    return;
  }
  calls_.erase(key);
  if (key.second == Purpose::bulk) return;
  const int peer = key.first;
  given_up_[size_t(peer)] = true;
  const char* const remedy = error == EMFILE || error == ENFILE ? "; raise ulimit -n" : "";
  failed_.push_back(
      {peer, fmt::format("at {}: {}{}", place_.ranks[size_t(peer)].text, problem(error), remedy)});
}

bool Connector::receive(Pending& pending) {
  const auto read = [&](void* to, size_t bytes) {
    const ssize_t got = recv(pending.file.get(), static_cast<char*>(to) + pending.got,
                             bytes - pending.got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) throw std::system_error(got == 0 ? 0 : errno, std::generic_category());
    pending.got += size_t(got);
    if (pending.got < bytes) return false;
    pending.got = 0;
    return true;
  };
  switch (pending.stage) {
    case Stage::opening: return read(&pending.opening, sizeof(pending.opening));
    case Stage::challenge: return read(&pending.challenge, sizeof(pending.challenge));
    case Stage::answer: return read(&pending.answer, sizeof(pending.answer));
    case Stage::reply: return read(&pending.reply, sizeof(pending.reply));
    case Stage::connecting: break;
  }
  return false;
}

void Connector::handle(uint64_t event) {
  leave_out_suspensions();
  if (event == kListener) return accept_all();
  const auto found = std::ranges::find(pending_, event, &Pending::event);
  if (found == pending_.end()) return;  // ended by an event before this one
  const bool called = found->stage == Stage::opening || found->stage == Stage::answer;
  const CallKey key = key_of(*found);
  try {
    advance(found);
  } catch (const std::system_error&) {
    if (!called) return call_failed(key, ECONNRESET);
    // A port scanner, or a rank that has found another connection.
    end(found);
  }
}

void Connector::advance(PendingList::iterator pending) {
  if (pending->stage == Stage::connecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(pending->file.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) return call_failed(key_of(*pending), error);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = pending->event;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, pending->file.get(), &event);
    pending->stage = Stage::challenge;
    if (!send_whole(pending->file, pending->opening)) call_failed(key_of(*pending), ECONNRESET);
    return;
  }
  if (!receive(*pending)) return;
  switch (pending->stage) {
    case Stage::opening: {
      const Opening& opening = pending->opening;
      if (opening.mark != kMark || opening.to != uint32_t(place_.rank) ||
          opening.from >= place_.ranks.size() || opening.from == opening.to ||
          opening.purpose > Purpose::bulk)
        return refuse(pending, "it is not a rank of this job");
      fill_randomly(pending->challenge.nonce);
      pending->challenge.proof = proof_of(Side::called, *pending);
      pending->stage = Stage::answer;
      if (!send_whole(pending->file, pending->challenge)) end(pending);
      return;
    }
    case Stage::challenge: {
      const Digest expected = proof_of(Side::called, *pending);
      // If it differs, another program listens there now.
      if (CRYPTO_memcmp(expected.data(), pending->challenge.proof.data(), expected.size()))
        return call_failed(key_of(*pending), EPROTO);
      pending->stage = Stage::reply;
      if (!send_whole(pending->file, proof_of(Side::caller, *pending)))
        call_failed(key_of(*pending), ECONNRESET);
      return;
    }
    case Stage::answer: return answer_caller(pending);
    case Stage::reply: {
      const CallKey key = key_of(*pending);
      if (pending->reply == Reply::welcome) return has_connection(pending, true);
      // The peer's own call is on its way: no failure. If it stays away, the peer gives this rank
      // up.
      if (pending->reply == Reply::wait_for_mine) calls_.at(key).failing_since.reset();
      return call_failed(key, pending->reply == Reply::lost ? ECONNREFUSED : ECONNRESET);
    }
    case Stage::connecting: break;
  }
}

void Connector::answer_caller(PendingList::iterator pending) {
  const Digest expected = proof_of(Side::caller, *pending);
  if (CRYPTO_memcmp(expected.data(), pending->answer.data(), expected.size()))
    return refuse(pending, "it does not know the secret of this rank");
  const int peer = int(pending->opening.from);
  const bool is_bulk = pending->opening.purpose == Purpose::bulk;
  Reply reply = Reply::welcome;
  if (given_up_[size_t(peer)]) {
    reply = Reply::lost;
  } else if ((is_bulk ? bulk_taken_ : connected_)[size_t(peer)]) {
    reply = Reply::second;
  } else if (const auto own = calls_.find({peer, Purpose::messages});
             !is_bulk && own != calls_.end() && place_.rank > peer) {
    // A call that the peer has not heard of yet does not count.
    const auto call = own->second.pending;
    if (call != pending_.end() && call->stage != Stage::connecting) reply = Reply::wait_for_mine;
  }
  if (!send_whole(pending->file, reply) || reply != Reply::welcome) return end(pending);
  has_connection(pending, false);
}

void Connector::has_connection(PendingList::iterator pending, bool called) {
  const Opening& opening = pending->opening;
  const int peer = int(called ? opening.to : opening.from);
  const bool is_bulk = opening.purpose == Purpose::bulk;
  if (const auto call = calls_.find({peer, opening.purpose});
      call != calls_.end() && (called || !is_bulk)) {
    const auto own = call->second.pending;
    if (own != pending_.end() && own != pending) end(own);
    calls_.erase(call);
  }
  epoll_ctl(epoll_, EPOLL_CTL_DEL, pending->file.get(), nullptr);
  make_fast(pending->file.get());
  if (!is_bulk)
    connected_[size_t(peer)] = true;
  else if (!called)
    bulk_taken_[size_t(peer)] = true;
  made_.push_back({peer, std::move(pending->file), opening.purpose, called});
  end(pending);
}

void Connector::accept_all() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    File file(accept4(place_.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!file && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      // No descriptor is left. Calls wait in the system until there are some again.
      lacks_files_ = true;
      listen(false);
      listens_again_ = Clock::now() + timing::kCallAgain;
    }
    if (!file) return;
    std::string host = host_of(file.get());
    const auto pending = begin(std::move(file), Stage::opening, EPOLLIN);
    if (pending == pending_.end()) return;
    pending->host = std::move(host);
    make_room();
  }
}

// If there are too many callers, the host with the most loses its oldest.
void Connector::make_room() {
  if (pending_.size() <= most_strangers_) return;
  std::map<std::string, size_t> callers;
  size_t all = 0;
  for (const Pending& one : pending_)
    if (!one.host.empty()) {
      ++callers[one.host];
      ++all;
    }
  if (all <= most_strangers_) return;
  const std::string host =
      std::ranges::max_element(callers, {}, [](const auto& entry) { return entry.second; })->first;
  refuse(std::ranges::find(pending_, host, &Pending::host), "there are too many");
}

void Connector::refuse(PendingList::iterator pending, const char* why) {
  ++refused_;
  last_refused_ = fmt::format("{} ({})", pending->host, why);
  end(pending);
}

std::string Connector::take_refused() {
  if (std::exchange(lacks_files_, false))
    return "no descriptor is left to accept connections of other ranks; raise ulimit -n";
  if (!refused_) return {};
  const int refused = std::exchange(refused_, 0);
  return fmt::format("{} connection{} of other programs refused, the last of {}", refused,
                     refused == 1 ? "" : "s", last_refused_);
}

// Moves all deadlines by the time for which this process was suspended, since nothing could happen
// then. Called before anything that has a deadline.
void Connector::leave_out_suspensions() {
  const Clock::time_point now = Clock::now();
  const auto gap = now - std::exchange(looked_, now);
  if (gap <= base::RunningTime::kSuspended || !has_deadlines()) return;
  for (Pending& pending : pending_) pending.deadline += gap;
  for (auto& [key, call] : calls_)
    if (call.failing_since) *call.failing_since += gap;
}

void Connector::check_deadlines() {
  leave_out_suspensions();
  const Clock::time_point now = looked_;
  if (now < looks_again_) return;
  looks_again_ = now + timing::kShortPoll;
  if (!listens_ && now >= listens_again_) listen(true);
  for (auto at = pending_.begin(); at != pending_.end();) {
    const auto next = std::next(at);
    if (!at->host.empty() && now >= at->deadline) refuse(at, "it did not identify itself in time");
    at = next;
  }
  std::vector<CallKey> due;
  for (const auto& [key, call] : calls_)
    if (now >= call.again) due.push_back(key);
  for (const CallKey& key : due) dial(key, calls_.at(key));
}

}  // namespace tutti::group::tcp
