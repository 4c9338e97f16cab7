// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>

namespace tutti::base {

namespace detail {
std::atomic<bool> forked{false};
}

namespace {

// The kernel may give the number of a closed socket to another file; the inode tells them apart.
struct Socket {
  int fd;
  ino_t inode;
};

struct Registry {
  std::mutex mutex;
  std::vector<Socket> sockets;
  std::vector<int> ports;
};

Registry& registry() {
  static Registry* const all = new Registry;  // never destroyed: static destructors may fork, too
  return *all;
}

ino_t inode_of_socket(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) ? status.st_ino : 0;
}

using NameOf = int(int, sockaddr*, socklen_t*);

// The TCP port at this end (getsockname) or at the other (getpeername); 0: it has none.
int port_of(int fd, NameOf* name) {
  int type = 0;
  socklen_t size = sizeof(type);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM) return 0;
  sockaddr_storage address{};
  size = sizeof(address);
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

// Allocates nothing, since it runs in forked children.
template <class F>
void for_each_descriptor(const F& f) {
  const int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(dirent64) char entries[4096];
  ssize_t bytes;
  while ((bytes = getdents64(folder, entries, sizeof(entries))) > 0)
    for (ssize_t at = 0; at < bytes;) {
      const auto& entry = *reinterpret_cast<const dirent64*>(entries + at);
      at += entry.d_reclen;
      if (entry.d_name[0] == '.') continue;
      int fd = 0;
      for (const char* digit = entry.d_name; *digit; ++digit) fd = 10 * fd + (*digit - '0');
      if (fd != folder) f(fd);
    }
  close(folder);
}

// Runs in the child and does only what a signal handler may do. It shuts no connection down: they
// are the parent's.
void let_go() {
  detail::forked.store(true);
  Registry& all = registry();
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  // The number stays taken, so that code that still holds it writes to no file of the child's.
  const auto drop = [&](int fd) {
    if (null < 0 || dup3(null, fd, O_CLOEXEC) < 0) close(fd);
  };
  for (const Socket& socket : all.sockets)
    if (inode_of_socket(socket.fd) == socket.inode) drop(socket.fd);
  if (!all.ports.empty())
    for_each_descriptor([&](int fd) {
      const int port = port_of(fd, getsockname);
      for (const int own : all.ports)
        if (port == own) drop(fd);
    });
  if (null >= 0) close(null);
  all.mutex.unlock();
}

// Locks the registry, to add to it.
std::unique_lock<std::mutex> locked() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); }, let_go);
  });
  return std::unique_lock(registry().mutex);
}

}  // namespace

void close_in_children(std::span<const int> sockets) {
  const auto lock = locked();
  for (const int fd : sockets)
    if (const ino_t inode = inode_of_socket(fd)) registry().sockets.push_back({fd, inode});
}

void close_port_in_children(int port) {
  const auto lock = locked();
  registry().ports.push_back(port);
}

std::vector<int> sockets_to(int port) {
  std::vector<int> found;
  if (port <= 0) return found;
  for_each_descriptor([&](int fd) {
    if (port_of(fd, getpeername) == port) found.push_back(fd);
  });
  return found;
}

}  // namespace tutti::base
