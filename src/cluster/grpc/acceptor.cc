// SPDX-License-Identifier: Apache-2.0
#include "cluster/grpc/acceptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <set>

#include "cluster/grpc/grpc_cluster.h"

namespace tutti::cluster {

namespace {

using namespace std::chrono_literals;

// A connection has this long to join, from its acceptance and again from its handover to gRPC.
constexpr auto kJoinTimeout = 10s;
// How long to let connections wait in the kernel's queue if the process is out of descriptors.
constexpr auto kAcceptPause = 100ms;
// How many connections are accepted before the others are looked at again.
constexpr int kAcceptsAtOnce = 16;
constexpr size_t kLargestRequest = 1024;

constexpr std::string_view kMethod = "CONNECT ";
constexpr std::string_view kPassPrefix = "tutti-";
constexpr std::string_view kEndOfRequest = "\r\n\r\n";

// The rest of the process keeps most of its descriptors. A connection that was handed over counts
// twice: gRPC has it, and the acceptor.
size_t most_visitors(size_t ranks) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  // All ranks may come at once.
  return std::clamp<size_t>(limit.rlim_cur / 8, 8 + ranks, 128 + ranks);
}

void write_to(int fd, std::string_view text) {
  (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

struct Name {
  std::string host, peer;
};
Name name_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port,
              sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  std::string_view shown = host;
  shown = shown.substr(0, shown.find('%'));  // the interface, which gRPC gives by number
  // gRPC shows an IPv4 address at an IPv6 socket as an IPv4 address.
  if (shown.starts_with("::ffff:") && shown.find('.') != shown.npos) shown.remove_prefix(7);
  return {std::string(shown), fmt::format("{}:{}", shown, port)};
}

// "ipv6:%5B::1%5D:5000" as "::1:5000", without an interface.
std::string plain(std::string_view peer) {
  peer.remove_prefix(std::min(peer.find(':') + 1, peer.size()));
  std::string result;
  for (size_t i = 0; i < peer.size(); ++i) {
    uint8_t code = static_cast<uint8_t>(peer[i]);
    if (code == '%' && i + 2 < peer.size()) {
      std::from_chars(peer.data() + i + 1, peer.data() + i + 3, code, 16);
      i += 2;
    }
    if (code != '[' && code != ']') result += static_cast<char>(code);
  }
  if (const size_t interface = result.find('%'); interface != result.npos)
    result.erase(interface, result.rfind(':') - interface);
  return result;
}

}  // namespace

std::string pass_of(const Job& job) {
  if (uses_tls(job)) return fmt::format("{}tls", kPassPrefix);
  constexpr std::string_view purpose = "tutti: join the coordination service";
  unsigned char proof[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (!HMAC(EVP_sha256(), job.token.data(), static_cast<int>(job.token.size()),
            reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(), proof, &size))
    throw InternalError("join: OpenSSL cannot compute an HMAC with SHA-256");
  std::string pass(kPassPrefix);
  for (unsigned int i = 0; i < size; ++i) pass += fmt::format("{:02x}", proof[i]);
  return pass;
}

std::string host_of(std::string_view peer) {
  const std::string address = plain(peer);
  return address.substr(0, address.rfind(':'));
}

Acceptor::Acceptor(const Job& job, const std::string& address)
    : pass_(pass_of(job)),
      most_(most_visitors(job.addresses.size())),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon),
              port = address.substr(std::min(colon, address.size()));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  bool listens = false;
  // A free port of one address may be in use at another.
  for (int left = port == ":0" ? 10 : 1; !listens && left > 0; --left)
    listens = port.size() > 1 && listen(host, port.substr(1));
  if (!listens || wake_.get() < 0)
    throw UnavailableError(
        fmt::format("cannot listen on {}: the address is in use by another process, or is not one "
                    "of this machine's; choose another port, or the address that the other workers "
                    "reach this machine at",
                    address));
}

Acceptor::~Acceptor() { stop(); }

void Acceptor::stop() {
  stopping_ = true;
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

bool Acceptor::listen(const std::string& host, const std::string& port) {
  listeners_.clear();
  port_ = 0;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  if (getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found) != 0)
    return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, freeaddrinfo);
  const bool several = found->ai_next;
  std::set<std::string> seen;  // a name may have an address twice
  for (; found; found = found->ai_next) {
    if (!seen.emplace(reinterpret_cast<const char*>(found->ai_addr), found->ai_addrlen).second)
      continue;
    Descriptor fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.get() < 0) continue;  // no IPv6 on this machine, perhaps
    // Connections inherit these options. Without the first, a port stays taken for a minute after
    // its connections have ended.
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (found->ai_family == AF_INET6 && several)  // IPv4 has a socket of its own
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (port_ != 0) {
      auto* const port_at = found->ai_family == AF_INET6
                                ? &reinterpret_cast<sockaddr_in6*>(found->ai_addr)->sin6_port
                                : &reinterpret_cast<sockaddr_in*>(found->ai_addr)->sin_port;
      *port_at = htons(static_cast<uint16_t>(port_));
    }
    if (bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
        ::listen(fd.get(), SOMAXCONN) != 0) {
      if (errno == EADDRINUSE) return false;  // another server would get some of the connections
      continue;
    }
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    port_ =
        ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                          : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
    listeners_.push_back(std::move(fd));
  }
  return !listeners_.empty();
}

void Acceptor::start(std::function<void(int)> hand_over,
                     std::function<void(const std::string&)> wrong_token) {
  hand_over_ = std::move(hand_over);
  wrong_token_ = std::move(wrong_token);
  thread_ = std::thread([this] { run(); });
}

