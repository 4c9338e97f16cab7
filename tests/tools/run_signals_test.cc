// SPDX-License-Identifier: Apache-2.0
// tutti run: signals, and a launcher that is killed.
#include <gmock/gmock.h>

#include <set>

#include "tool.h"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// ---- signals

class RunForwards : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, RunForwards,
                         ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2),
                         [](const auto& test) { return std::string(sigabbrev_np(test.param)); });

TEST_P(RunForwards, TheSignalToEveryWorker) {
  const int number = GetParam();
  Tool tool(Tool::shells(3, std::string("trap 'echo heard; exit 0' ") + sigabbrev_np(number) +
                                "; echo ready; while :; do sleep 0.05; done"));
  EXPECT_TRUE(tool.wait_for("ready", 3));
  tool.signal(number);
  EXPECT_EQ(tool.finish(), number == SIGINT ? 130 : 0);
  EXPECT_TRUE(tool.wait_for("heard", 3));
  EXPECT_EQ(tool.err().ends_with("tutti run: interrupted\n"), number == SIGINT) << tool.err();
}

TEST_P(RunForwards, AndItsEffectIfItIsNotCaught) {
  const int number = GetParam();
  Tool tool(Tool::shells(2, "echo pid $$; exec sleep 1000"));
  EXPECT_TRUE(tool.wait_for("pid ", 2));
  tool.signal(number);
  EXPECT_EQ(tool.finish(), 128 + number);
  if (number == SIGINT)
    EXPECT_EQ(tool.err(), "tutti run: interrupted\n");
  else
    EXPECT_THAT(tool.err(), HasSubstr("was killed by signal " + std::to_string(number)));
  expect_all_gone(tool.out(), 2);
}

TEST(RunCommand, AnIgnoredHangupStaysIgnored) {
  Process shell(
      {"sh", "-c",
       "trap '' HUP; exec '" TUTTI_TOOL "' run -n 1 sh -c 'echo ready; read line; echo $line'"},
      {});
  EXPECT_TRUE(shell.wait_for("ready"));
  shell.signal(SIGHUP);
  shell.write("survived\n");
  EXPECT_EQ(shell.finish(), 0);
  EXPECT_THAT(shell.out(), EndsWith("[0] survived\n"));
}

TEST(RunCommand, ASecondInterruptKills) {
  Tool tool(Tool::shells(2,
                         "trap '' INT; trap 'echo heard' USR1; echo pid $$; "
                         "while :; do sleep 0.05; done"));
  EXPECT_TRUE(tool.wait_for("pid ", 2));
  tool.signal(SIGINT);
  tool.signal(SIGUSR1);  // a sign that the first has been taken
  EXPECT_TRUE(tool.wait_for("heard", 2));
  const auto start = Clock::now();
  tool.signal(SIGINT);
  EXPECT_EQ(tool.finish(), 130);
  EXPECT_LT(Clock::now() - start, 4s);
  EXPECT_THAT(tool.err(), EndsWith("tutti run: interrupted; the workers were killed\n"));
  expect_all_gone(tool.out(), 2);
}

TEST(RunCommand, AnInterruptKillsAfterAWhile) {
  Tool tool(Tool::shells(2, "trap '' INT; echo pid $$; while :; do sleep 0.05; done"));
  EXPECT_TRUE(tool.wait_for("pid ", 2));
  const auto start = Clock::now();
  tool.signal(SIGINT);
  EXPECT_EQ(tool.finish(), 130);
  EXPECT_GT(Clock::now() - start, 4s);
  EXPECT_LT(Clock::now() - start, 15s);
  expect_all_gone(tool.out(), 2);
}

// ---- the guard

