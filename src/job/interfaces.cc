// SPDX-License-Identifier: Apache-2.0
#include "job/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <memory>

#include "cluster/checks.h"

namespace tutti::group {

namespace {

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Interfaces interfaces_of_this_machine() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) first = nullptr;
  return {first, freeifaddrs};
}

bool same_host(const sockaddr* a, const sockaddr* b) {
  if (a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

// The local interface whose address HOST:PORT resolves to, or null.
const ifaddrs* found(const Interfaces& all, const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *first = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &first) != 0) return nullptr;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(first, freeaddrinfo);
  for (const addrinfo* a = first; a; a = a->ai_next)
    for (const ifaddrs* i = all.get(); i; i = i->ifa_next)
      // A name that this machine knows as its loopback is another to other hosts.
      if (i->ifa_addr && same_host(i->ifa_addr, a->ai_addr) &&
          (!(i->ifa_flags & IFF_LOOPBACK) || cluster::is_loopback(address)))
        return i;
  return nullptr;
}

}  // namespace

OwnInterface own_interface(const std::string& address) {
  const Interfaces all = interfaces_of_this_machine();
  const ifaddrs* const own = found(all, address);
  if (!own) return {};
  const std::string name = own->ifa_name;
  const socklen_t size =
      own->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(own->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    text[0] = 0;
  return {name.substr(0, name.find(':')), text.data()};  // an alias is no device
}

std::string devices_of(const std::string& interface) {
  std::string devices = interface;
  std::error_code none;
  const std::filesystem::path folder = "/sys/class/net/" + interface + "/device/infiniband";
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    devices += fmt::format(",{}:1", entry.path().filename().string());
  return devices;
}

std::string outside_address(const std::string& interfaces) {
  const Interfaces all = interfaces_of_this_machine();
  const std::string wanted = "," + interfaces + ",";
  for (const ifaddrs* i = all.get(); i; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
    if (!(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK) continue;
    if (!interfaces.empty() && wanted.find(fmt::format(",{},", i->ifa_name)) == wanted.npos)
      continue;
    char text[INET_ADDRSTRLEN];
    const auto* const address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text))) return text;
  }
  return {};
}

}  // namespace tutti::group