void Acceptor::joined(const std::string& peer) {
  {
    std::lock_guard lock(mutex_);
    joined_.push_back(plain(peer));
  }
  eventfd_write(wake_.get(), 1);
}

void Acceptor::run() {
  while (!stopping_) {
    try {
      attend();
    } catch (const std::exception&) {
      visitors_.clear();  // out of memory
    }
  }
}

// Waits for the next event or deadline, and deals with it.
void Acceptor::attend() {
  release_joined();
  const auto now = Clock::now();
  std::erase_if(visitors_, [&](Visitor& visitor) {
    if (visitor.deadline > now) return false;
    shutdown(visitor.fd.get(), SHUT_RDWR);
    return true;
  });
  auto until = now + kJoinTimeout;
  std::vector<pollfd> polled{{wake_.get(), POLLIN, 0}};
  for (const Descriptor& listener : listeners_)
    polled.push_back({now < accepts_at_ ? -1 : listener.get(), POLLIN, 0});
  if (now < accepts_at_) until = accepts_at_;
  for (const Visitor& visitor : visitors_) {
    polled.push_back({visitor.fd.get(), short(visitor.handed_over ? POLLRDHUP : POLLIN), 0});
    until = std::min(until, visitor.deadline);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now);
  if (poll(polled.data(), polled.size(), static_cast<int>(left.count())) <= 0) return;
  if (eventfd_t count; polled[0].revents) eventfd_read(wake_.get(), &count);
  auto event = polled.begin() + 1 + static_cast<std::ptrdiff_t>(listeners_.size());
  std::erase_if(visitors_, [&](Visitor& visitor) {
    return event++->revents && (visitor.handed_over || !hears(visitor));
  });
  for (size_t i = 0; i < listeners_.size(); ++i)
    if (polled[1 + i].revents) take_connections(listeners_[i].get());
}

void Acceptor::release_joined() {
  std::vector<std::string> joined;
  {
    std::lock_guard lock(mutex_);
    joined.swap(joined_);
  }
  for (const std::string& peer : joined)
    // A rank must stay: if its connection is not found, all that were handed over stay.
    if (!std::erase_if(visitors_, [&](const Visitor& visitor) { return visitor.peer == peer; }))
      std::erase_if(visitors_, [](const Visitor& visitor) { return visitor.handed_over; });
}

void Acceptor::take_connections(int listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    Descriptor fd(accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                          SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() < 0 &&
        (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      if (!std::ranges::all_of(visitors_, &Visitor::handed_over)) return evict();
      accepts_at_ = Clock::now() + kAcceptPause;
      return;
    }
    if (fd.get() < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      continue;  // this connection ended while it waited
    }
    if (visitors_.size() >= most_) evict();
    Name name = name_of(address, size);
    visitors_.push_back(
        {std::move(fd), std::move(name.host), std::move(name.peer), Clock::now() + kJoinTimeout});
  }
}

// Ends a connection to make room: first one that has not shown the pass, then one from the host
// that has the most, then the oldest. A worker shows its pass at once, so a flood from elsewhere
// does not keep it out.
void Acceptor::evict() {
  release_joined();
  if (visitors_.size() < most_) return;
  std::map<std::string_view, int> of_host;
  for (const Visitor& visitor : visitors_) ++of_host[visitor.host];
  const auto worst = std::ranges::max_element(visitors_, {}, [&](const Visitor& visitor) {
    return std::pair(!visitor.handed_over, of_host[visitor.host]);
  });
  if (worst == visitors_.end()) return;
  shutdown(worst->fd.get(), SHUT_RDWR);
  visitors_.erase(worst);
}

bool Acceptor::hears(Visitor& visitor) {
  char bytes[kLargestRequest];
  const ssize_t size = recv(visitor.fd.get(), bytes, kLargestRequest - visitor.heard.size(), 0);
  if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
  visitor.heard.append(bytes, static_cast<size_t>(size));
  switch (judge(visitor.heard)) {
    case Verdict::undecided: return visitor.heard.size() < kLargestRequest;
    case Verdict::pass: return hand_over(visitor);
    case Verdict::wrong_token:
      wrong_token_(visitor.host);
      write_to(visitor.fd.get(), "HTTP/1.1 403 Forbidden\r\n\r\n");
      return false;
    case Verdict::stranger: return false;
  }
  return false;
}

Acceptor::Verdict Acceptor::judge(std::string_view heard) const {
  const std::string start = fmt::format("{}{}", kMethod, kPassPrefix);
  if (!heard.starts_with(std::string_view(start).substr(0, heard.size()))) return Verdict::stranger;
  // A worker waits for the answer before it sends more.
  const size_t end = heard.find(kEndOfRequest);
  if (end == heard.npos) return Verdict::undecided;
  if (end + kEndOfRequest.size() != heard.size()) return Verdict::stranger;
  heard.remove_prefix(kMethod.size());
  const std::string_view shown = heard.substr(0, heard.find(' '));
  if (shown.size() != pass_.size())
    return Verdict::stranger;  // one uses TLS and the other does not
  const bool same = CRYPTO_memcmp(shown.data(), pass_.data(), pass_.size()) == 0;
  return same ? Verdict::pass : Verdict::wrong_token;
}

bool Acceptor::hand_over(Visitor& visitor) {
  Descriptor duplicate(fcntl(visitor.fd.get(), F_DUPFD_CLOEXEC, 0));
  if (duplicate.get() < 0) return false;
  write_to(visitor.fd.get(), "HTTP/1.1 200 OK\r\n\r\n");
  std::swap(duplicate, visitor.fd);
  visitor.handed_over = true;
  visitor.deadline = Clock::now() + kJoinTimeout;
  hand_over_(duplicate.release());
  return true;
}

}  // namespace tutti::cluster
