// SPDX-License-Identifier: Apache-2.0
#include "job/announcement.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "support/expect.h"

namespace tutti::group {
namespace {

using namespace std::chrono_literals;

std::string name_for(const char* test) { return fmt::format("test-{}-{}", test, getpid()); }

TEST(Announcement, IsFoundByItsName) {
  const std::string name = name_for("found");
  const Announcement other(name + "1", 1), one(name, 4711);
  EXPECT_EQ(find_announced(name, 30s), 4711);
  EXPECT_EQ(find_announced(name, 30s), 4711) << "by everyone";
  EXPECT_EQ(find_announced(name + "1", 30s), 1);
}

TEST(Announcement, IsWaitedFor) {
  const std::string name = name_for("waited");
  int port = 0;
  std::thread waiting([&] { port = find_announced(name, 30s); });
  const Announcement late(name, 4712);
  waiting.join();
  EXPECT_EQ(port, 4712);
}

TEST(Announcement, EndsWithItsOwner) {
  const std::string name = name_for("ends");
  { const Announcement gone(name, 4713); }
  EXPECT_ERROR(DeadlineExceededError, "for rank 0 on this host", find_announced(name, 0s));
}

TEST(Announcement, OfAnotherUserDoesNotCount) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string name = name_for("other");
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    // The name that a process of ours would take.
    const std::string taken = fmt::format("tutti-0-{}-666", name);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, taken.data(), taken.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const bool works = setuid(65534) == 0 &&
                       bind(fd, reinterpret_cast<sockaddr*>(&address),
                            socklen_t(offsetof(sockaddr_un, sun_path) + 1 + taken.size())) == 0 &&
                       listen(fd, 5) == 0;
    char byte = works ? 'y' : 'n';
    close(done[1]);
    if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) < 0) _exit(1);
    _exit(0);
  }
  close(done[0]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_ERROR(DeadlineExceededError, "runs as another user", find_announced(name, 0s));
  const Announcement ours(name, 4714);
  EXPECT_EQ(find_announced(name, 30s), 4714);
  close(done[1]);
  waitpid(stranger, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace tutti::group
