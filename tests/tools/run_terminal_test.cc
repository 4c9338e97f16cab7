// SPDX-License-Identifier: Apache-2.0
// tutti run on a terminal.
#include <gmock/gmock.h>
#include <pty.h>

#include "tool.h"

namespace tutti::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments) {
    std::vector<char*> argv{const_cast<char*>(TUTTI_TOOL)};
    for (const std::string& word : arguments) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      setenv("TUTTI_MODULE_PATH", TUTTI_TEST_MODULES, 1);
      execv(TUTTI_TOOL, argv.data());
      _exit(99);
    }
  }
  ~Terminal() {
    if (pid_ > 0) finish();
    close(fd_);
  }

  void type(const std::string& keys) {
    EXPECT_EQ(write(fd_, keys.data(), keys.size()), keys.size());
  }
  const std::string& text() const { return text_; }
  bool wait_for(const std::string& text) {
    while (text_.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }
  int finish() {
    while (read_some()) {
    }
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_t pid() const { return pid_; }

 private:
  bool read_some() {
    pollfd polled{fd_, POLLIN, 0};
    if (poll(&polled, 1, 30'000) <= 0) {
      ADD_FAILURE() << "nothing happened for 30 s; so far:\n" << text_;
      kill(pid_, SIGKILL);
      return false;
    }
    std::array<char, 4096> buffer;
    const ssize_t count = read(fd_, buffer.data(), buffer.size());
    if (count <= 0) return false;
    text_.append(buffer.data(), size_t(count));
    return true;
  }

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string text_;
};

TEST(RunOnATerminal, ColoursTheRanks) {
  Terminal terminal(Tool::shells(2, "echo text"));
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_THAT(terminal.text(), HasSubstr("\033[36m[0]\033[0m text\r\n"));
  EXPECT_THAT(terminal.text(), HasSubstr("\033[33m[1]\033[0m text\r\n"));
}

TEST(RunOnATerminal, SaysWhatOpenMpGets) {
  unsetenv("OMP_NUM_THREADS");
  Terminal terminal(Tool::shells(2, "exit 0"));
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_THAT(terminal.text(), HasSubstr(" for each of 2 workers on "));
  EXPECT_THAT(terminal.text(), HasSubstr("(set it to choose)\r\n"));
}

TEST(RunOnATerminal, WhatIsTypedReachesRankZero) {
  Terminal terminal(Tool::shells(2, "[ $r = 0 ] && { echo ready; cat; echo end; }; exit 0"));
  EXPECT_TRUE(terminal.wait_for("ready"));
  terminal.type("hello\n");
  EXPECT_TRUE(terminal.wait_for("\033[0m hello"));
  terminal.type("\x04");  // the end of the input
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_THAT(terminal.text(), HasSubstr("\033[0m end"));
}

TEST(RunOnATerminal, AnInterruptReachesEveryWorkerOnce) {
  Terminal terminal(Tool::shells(2,
                                 "trap 'echo \"interrupt $r\"' INT; trap 'echo bye; exit 0' TERM; "
                                 "echo \"ready $r\"; while :; do sleep 0.05; done"));
  EXPECT_TRUE(terminal.wait_for("ready 0"));
  EXPECT_TRUE(terminal.wait_for("ready 1"));
  terminal.type("\x03");
  EXPECT_TRUE(terminal.wait_for("interrupt 0"));
  EXPECT_TRUE(terminal.wait_for("interrupt 1"));
  kill(terminal.pid(), SIGTERM);
  EXPECT_EQ(terminal.finish(), 130);
  EXPECT_THAT(terminal.text(), EndsWith("tutti run: interrupted\r\n"));
  for (const std::string text : {"interrupt 0", "interrupt 1"})
    EXPECT_EQ(terminal.text().find(text), terminal.text().rfind(text));
}

TEST(RunOnATerminal, SuspendsAndResumesTheWorkersToo) {
  // Without children: a shell that waits for a suspended one to start is not suspended itself.
  Terminal terminal(
      Tool::shells(1, "trap 'echo back' CONT; echo pid $$; echo ready; while :; do :; done"));
  EXPECT_TRUE(terminal.wait_for("ready"));
  const pid_t worker = printed_pids(terminal.text()).at(0);
  terminal.type("\x1a");
  int status = 0;
  EXPECT_EQ(waitpid(terminal.pid(), &status, WUNTRACED), terminal.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_TRUE(eventually([&] { return state(worker) == 'T'; }));
  kill(terminal.pid(), SIGCONT);
  EXPECT_TRUE(terminal.wait_for("back"));
  kill(terminal.pid(), SIGTERM);
  EXPECT_EQ(terminal.finish(), 128 + SIGTERM);
}

}  // namespace
}  // namespace tutti::testing