// The process beside a launcher that ends its workers, once it has a name; 0 if there is none.
pid_t guard_of(pid_t launcher) {
  pid_t found = 0;
  const std::string parent = "PPid:\t" + std::to_string(launcher) + "\n";
  eventually([&] {
    for (const auto& entry : fs::directory_iterator("/proc"))
      if (content(entry.path() / "comm") == "tutti-guard\n" &&
          content(entry.path() / "status").find(parent) != std::string::npos)
        found = std::atoi(entry.path().filename().c_str());
    return found != 0;
  });
  return found;
}

bool is_gone(pid_t pid) { return !alive(pid) || state(pid) == 'Z'; }

TEST(RunCommand, WorkersAndTheirChildrenEndWhenTheLauncherIsKilled) {
  // Each computes and ignores what can be ignored, and so does a child in its group, one that has
  // left it, and one of another launcher.
  const std::string busy = "trap \"\" TERM HUP INT; echo pid $$; while :; do :; done";
  Tool tool(Tool::shells(2, "sh -c '" + busy + "' & setsid sh -c '" + busy +
                                "' & '" TUTTI_TOOL "' run -n 1 sh -c '" + busy + "' & " + busy));
  EXPECT_TRUE(tool.wait_for("pid ", 8));
  EXPECT_TRUE(tool.wait_for("\n", 8));
  const pid_t guard = guard_of(tool.pid());
  ASSERT_GT(guard, 0);
  tool.signal(SIGKILL);
  const auto killed = Clock::now();
  for (const pid_t pid : printed_pids(tool.out()))
    EXPECT_TRUE(eventually([&] { return is_gone(pid); })) << pid;
  EXPECT_LT(Clock::now() - killed, 3s);  // 2 s, on a machine that has time
  EXPECT_TRUE(eventually([&] { return is_gone(guard); }));
}

TEST(RunCommand, WorkersOfALauncherThatIsKilledAreAskedToEndFirst) {
  Folder folder;
  Tool tool(Tool::shells(
      1, "trap 'echo asked >\"" + folder.file("asked") +
             "\"; exit 0' TERM; echo pid $$; exec 2>/dev/null; while :; do sleep 0.05; done"));
  EXPECT_TRUE(tool.wait_for("pid "));
  EXPECT_TRUE(tool.wait_for("\n"));
  tool.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return content(folder.file("asked")) == "asked\n"; }));
  EXPECT_TRUE(eventually([&] { return is_gone(printed_pids(tool.out()).at(0)); }));
}

TEST(RunCommand, TheGuardHoldsNothingAndEndsWithTheLauncher) {
  Tool tool(Tool::shells(2, "echo ready; read line; exit 0"));
  EXPECT_TRUE(tool.wait_for("ready", 2));
  const pid_t guard = guard_of(tool.pid());
  ASSERT_GT(guard, 0);
  EXPECT_EQ(getsid(guard), guard) << "a terminal's signals would reach it";
  std::set<std::string> files;
  EXPECT_TRUE(eventually([&] {  // it stands by
    files.clear();
    std::error_code closed;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(guard) + "/fd"))
      files.insert(entry.path().filename().string() + " " +
                   fs::read_symlink(entry, closed).string());
    return files.size() <= 4;
  }));
  EXPECT_THAT(files, ElementsAre("0 /dev/null", "1 /dev/null", "2 /dev/null",
                                 ::testing::StartsWith("3 pipe:")));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "");
  EXPECT_FALSE(alive(guard));
}

TEST(RunCommand, AJobOutlivesItsGuard) {
  Tool tool(Tool::shells(2, "echo ready; read line; exit $r"));
  EXPECT_TRUE(tool.wait_for("ready", 2));
  const pid_t guard = guard_of(tool.pid());
  ASSERT_GT(guard, 0);
  kill(guard, SIGKILL);
  EXPECT_EQ(tool.finish(), 1);
  EXPECT_THAT(tool.err(), MatchesRegex("tutti run: rank 1 \\(pid [0-9]+\\) exited with 1\n"));
}

}  // namespace
}  // namespace tutti::testing
