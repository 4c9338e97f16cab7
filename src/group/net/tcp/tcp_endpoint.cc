// SPDX-License-Identifier: Apache-2.0
// The module "tcp": connections between hosts with nothing faster between them.
//
// Every two ranks have one connection, made when the job begins; after that a rank accepts none.
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <list>
#include <sstream>

#include "base/module.h"
#include "group/liveness/timing.h"
#include "group/net/tcp/sockets.h"
#include "group/net/transport_parts.h"

namespace tutti::group::tcp {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kPollMs = int(duration_cast<milliseconds>(timing::kConnectPoll).count());
// Connections that have not shown yet that they are of a rank.
constexpr size_t kMostStrangers = 256;

using Secret = std::array<unsigned char, 16>;

// The first thing on a connection.
struct Hello {
  uint64_t mark = kMark;
  Secret secret{};  // of the rank that is called, known to those that have its address
  uint32_t to = 0, from = 0;
};

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolved(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
  if (error)
    throw UnavailableError(fmt::format("tcp: {} is no address: {}", host, gai_strerror(error)));
  return {found, freeaddrinfo};
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return address.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// As far as the system lets us.
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

// Where a rank listens, as its address tells the others: "host port secret".
struct PeerAddress {
  std::string host, port;
  Secret secret;

  explicit PeerAddress(const std::string& text) {
    std::istringstream words(text);
    std::string hex;
    words >> host >> port >> hex;
    if (hex.size() != 2 * secret.size())
      throw DataLossError(fmt::format("tcp: \"{}\" is no place", text));
    for (size_t i = 0; i < secret.size(); ++i)
      secret[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
};

class TcpEndpoint : public Endpoint {
 public:
  TcpEndpoint(const std::string& host, std::chrono::nanoseconds timeout)
      : host_(host), timeout_(timeout) {
    if (getrandom(secret_.data(), secret_.size(), 0) != ssize_t(secret_.size()))
      throw UnavailableError(fmt::format("tcp: no random numbers: {}", problem(errno)));
    const Addresses all = resolved(host, "0", AI_PASSIVE);
    int error = 0;
    for (const addrinfo* a = all.get(); a && !listener_; a = a->ai_next) {
      File file(socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (file && bind(file.get(), a->ai_addr, a->ai_addrlen) == 0 &&
          listen(file.get(), SOMAXCONN) == 0)
        listener_ = std::move(file);
      else
        error = errno;
    }
    if (!listener_ && (error == EMFILE || error == ENFILE)) no_more_files(error);
    if (!listener_)
      throw UnavailableError(
          fmt::format("tcp: cannot listen on {}: {}; TUTTI_INTERFACES names the interface to use",
                      host, problem(error)));
  }

  std::string address() const override {
    sockaddr_storage name{};
    socklen_t size = sizeof(name);
    std::array<char, NI_MAXHOST> host;
    std::array<char, NI_MAXSERV> port;
    if (getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&name), size, host.data(), host.size(), port.data(),
                    port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
      throw UnavailableError(fmt::format("tcp: {} has no address", host_));
    std::string text = fmt::format("{} {} ", host.data(), port.data());
    for (const unsigned char byte : secret_) text += fmt::format("{:02x}", byte);
    return text;
  }

  // The higher of two ranks connects to the lower.
  std::unique_ptr<Transport> connect(const std::vector<std::string>& addresses, int rank,
                                     const std::function<void()>& check) override {
    constexpr std::chrono::nanoseconds kYear = std::chrono::hours(24 * 365);
    const auto until = Clock::now() + std::min(timeout_, kYear);  // which may be the largest
    std::vector<File> files(addresses.size());
    for (int r = 0; r < rank; ++r)
      files[size_t(r)] = call(PeerAddress(addresses[size_t(r)]),
                              {.to = uint32_t(r), .from = uint32_t(rank)}, until, check);
    answer(files, uint32_t(rank), until, check);
    listener_ = File();
    for (const File& file : files)
      if (file) make_fast(file.get());
    return make_transport(std::move(files), rank);
  }

 private:
  struct Stranger {
    File file;
    Hello hello;
    size_t got = 0;
  };

  static File call(const PeerAddress& peer, Hello hello, Clock::time_point until,
                   const std::function<void()>& check) {
    hello.secret = peer.secret;
    const auto fail = [&](int error) {
      throw UnavailableError(fmt::format(
          "tcp: rank {} cannot be reached from rank {} at {}:{}: {}; are their interfaces in one "
          "network, and no firewall between them? TUTTI_INTERFACES names those to use",
          hello.to, hello.from, peer.host, peer.port, problem(error)));
    };
    const Addresses all = resolved(peer.host, peer.port, AI_NUMERICHOST | AI_NUMERICSERV);
    File file(socket(all->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!file) no_more_files(errno);
    if (::connect(file.get(), all->ai_addr, all->ai_addrlen) != 0 && errno != EINPROGRESS)
      fail(errno);
    pollfd connecting{file.get(), POLLOUT, 0};
    while (poll(&connecting, 1, kPollMs) <= 0) {
      check();
      if (Clock::now() > until) fail(ETIMEDOUT);
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(file.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) fail(error);
    if (::send(file.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != ssize_t(sizeof(hello)))
      fail(errno);
    return file;
  }

  // Accepts the calls of all higher ranks, and closes other connections.
  void answer(std::vector<File>& files, uint32_t rank, Clock::time_point until,
              const std::function<void()>& check) {
    std::list<Stranger> strangers;
    const auto missing = [&] {
      for (size_t r = rank + 1; r < files.size(); ++r)
        if (!files[r]) return int(r);
      return -1;
    };
    while (missing() >= 0) {
      std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
      for (const Stranger& stranger : strangers) polled.push_back({stranger.file.get(), POLLIN, 0});
      poll(polled.data(), polled.size(), kPollMs);
      check();
      if (Clock::now() > until)
        throw UnavailableError(fmt::format(
            "tcp: rank {} has not called rank {} in {} s; are their interfaces in one network, and "
            "no firewall between them? TUTTI_INTERFACES names those to use",
            missing(), rank, std::chrono::duration<double>(timeout_).count()));
      while (true) {
        File file(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!file && (errno == EMFILE || errno == ENFILE)) no_more_files(errno);
        if (!file) break;
        strangers.push_back({std::move(file), {}, 0});
        if (is_done(strangers.back(), files, rank)) strangers.pop_back();
        if (strangers.size() > kMostStrangers + files.size()) strangers.pop_front();
      }
      for (auto it = strangers.begin(); it != strangers.end();)
        it = is_done(*it, files, rank) ? strangers.erase(it) : std::next(it);
    }
  }
  [[noreturn]] static void no_more_files(int error) {
    throw ResourceExhaustedError(
        fmt::format("tcp: no connection to another rank: {}; a rank has one to every other: raise "
                    "ulimit -n",
                    problem(error)));
  }
  bool is_done(Stranger& stranger, std::vector<File>& files, uint32_t rank) const {
    Hello& hello = stranger.hello;
    const ssize_t got = recv(stranger.file.get(), reinterpret_cast<char*>(&hello) + stranger.got,
                             sizeof(hello) - stranger.got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return true;
    stranger.got += size_t(got);
    if (stranger.got < sizeof(hello)) return false;
    if (hello.mark == Hello{}.mark && hello.secret == secret_ && hello.to == rank &&
        hello.from > rank && hello.from < files.size() && !files[hello.from])
      files[hello.from] = std::move(stranger.file);
    return true;
  }

  const std::string host_;
  const std::chrono::nanoseconds timeout_;
  Secret secret_;
  File listener_;
};

std::unique_ptr<Endpoint> open(const TransportOptions& options) {
  if (options.host.empty())
    throw UnavailableError(
        fmt::format("TUTTI_INTERFACES: none of {} is up with an IPv4 address on this host",
                    options.interfaces));
  return std::make_unique<TcpEndpoint>(options.host, options.timeout);
}

std::string interface_in_use(const TransportOptions& options) {
  return describe_interface(options, "the first that is up");
}

constexpr TransportModule kInterface{open, interface_in_use, nullptr};
constexpr base::Module kModule{TUTTI_VERSION, &kInterface};

}  // namespace

}  // namespace tutti::group::tcp

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  return &tutti::group::tcp::kModule;
}
