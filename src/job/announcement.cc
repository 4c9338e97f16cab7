// SPDX-License-Identifier: Apache-2.0
#include "job/announcement.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <tutti/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>
#include <thread>

#include "group/liveness/timing.h"

namespace tutti::group {

namespace {

constexpr int kMostRanks = 4096;

// The name of an abstract socket tells the port, so it is read from the kernel's list of them and
// nothing has to be accepted. A connection to it shows whose it is.
std::string prefix(const std::string& name) { return fmt::format("tutti-{}-{}-", geteuid(), name); }

struct Address {
  sockaddr_un address{};
  socklen_t size;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), length);  // after a zero: no file
    size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

int open_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

bool is_ours(const std::string& socket_name) {
  const int fd = open_socket();
  const Address address(socket_name);
  ucred owner{};
  socklen_t size = sizeof(owner);
  const bool ours = fd >= 0 && connect(fd, address.get(), address.size) == 0 &&
                    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0 &&
                    owner.uid == geteuid();
  if (fd >= 0) close(fd);
  return ours;
}

std::optional<int> look_for(const std::string& start) {
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find("@" + start);
    if (at == line.npos) continue;
    const std::string name = line.substr(at + 1);
    if (is_ours(name)) return std::atoi(name.c_str() + start.size());
  }
  return {};
}

}  // namespace

Announcement::Announcement(const std::string& name, int port) : fd_(open_socket()) {
  const Address address(prefix(name) + std::to_string(port));
  if (fd_ < 0 || bind(fd_, address.get(), address.size) != 0 || listen(fd_, kMostRanks) != 0) {
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    throw UnavailableError(fmt::format("cannot announce the coordination service on this host: {}",
                                       std::generic_category().message(error)));
  }
}

Announcement::~Announcement() { close(fd_); }

int find_announced(const std::string& name, std::chrono::nanoseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    if (const auto port = look_for(prefix(name))) return *port;
    if (std::chrono::steady_clock::now() - start >= timeout)
      throw DeadlineExceededError(
          fmt::format("waited {:g} s for rank 0 on this host: it has not come to its first group, "
                      "or runs as another user",
                      std::chrono::duration<double>(timeout).count()));
    std::this_thread::sleep_for(timing::kAnnouncementPoll);
  }
}

}  // namespace tutti::group
