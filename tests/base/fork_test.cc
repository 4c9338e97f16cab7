// SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>

namespace tutti::base {
namespace {

std::array<int, 2> connected() {
  std::array<int, 2> ends;
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return ends;
}

bool is_socket(int fd) {
  int type = 0;
  socklen_t size = sizeof(type);
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

// Whether `holds` is true in a forked child.
bool in_child(const std::function<bool()>& holds) {
  const pid_t child = fork();
  if (child == 0) _exit(holds() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(Fork, AChildLetsGoOfTheSocketsThatItIsTold) {
  const auto ours = connected(), others = connected();
  close_in_children(std::array{ours[0]});
  EXPECT_TRUE(in_child([&] {
    return is_forked_child() && !is_socket(ours[0]) && fcntl(ours[0], F_GETFD) >= 0 &&
           is_socket(ours[1]) && is_socket(others[0]) && is_socket(others[1]);
  }));
  EXPECT_FALSE(is_forked_child());
  EXPECT_EQ(write(ours[0], "x", 1), 1);  // the parent's connection is as it was
  for (const int fd : {ours[0], ours[1], others[0], others[1]}) close(fd);
}

TEST(Fork, TheOtherSideSeesTheEndWhileAChildLives) {
  const auto ours = connected(), told = connected();
  close_in_children(std::array{ours[0]});
  const pid_t child = fork();
  if (child == 0) {
    char c;
    [[maybe_unused]] const ssize_t got = read(told[1], &c, 1);  // until the test is done
    _exit(0);
  }
  close(ours[0]);
  pollfd end{ours[1], POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, 10'000), 1);
  char c;
  EXPECT_EQ(read(ours[1], &c, 1), 0);
  EXPECT_EQ(write(told[0], "x", 1), 1);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  for (const int fd : {ours[1], told[0], told[1]}) close(fd);
}

TEST(Fork, ANumberThatIsUsedAgainIsLeftAlone) {
  const auto ours = connected();
  close_in_children(ours);
  close(ours[0]);
  close(ours[1]);
  const auto next = connected();
  ASSERT_EQ(next, ours);
  EXPECT_TRUE(in_child([&] { return is_socket(next[0]) && is_socket(next[1]); }));
  for (const int fd : next) close(fd);
}

TEST(Fork, AChildLetsGoOfAPortAndOfWhatWasAcceptedThere) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, generic, size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, generic, &size), 0);
  const int port = ntohs(address.sin_port);
  close_port_in_children(port);
  ASSERT_EQ(connect(stranger, generic, size), 0);
  const int accepted = accept(listener, nullptr, nullptr);
  ASSERT_GE(accepted, 0);
  EXPECT_EQ(sockets_to(port), std::vector{stranger});
  EXPECT_TRUE(in_child(
      [&] { return !is_socket(listener) && !is_socket(accepted) && is_socket(stranger); }));
  for (const int fd : {listener, stranger, accepted}) close(fd);
}

}  // namespace
}  // namespace tutti::base
