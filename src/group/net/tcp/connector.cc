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

// Sets what the system allows.
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

// These few bytes always fit what the system keeps of a new connection.
template <class T>
bool say(const File& file, const T& what) {
  return ::send(file.get(), &what, sizeof(what), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         ssize_t(sizeof(what));
}

}  // namespace

Connector::Connector(Place place, int epoll)
    : place_(std::move(place)),
      epoll_(epoll),
      most_strangers_(most_strangers(place_.ranks.size())),
      connected_(place_.ranks.size()),
      given_up_(place_.ranks.size()) {
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

Connector::Digest Connector::proof_of(Side side, const Conversation& about) const {
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

Connector::Conversations::iterator Connector::begin(File file, Stage stage, uint32_t interest) {
  const uint64_t number = kListener | ++events_;
  epoll_event event{};
  event.events = interest;
  event.data.u64 = number;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, file.get(), &event) != 0) return conversations_.end();
  return conversations_.insert(conversations_.end(), {number, std::move(file), stage,
                                                      Clock::now() + timing::kStrangerTimeout});
}

// A forked child may hold the file, too: the epoll and the peer forget it here.
void Connector::end(Conversations::iterator conversation) {
  if (conversation->file) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, conversation->file.get(), nullptr);
    shutdown(conversation->file.get(), SHUT_RDWR);
  }
  conversations_.erase(conversation);
}

void Connector::call(int peer) {
  if (connected_[size_t(peer)] || given_up_[size_t(peer)] || calls_.contains(peer)) return;
  dial(peer, calls_.emplace(peer, Call{Clock::now(), conversations_.end()}).first->second);
}

