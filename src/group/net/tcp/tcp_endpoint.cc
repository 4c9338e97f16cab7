// SPDX-License-Identifier: Apache-2.0
// The module "tcp": connections between hosts with nothing faster between them.
//
// Two ranks have a connection, made when a message between them is first sent or awaited
// (connector.h), and one each way for large messages. A rank listens as long as it takes part in
// the job.
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/module.h"
#include "group/net/tcp/sockets.h"
#include "group/net/transport_parts.h"

namespace tutti::group::tcp {

namespace {

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

// Where a rank listens, as its endpoint tells the others: "host port secret".
PeerAddress parsed(const std::string& text) {
  std::istringstream words(text);
  std::string host, port, hex;
  words >> host >> port >> hex;
  PeerAddress address{.text = host + ":" + port};
  if (hex.size() != 2 * address.secret.size())
    throw DataLossError(fmt::format("tcp: \"{}\" is no address of a rank", text));
  for (size_t i = 0; i < address.secret.size(); ++i)
    address.secret[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  const Addresses found = resolved(host, port, AI_NUMERICHOST | AI_NUMERICSERV);
  address.size = found->ai_addrlen;
  std::memcpy(&address.name, found->ai_addr, found->ai_addrlen);
  return address;
}

class TcpEndpoint : public Endpoint {
 public:
  explicit TcpEndpoint(const TransportOptions& options)
      : host_(options.host), timeout_(options.timeout), sends_in_bulk_(options.sends_in_bulk) {
    if (getrandom(secret_.data(), secret_.size(), 0) != ssize_t(secret_.size()))
      throw UnavailableError(fmt::format("tcp: no random numbers: {}", problem(errno)));
    const Addresses all = resolved(host_, "0", AI_PASSIVE);
    int error = 0;
    for (const addrinfo* a = all.get(); a && !listener_; a = a->ai_next) {
      File file(socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (file && bind(file.get(), a->ai_addr, a->ai_addrlen) == 0 &&
          listen(file.get(), SOMAXCONN) == 0)
        listener_ = std::move(file);
      else
        error = errno;
    }
    if (!listener_ && (error == EMFILE || error == ENFILE))
      throw ResourceExhaustedError(
          fmt::format("tcp: no socket to listen with: {}; raise ulimit -n", problem(error)));
    if (!listener_)
      throw UnavailableError(
          fmt::format("tcp: cannot listen on {}: {}; TUTTI_INTERFACES names the interface to use",
                      host_, problem(error)));
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

  // Calls the next rank on another host at once, to find out whether the hosts' networks meet.
  std::unique_ptr<Transport> connect(const std::vector<std::string>& addresses, int rank,
                                     const std::function<void()>& check) override {
    Place place{.rank = rank,
                .listener = std::move(listener_),
                .ranks = {},
                .sends_in_bulk = sends_in_bulk_};
    for (const std::string& address : addresses) place.ranks.push_back(parsed(address));
    return make_transport(std::move(place), timeout_, check);
  }

 private:
  const std::string host_;
  const std::chrono::nanoseconds timeout_;
  const bool sends_in_bulk_;
  Secret secret_;
  File listener_;
};

std::unique_ptr<Endpoint> open(const TransportOptions& options) {
  if (options.host.empty())
    throw UnavailableError(
        fmt::format("TUTTI_INTERFACES: none of {} is up with an IPv4 address on this host",
                    options.interfaces));
  return std::make_unique<TcpEndpoint>(options);
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
