// SPDX-License-Identifier: Apache-2.0
#include "places.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <tutti/error.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/settings.h"
#include "cluster/checks.h"
#include "fd.h"
#include "job/interfaces.h"

namespace tutti::tools {

namespace {

// The local address from which packets to a host leave; empty if the name means nothing to us, but
// perhaps to ssh.
std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;  // so that connecting sends nothing
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  const Fd fd(checked(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket"));
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  char text[INET_ADDRSTRLEN] = "";
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      !inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) ||
      cluster::is_loopback(cluster::address_of(text, 1)))
    return {};
  return text;
}

}  // namespace

std::vector<std::string> free_addresses(const std::string& host, int count) {
  std::vector<std::string> result;
  std::vector<Fd> held;  // so that none is found twice
  for (int i = 0; i < count; ++i) {
    held.emplace_back(checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, host.c_str(), &address.sin_addr);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    checked(bind(held.back().get(), generic, size), "cannot find a free port");
    checked(getsockname(held.back().get(), generic, &size), "getsockname");
    result.push_back(cluster::address_of(host, ntohs(address.sin_port)));
  }
  return result;
}

std::string outside_address(const std::vector<Host>& hosts) {
  const std::string& interfaces = base::settings().interfaces;
  std::string address;
  const auto other = std::ranges::find_if_not(hosts, is_this_machine);
  if (interfaces.empty() && other != hosts.end())
    address = address_towards(without_user(other->name));
  if (address.empty()) address = group::outside_address(interfaces);
  if (address.empty())
    throw UnavailableError(
        "no network interface is up by which other hosts could reach the coordination service; "
        "TUTTI_INTERFACES names those to use");
  return address;
}

std::vector<Place> places_on(const std::vector<Host>& hosts, const std::string& this_machine) {
  constexpr int kFirstPort = 5000;
  std::vector<Place> result;
  std::vector<std::string> names;
  std::map<std::string, int> workers;
  for (const Host& host : hosts) {
    std::string name = without_user(host.name);
    const bool here = is_this_machine(host);
    if (is_this_machine({name})) name = this_machine;
    const int local = workers[name]++;
    result.push_back({cluster::address_of(name, kFirstPort + local), here, local});
    names.push_back(name);
  }
  for (size_t rank = 0; rank < result.size(); ++rank) result[rank].locals = workers[names[rank]];
  return result;
}

std::vector<Place> places_here(const std::vector<std::string>& addresses) {
  std::vector<Place> result;
  for (const std::string& address : addresses)
    result.push_back({address, true, int(result.size()), int(addresses.size())});
  return result;
}

std::vector<int> cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> result;
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) result.push_back(core);
  if (result.empty()) result.push_back(0);
  return result;
}

std::vector<int> share_of(const std::vector<int>& cores, const Place& place) {
  const size_t n = cores.size(), i = size_t(place.local_rank), k = size_t(place.locals);
  const size_t first = i * n / k, last = std::max(first + 1, (i + 1) * n / k);
  return {cores.begin() + ptrdiff_t(first), cores.begin() + ptrdiff_t(last)};
}

std::string text_of(const std::vector<int>& cores) {
  const bool row = cores.back() - cores.front() == int(cores.size()) - 1;
  return cores.size() == 1 ? fmt::format("core {}", cores[0])
         : row             ? fmt::format("cores {}-{}", cores.front(), cores.back())
                           : fmt::format("cores {}", fmt::join(cores, ","));
}

Bound::Bound(const std::vector<int>& cores) {
  sched_getaffinity(0, sizeof(before_), &before_);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  checked(sched_setaffinity(0, sizeof(set), &set), "--bind core: sched_setaffinity");
}

}  // namespace tutti::tools