void Connector::dial(int peer, Call& call) {
  call = {call.began, conversations_.end()};
  const PeerAddress& address = place_.ranks[size_t(peer)];
  File file(socket(address.name.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!file ||
      (::connect(file.get(), reinterpret_cast<const sockaddr*>(&address.name), address.size) != 0 &&
       errno != EINPROGRESS)) {
    const bool is_passing = errno == EMFILE || errno == ENFILE || errno == EADDRNOTAVAIL;
    return is_passing ? call_again(peer, errno) : call_failed(peer, errno);
  }
  call.conversation = begin(std::move(file), Stage::connecting, EPOLLOUT);
  if (call.conversation == conversations_.end()) return call_again(peer, errno);
  Opening& opening = call.conversation->opening;
  opening.to = uint32_t(peer);
  opening.from = uint32_t(place_.rank);
  fill_randomly(opening.nonce);
}

bool Connector::is_reached(int peer) const {
  const auto call = calls_.find(peer);
  return call == calls_.end() || (call->second.conversation != conversations_.end() &&
                                  call->second.conversation->stage != Stage::connecting);
}

void Connector::call_failed(int peer, int error) {
  calls_.erase(peer);
  given_up_[size_t(peer)] = true;
  const char* const remedy = error == EMFILE || error == ENFILE ? "; raise ulimit -n" : "";
  failed_.push_back(
      {peer, fmt::format("at {}: {}{}", place_.ranks[size_t(peer)].text, problem(error), remedy)});
}

// The peer may have had too many calls at once, or this process too many files.
void Connector::call_again(int peer, int error) {
  Call& call = calls_.at(peer);
  if (call.conversation != conversations_.end()) end(call.conversation);
  const Clock::time_point now = Clock::now();
  if (now - call.began > timing::kStrangerTimeout) return call_failed(peer, error);
  call = {call.began, conversations_.end(), now + timing::kCallAgain};
}

bool Connector::hear(Conversation& conversation) {
  const auto read = [&](void* to, size_t bytes) {
    const ssize_t got = recv(conversation.file.get(), static_cast<char*>(to) + conversation.got,
                             bytes - conversation.got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) throw std::system_error(got == 0 ? 0 : errno, std::generic_category());
    conversation.got += size_t(got);
    if (conversation.got < bytes) return false;
    conversation.got = 0;
    return true;
  };
  switch (conversation.stage) {
    case Stage::opening: return read(&conversation.opening, sizeof(conversation.opening));
    case Stage::challenge: return read(&conversation.challenge, sizeof(conversation.challenge));
    case Stage::answer: return read(&conversation.answer, sizeof(conversation.answer));
    case Stage::verdict: return read(&conversation.verdict, sizeof(conversation.verdict));
    case Stage::connecting: break;
  }
  return false;
}

void Connector::attend(uint64_t event) {
  if (event == kListener) return accept_all();
  const auto found = std::ranges::find(conversations_, event, &Conversation::event);
  if (found == conversations_.end()) return;  // ended by an event before this one
  const bool called = found->stage == Stage::opening || found->stage == Stage::answer;
  const int peer = int(found->opening.to);
  try {
    go_on(found);
  } catch (const std::system_error&) {
    if (!called) return call_again(peer, ECONNRESET);
    // A port scanner, or a rank that has found another connection.
    end(found);
  }
}

void Connector::go_on(Conversations::iterator conversation) {
  if (conversation->stage == Stage::connecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(conversation->file.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    const int peer = int(conversation->opening.to);
    if (error) {
      end(conversation);
      return call_failed(peer, error);
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = conversation->event;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, conversation->file.get(), &event);
    conversation->stage = Stage::challenge;
    if (!say(conversation->file, conversation->opening)) call_again(peer, ECONNRESET);
    return;
  }
  if (!hear(*conversation)) return;
  switch (conversation->stage) {
    case Stage::opening: {
      const Opening& opening = conversation->opening;
      if (opening.mark != kMark || opening.to != uint32_t(place_.rank) ||
          opening.from >= place_.ranks.size() || opening.from == opening.to)
        return refuse(conversation, "it is not a rank of this job");
      fill_randomly(conversation->challenge.nonce);
      conversation->challenge.proof = proof_of(Side::called, *conversation);
      conversation->stage = Stage::answer;
      if (!say(conversation->file, conversation->challenge)) end(conversation);
      return;
    }
    case Stage::challenge: {
      const int peer = int(conversation->opening.to);
      const Digest expected = proof_of(Side::called, *conversation);
      if (CRYPTO_memcmp(expected.data(), conversation->challenge.proof.data(), expected.size())) {
        end(conversation);
        return call_failed(peer, EPROTO);  // another program listens there now
      }
      conversation->stage = Stage::verdict;
      if (!say(conversation->file, proof_of(Side::caller, *conversation)))
        call_again(peer, ECONNRESET);
      return;
    }
    case Stage::answer: return answer_caller(conversation);
    case Stage::verdict: {
      const int peer = int(conversation->opening.to);
      if (conversation->verdict == Verdict::welcome) return has_connection(peer, conversation);
      // Else the peer's own call comes, or has come.
      if (conversation->verdict != Verdict::lost) return call_again(peer, ECONNRESET);
      end(conversation);
      return call_failed(peer, ECONNRESET);
    }
    case Stage::connecting: break;
  }
}

void Connector::answer_caller(Conversations::iterator conversation) {
  const Digest expected = proof_of(Side::caller, *conversation);
  if (CRYPTO_memcmp(expected.data(), conversation->answer.data(), expected.size()))
    return refuse(conversation, "it does not know the secret of this rank");
  const int peer = int(conversation->opening.from);
  Verdict verdict = Verdict::welcome;
  if (given_up_[size_t(peer)]) {
    verdict = Verdict::lost;
  } else if (connected_[size_t(peer)]) {
    verdict = Verdict::second;
  } else if (const auto own = calls_.find(peer); own != calls_.end() && place_.rank > peer) {
    // A call that the peer has not heard of yet does not count.
    const auto call = own->second.conversation;
    if (call != conversations_.end() && call->stage != Stage::connecting)
      verdict = Verdict::wait_for_mine;
  }
  if (!say(conversation->file, verdict) || verdict != Verdict::welcome) return end(conversation);
  has_connection(peer, conversation);
}

void Connector::has_connection(int peer, Conversations::iterator conversation) {
  if (const auto call = calls_.find(peer); call != calls_.end()) {
    const auto own = call->second.conversation;
    if (own != conversations_.end() && own != conversation) end(own);
    calls_.erase(call);
  }
  epoll_ctl(epoll_, EPOLL_CTL_DEL, conversation->file.get(), nullptr);
  make_fast(conversation->file.get());
  connected_[size_t(peer)] = true;
  made_.push_back({peer, std::move(conversation->file)});
  end(conversation);
}

void Connector::accept_all() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    File file(accept4(place_.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!file && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      // No descriptor is left. The call waits in the system meanwhile.
      lacks_files_ = true;
      listen(false);
      listens_again_ = Clock::now() + timing::kCallAgain;
    }
    if (!file) return;
    std::string host = host_of(file.get());
    const auto conversation = begin(std::move(file), Stage::opening, EPOLLIN);
    if (conversation == conversations_.end()) return;
    conversation->host = std::move(host);
    make_room();
  }
}

// If there are too many callers, the host with the most loses its oldest.
void Connector::make_room() {
  if (conversations_.size() <= most_strangers_) return;
  std::map<std::string, size_t> callers;
  size_t all = 0;
  for (const Conversation& one : conversations_)
    if (!one.host.empty()) {
      ++callers[one.host];
      ++all;
    }
  if (all <= most_strangers_) return;
  const std::string host =
      std::ranges::max_element(callers, {}, [](const auto& entry) { return entry.second; })->first;
  refuse(std::ranges::find(conversations_, host, &Conversation::host), "there are too many");
}

void Connector::refuse(Conversations::iterator conversation, const char* why) {
  ++refused_;
  last_refused_ = fmt::format("{} ({})", conversation->host, why);
  end(conversation);
}

std::string Connector::take_refused() {
  if (std::exchange(lacks_files_, false))
    return "no descriptor is left to accept connections of other ranks; raise ulimit -n";
  if (!refused_) return {};
  const int refused = std::exchange(refused_, 0);
  return fmt::format("{} connection{} of other programs refused, the last of {}", refused,
                     refused == 1 ? "" : "s", last_refused_);
}

void Connector::keep_time() {
  const auto now = Clock::now();
  if (now < looks_again_) return;
  looks_again_ = now + timing::kShortPoll;
  if (!listens_ && now >= listens_again_) listen(true);
  for (auto at = conversations_.begin(); at != conversations_.end();) {
    const auto next = std::next(at);
    if (!at->host.empty() && now >= at->deadline) refuse(at, "it does not say what it wants");
    at = next;
  }
  std::vector<int> due;
  for (const auto& [peer, call] : calls_)
    if (now >= call.again) due.push_back(peer);
  for (const int peer : due) dial(peer, calls_.at(peer));
}

}  // namespace tutti::group::tcp
