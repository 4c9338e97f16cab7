// SPDX-License-Identifier: Apache-2.0
// tutti run
#include <gmock/gmock.h>
#include <sched.h>
#include <tutti/version.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tool.h"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// ---- what workers get

// How many cores this process may use.
int base_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

class RunWith : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Workers, RunWith, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(RunWith, EveryWorkerKnowsTheClusterAndItsPlace) {
  const int n = GetParam();
  Tool tool(Tool::shells(n,
                         "echo \"$TF_CONFIG\"; echo \"token $TUTTI_TOKEN\"; "
                         "echo \"coordinator ${TUTTI_COORDINATOR-none}\""),
            {"TUTTI_TOKEN=outer", "TUTTI_COORDINATOR=outer:1", "TF_CONFIG=outer"});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "");
  std::vector<nlohmann::json> configs(static_cast<size_t>(n));
  std::set<std::string> others;
  for (const std::string& line : lines_of(tool.out())) {
    const size_t space = line.find(' ');
    const std::string text = line.substr(space + 1);
    if (text[0] == '{')
      configs.at(std::stoul(line.substr(1))) = nlohmann::json::parse(text);
    else
      others.insert(text);
  }
  std::set<std::string> addresses;
  for (int rank = 0; rank < n; ++rank) {
    const nlohmann::json& config = configs[size_t(rank)];
    EXPECT_EQ(config["task"], (nlohmann::json{{"type", "worker"}, {"index", rank}}));
    EXPECT_EQ(config["cluster"], configs[0]["cluster"]);
    EXPECT_EQ(config["cluster"].size(), 1);
    EXPECT_EQ(config["cluster"]["worker"].size(), size_t(n));
    addresses.insert(config["cluster"]["worker"][size_t(rank)]);
  }
  EXPECT_EQ(addresses.size(), size_t(n));
  for (const std::string& address : addresses)
    EXPECT_THAT(address, MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  const std::string chief = configs[0]["cluster"]["worker"][0];
  EXPECT_THAT(others, ElementsAre("coordinator " + (n == 1 ? "none" : chief),
                                  MatchesRegex("token [0-9a-f]{32}")));
}

// By name, of the lines "[rank] NAME=value" that a worker wrote.
std::map<std::string, std::string> variables_of(const std::string& out, int rank) {
  std::map<std::string, std::string> found;
  const std::string prefix = "[" + std::to_string(rank) + "] ";
  for (const std::string& line : lines_of(out))
    if (const size_t equals = line.find('='); line.starts_with(prefix) && equals != line.npos)
      found[line.substr(prefix.size(), equals - prefix.size())] = line.substr(equals + 1);
  return found;
}

TEST_P(RunWith, WorkersGetTheVariablesThatOtherProgramsRead) {
  const int n = GetParam();
  Tool tool({"run", "-n", std::to_string(n), "env"},
            {"RANK=77", "WORLD_SIZE=99", "MASTER_ADDR=nowhere", "TF_CONFIG=outer"});
  EXPECT_EQ(tool.finish(), 0);
  std::set<std::string> ports;
  for (int rank = 0; rank < n; ++rank) {
    auto variables = variables_of(tool.out(), rank);
    EXPECT_EQ(variables["RANK"], std::to_string(rank));
    EXPECT_EQ(variables["LOCAL_RANK"], std::to_string(rank));
    EXPECT_EQ(variables["WORLD_SIZE"], std::to_string(n));
    EXPECT_EQ(variables["LOCAL_WORLD_SIZE"], std::to_string(n));
    EXPECT_EQ(variables["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(variables["PYTHONUNBUFFERED"], "1");
    EXPECT_THAT(variables["TF_CONFIG"],
                Not(HasSubstr("127.0.0.1:" + variables["MASTER_PORT"] + "\"")))
        << "the port of the service, or of a rank";
    ports.insert(variables["MASTER_PORT"]);
  }
  EXPECT_THAT(ports, ElementsAre(MatchesRegex("[1-9][0-9]*")));
}

TEST(RunCommand, WorkersShareTheCoresForOpenMp) {
  const auto run = [](std::vector<std::string> more, const std::string& n) {
    std::vector<std::string> command{"env",
                                     "-u",
                                     "OMP_NUM_THREADS",
                                     "-u",
                                     "GOMP_SPINCOUNT",
                                     "-u",
                                     "OMP_WAIT_POLICY",
                                     TUTTI_TOOL,
                                     "run",
                                     "-n",
                                     n};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--restarts", "1", "--", "sh", "-c",
                                   "echo threads ${OMP_NUM_THREADS-none}, spins "
                                   "${GOMP_SPINCOUNT-as ever}; exit 1"});
    return command;
  };
  const std::vector<std::string> modules{"TUTTI_MODULE_PATH=" TUTTI_TEST_MODULES};
  const int cores = base_cores();
  const std::string share = std::to_string(std::max(1, cores / 3));
  Process three(run({}, "3"), modules);
  EXPECT_EQ(three.finish(), 1);
  EXPECT_EQ(lines_of(three.out()).size(), 6);
  for (const std::string& line : lines_of(three.out()))
    EXPECT_THAT(line, EndsWith("threads " + share + ", spins 20000"));
  EXPECT_THAT(three.err(), Not(HasSubstr("OMP_NUM_THREADS"))) << "it is no terminal";
  Process one(run({}, "1"), modules);
  EXPECT_EQ(one.finish(), 1);
  EXPECT_EQ(one.out(), "[0] threads none, spins as ever\n[0] threads none, spins as ever\n");
  Process chosen(run({"--env", "OMP_NUM_THREADS=5"}, "2"), modules);
  EXPECT_EQ(chosen.finish(), 1);
  EXPECT_THAT(chosen.out(), HasSubstr("[1] threads 5, spins 20000\n"));
  Process spinning(run({"--env", "GOMP_SPINCOUNT=7"}, "2"), modules);
  EXPECT_EQ(spinning.finish(), 1);
  EXPECT_THAT(spinning.out(), HasSubstr(", spins 7\n"));
  Process passive(run({"--env", "OMP_WAIT_POLICY=PASSIVE"}, "2"), modules);
  EXPECT_EQ(passive.finish(), 1);
  EXPECT_THAT(passive.out(), HasSubstr(", spins as ever\n"));
}

TEST(RunCommand, GivesWorkersTheVariablesOfTheCommandLine) {
  Tool tool({"run", "-n", "2", "--env", "TEST_A=of the command line", "--env", "TEST_B=", "sh",
             "-c", "echo \"$TEST_A,${TEST_B-unset},$TEST_C\""},
            {"TEST_A=outer", "TEST_C=outer"});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] of the command line,,outer", "[1] of the command line,,outer"));
  for (const auto& [entry, error] :
       {std::pair{"X", "--env X: expected NAME=VALUE"},
        {"=x", "--env =x: expected NAME=VALUE"},
        {"A B=1", "--env A B=1: expected NAME=VALUE"},
        {"RANK=3", "--env RANK=3: tutti run sets RANK itself, for each worker"}}) {
    Tool wrong({"run", "-n", "1", "--env", entry, "true"});
    EXPECT_EQ(wrong.finish(), 2);
    EXPECT_EQ(wrong.err(), std::string("tutti run: ") + error + "\n");
  }
}

TEST(RunCommand, BindsWorkersToTheirShareOfTheCores) {
  const std::string script = "echo cores $(grep Cpus_allowed_list /proc/self/status | cut -f2)";
  Tool bound({"run", "-n", "2", "--bind", "core", "sh", "-c", script});
  EXPECT_EQ(bound.finish(), 0);
  std::set<std::string> lists;
  for (const std::string& line : lines_of(bound.out())) lists.insert(line.substr(4));
  EXPECT_EQ(lists.size(), base_cores() > 1 ? 2 : 1) << bound.out();
  EXPECT_THAT(bound.err(), MatchesRegex("tutti run: bound rank 0 to cores? [0-9,-]+, rank 1 to "
                                        "cores? [0-9,-]+\n"));
  Tool free({"run", "-n", "2", "--bind", "none", "sh", "-c", script});
  EXPECT_EQ(free.finish(), 0);
  EXPECT_EQ(free.err(), "");
  Process bare({"sh", "-c", script}, {});
  EXPECT_EQ(bare.finish(), 0);
  EXPECT_THAT(sorted(lines_of(free.out())),
              ElementsAre("[0] " + lines_of(bare.out())[0], "[1] " + lines_of(bare.out())[0]));
  Tool wrong({"run", "-n", "2", "--bind", "socket", "true"});
  EXPECT_EQ(wrong.finish(), 2);
}

TEST(RunCommand, HostsTheServiceForTheTimeOfTheJob) {
  Folder folder;
  const std::string log = folder.file("log");
  Tool tool(Tool::shells(2, "echo \"serve $TUTTI_COORDINATOR $TUTTI_TOKEN\"; cat '" + log + "'"),
            {"TEST_SERVICE_LOG=" + log, "TEST_SERVICE_REFUSALS=2"});
  EXPECT_EQ(tool.finish(), 0);
  const std::vector<std::string> lines = lines_of(content(log));
  ASSERT_EQ(lines.size(), 4);
  EXPECT_THAT(tool.out(), HasSubstr("[0] " + lines[0].substr(0, lines[0].rfind(' '))));
  EXPECT_THAT(lines[0], EndsWith(" " + std::string(version())));
  EXPECT_EQ(lines[1], "worker " + lines[0].substr(6, lines[0].find(' ', 6) - 6));
  EXPECT_EQ(lines[3], "end");
  EXPECT_THAT(tool.out(), Not(HasSubstr("end")));
}

TEST(RunCommand, SaysWhatIsMissingIfThereIsNoService) {
  Tool tool({"run", "-n", "2", "true"}, {"TUTTI_MODULE_PATH=/nowhere"});
  EXPECT_EQ(tool.finish(), 1);
  EXPECT_THAT(tool.err(), HasSubstr("tutti run: the module \"cluster\" cannot be loaded"));
  Tool alone({"run", "-n", "1", "true"}, {"TUTTI_MODULE_PATH=/nowhere"});
  EXPECT_EQ(alone.finish(), 0) << "one worker needs none";
}

#ifdef TUTTI_REAL_MODULES
TEST(RunCommand, WorksWithTheRealService) {
  Process tool(
      {TUTTI_TOOL, "run", "-n", "3", "sh", "-c", "echo $TUTTI_COORDINATOR; ls /proc/self/fd"},
      {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "");
  Process bare({"ls", "/proc/self/fd"}, {});
  bare.finish();
  EXPECT_EQ(lines_of(tool.out()).size(), 3 * (1 + lines_of(bare.out()).size()))
      << "workers inherit descriptors of the service: " << tool.out();
}

TEST(RunCommand, FindsTheModulesBesideItself) {
  Process tool({TUTTI_TOOL, "run", "-n", "2", "sh", "-c", "echo ${TUTTI_MODULE_PATH-none}"}, {});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(sorted(lines_of(tool.out())), ElementsAre("[0] none", "[1] none"));
}
#endif

TEST(RunCommand, HandsOnArgumentsAsTheyAre) {
  const std::vector<std::string> script{"sh", "-c", "printf '<%s>' \"$@\"", "sh"};
  const std::vector<std::string> arguments{"-n", "9", "--", "--help", "", "a b", "*"};
  for (const bool marked : {false, true}) {
    std::vector<std::string> command{"run", "-n", "1"};
    if (marked) command.push_back("--");
    command.insert(command.end(), script.begin(), script.end());
    command.insert(command.end(), arguments.begin(), arguments.end());
    Tool tool(command);
    EXPECT_EQ(tool.finish(), 0);
    EXPECT_EQ(tool.out(), "[0] <-n><9><--><--help><><a b><*>\n");
  }
}

TEST(RunCommand, OnlyRankZeroGetsTheInput) {
  Tool tool(Tool::shells(3, "cat; echo end"));
  tool.write("hello\n");
  EXPECT_TRUE(tool.wait_for("[1] end"));
  EXPECT_TRUE(tool.wait_for("[2] end"));
  EXPECT_TRUE(tool.wait_for("[0] hello"));
  EXPECT_THAT(tool.out(), Not(HasSubstr("[0] end")));
  tool.close_input();
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] end", "[0] hello", "[1] end", "[2] end"));
}

TEST(RunCommand, WorkersInheritNoDescriptorsOfOurs) {
  const std::string list = "ls /proc/self/fd";
  Process bare({"sh", "-c", list}, {});
  EXPECT_EQ(bare.finish(), 0);
  Tool tool({"run", "-n", "3", "sh", "-c", list});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(lines_of(tool.out()).size(), 3 * lines_of(bare.out()).size()) << tool.out();
}

TEST(RunCommand, WorkersHaveTheUsualSignalsAndAGroupOfTheirOwn) {
  Tool tool(Tool::shells(1,
                         "grep -E 'SigBlk|SigIgn' /proc/self/status; "
                         "[ \"$(cut -d' ' -f5 /proc/$$/stat)\" = $$ ] && echo leader"));
  EXPECT_EQ(tool.finish(), 0);
  const std::vector<std::string> lines = lines_of(tool.out());
  ASSERT_EQ(lines.size(), 3) << tool.out();
  EXPECT_EQ(lines[0], "[0] SigBlk:\t0000000000000000");
  const uint64_t ignored = std::stoull(lines[1].substr(lines[1].find('\t')), nullptr, 16);
  EXPECT_EQ(ignored & (1 << (SIGPIPE - 1)), 0);
  EXPECT_EQ(lines[2], "[0] leader");
}

// ---- what they write

TEST(RunCommand, PutsTheRankBeforeEveryLine) {
  Tool tool(Tool::shells(3, "echo one $r; echo; echo \"  two\""));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] ", "[0]   two", "[0] one 0", "[1] ", "[1]   two", "[1] one 1",
                          "[2] ", "[2]   two", "[2] one 2"));
  EXPECT_EQ(tool.err(), "");
}

TEST(RunCommand, KeepsTheTwoStreamsApart) {
  Tool tool(Tool::shells(2, "echo out; echo err >&2"));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(sorted(lines_of(tool.out())), ElementsAre("[0] out", "[1] out"));
  EXPECT_THAT(sorted(lines_of(tool.err())), ElementsAre("[0] err", "[1] err"));
}

TEST(RunCommand, EndsALastLineThatHasNoEnd) {
  Tool tool(Tool::shells(2, "printf \"half $r\"; printf oops >&2; exit $r"));
  EXPECT_EQ(tool.finish(), 1);
  EXPECT_THAT(sorted(lines_of(tool.out())), ElementsAre("[0] half 0", "[1] half 1"));
  EXPECT_THAT(tool.out(), EndsWith("\n"));
  EXPECT_THAT(
      lines_of(tool.err()),
      ::testing::Contains(MatchesRegex("tutti run: rank 1 \\(pid [0-9]+\\) exited with 1")));
}

TEST(RunCommand, PassesLinesOnAsTheyCome) {
  Tool tool(Tool::shells(1, "echo ready; read answer; echo got $answer"));
  EXPECT_TRUE(tool.wait_for("[0] ready\n"));
  tool.write("it\n");
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.out(), "[0] ready\n[0] got it\n");
}

TEST(RunCommand, PassesVeryLongLinesOnInPieces) {
  for (const size_t size : {65535, 65536, 65537, 131072, 1'000'000}) {
    Tool tool(Tool::shells(
        1, "head -c " + std::to_string(size) + " /dev/zero | tr '\\0' x; echo; echo after"));
    EXPECT_EQ(tool.finish(), 0);
    size_t total = 0;
    std::vector<std::string> lines = lines_of(tool.out());
    ASSERT_EQ(lines.size(), (size + 65535) / 65536 + 1);
    EXPECT_EQ(lines.back(), "[0] after");
    lines.pop_back();
    for (const std::string& line : lines) {
      EXPECT_TRUE(line.starts_with("[0] x"));
      total += line.size() - 4;
    }
    EXPECT_EQ(total, size);
  }
}

TEST(RunCommand, PassesUnprintableBytesOnAsTheyAre) {
  Tool tool(Tool::shells(1, "printf '\\000\\377\\033[1m\\r\\t\\302\\n'"));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.out(), std::string("[0] \0\377\033[1m\r\t\302\n", 14));
}

TEST(RunCommand, SurvivesProcessesThatComeAndGo) {
  // Orphans, which the launcher looks up in /proc while others vanish from there.
  Tool tool(Tool::shells(4, "i=0; while [ $i -lt 200 ]; do sh -c ': & :'; i=$((i + 1)); done"));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "");
}

TEST(RunCommand, LosesNothingOfMuchOutput) {
  Tool tool(Tool::shells(2, "seq 200000"));
  EXPECT_EQ(tool.finish(), 0);
  std::array<int, 2> last{};
  for (const std::string& line : lines_of(tool.out())) {
    int& number = last.at(line[1] == '1');
    ASSERT_EQ(line.substr(4), std::to_string(++number));
  }
  EXPECT_THAT(last, ElementsAre(200000, 200000));
}

TEST(RunCommand, WorkersWaitForASlowReader) {
  Folder folder;
  // Far more than all buffers on the way hold: the worker cannot be done before we read.
  Tool tool(Tool::shells(1, "seq 1000000; echo done >'" + folder.file("done") + "'"));
  EXPECT_TRUE(tool.wait_for("[0] 1\n"));
  EXPECT_FALSE(fs::exists(folder.file("done")));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(tool.out(), EndsWith("[0] 1000000\n"));
}

TEST(RunCommand, EndsWhenItsOutputIsNoLongerRead) {
  Tool tool(Tool::shells(2, "exec yes"));
  EXPECT_TRUE(tool.wait_for("[0] y"));
  tool.close_output();
  EXPECT_EQ(tool.finish(), 128 + SIGPIPE);
  EXPECT_THAT(tool.err(), HasSubstr("was killed by signal 13 (Broken pipe)"));
}

TEST(RunCommand, KeepsALogOfEachRank) {
  Folder folder;
  const std::string logs = folder.file("a/logs"), line(70'000, 'x');
  Tool tool({"run", "-n", "2", "--restarts", "1", "--logs", logs, "--", "sh", "-c",
             Tool::worker("echo out $r; echo err $r >&2; head -c 70000 /dev/zero | tr '\\0' x; "
                          "head -c 65536 /dev/zero | tr '\\0' y; echo; printf half; exit 3")});
  EXPECT_EQ(tool.finish(), 3);
  EXPECT_THAT(tool.out(), HasSubstr("[1] out 1\n"));
  EXPECT_THAT(tool.err(), HasSubstr("[1] err 1\n"));
  for (const std::string r : {"0", "1"}) {
    const std::string text = content(logs + "/rank" + r + ".log");
    const std::string out = line + std::string(65'536, 'y') + "\nhalf";
    EXPECT_EQ(text.size(), 2 * (out.size() + 12)) << "of both attempts";
    EXPECT_THAT(text, HasSubstr("out " + r + "\n"));
    EXPECT_THAT(text, HasSubstr("err " + r + "\n"));
    EXPECT_THAT(text, HasSubstr(out));
    EXPECT_THAT(text, Not(HasSubstr("[" + r + "]")));
  }
  Tool fresh({"run", "-n", "1", "--logs", logs, "echo", "new"});
  EXPECT_EQ(fresh.finish(), 0);
  EXPECT_EQ(content(logs + "/rank0.log"), "new\n");
  Tool wrong({"run", "-n", "1", "--logs", logs + "/rank0.log", "true"});
  EXPECT_EQ(wrong.finish(), 2);
  EXPECT_THAT(wrong.err(), HasSubstr("rank0.log: cannot make this folder"));
}

TEST(RunCommand, WorksWithItsStandardStreamsClosed) {
  Process shell({"sh", "-c", "'" TUTTI_TOOL "' run -n 1 sh -c 'cat; echo x; exit 4' <&- >&- 2>&-"},
                {});
  EXPECT_EQ(shell.finish(), 4);
}

// ---- how it ends

TEST(RunCommand, SucceedsIfAllWorkersDo) {
  Tool tool(Tool::shells(4, "exit 0"));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.out() + tool.err(), "");
}

TEST(RunCommand, ExitsWithTheCodeOfTheWorkerThatFailed) {
  Tool tool(Tool::shells(3, "[ $r != 1 ] || { echo pid $$; exit 3; }"));
  EXPECT_EQ(tool.finish(), 3);
  const pid_t pid = printed_pids(tool.out()).at(0);
  EXPECT_EQ(tool.err(), "tutti run: rank 1 (pid " + std::to_string(pid) + ") exited with 3\n");
}

TEST(RunCommand, SaysWhichSignalKilledAWorker) {
  Tool tool(Tool::shells(3, "echo pid $$; [ $r != 2 ] || kill -9 $$; exec sleep 1000"));
  EXPECT_EQ(tool.finish(), 128 + 9);
  EXPECT_THAT(tool.err(), MatchesRegex("tutti run: rank 2 \\(pid [0-9]+\\) was killed by signal 9 "
                                       "\\(Killed\\); the others were stopped\n"));
  expect_all_gone(tool.out(), 3);
}

TEST(RunCommand, NamesTheFirstOfThoseThatFail) {
  Folder folder;
  // Rank 2 fails; the others see that it is gone, and then they fail, too.
  const std::string script = "if [ $r = 2 ]; then echo $$ >'" + folder.file("pid.new") + "'; mv '" +
                             folder.file("pid.new") + "' '" + folder.file("pid") +
                             "'; exit 7; fi; while ! [ -e '" + folder.file("pid") +
                             "' ] || ! grep -q '^State:.Z' /proc/$(cat '" + folder.file("pid") +
                             "')/status; do sleep 0.01; done; exit 1";
  Tool tool(Tool::shells(4, script));
  EXPECT_EQ(tool.finish(), 7);
  EXPECT_THAT(tool.err(), MatchesRegex("tutti run: rank 2 \\(pid [0-9]+\\) exited with 7\n"));
}

TEST(RunCommand, LeavesTheOthersTimeToSayWhatIsWrong) {
  Tool tool(Tool::shells(2, "[ $r = 0 ] && exit 5; sleep 0.5; echo my side of it >&2"));
  EXPECT_EQ(tool.finish(), 5);
  EXPECT_THAT(lines_of(tool.err()),
              ElementsAre("[1] my side of it",
                          MatchesRegex("tutti run: rank 0 \\(pid [0-9]+\\) exited with 5")));
}

TEST(RunCommand, StopsTheOthersWithSigtermFirst) {
  Tool tool(Tool::shells(2,
                         "if [ $r = 0 ]; then read line; exit 5; fi; "
                         "trap 'echo asked to stop; exit 0' TERM; echo ready; "
                         "while :; do sleep 0.1; done"));
  EXPECT_TRUE(tool.wait_for("[1] ready"));
  tool.write("go\n");
  EXPECT_EQ(tool.finish(), 5);
  EXPECT_THAT(tool.out(), HasSubstr("[1] asked to stop\n"));
  EXPECT_THAT(tool.err(), EndsWith("exited with 5; the others were stopped\n"));
}

TEST(RunCommand, LeavesNothingBehindOfWorkersThatWillNotStop) {
  // Each worker ignores SIGTERM and has a child that does so, and one that has left its group.
  Tool tool(Tool::shells(3,
                         "trap '' TERM HUP; echo pid $$; "
                         "sh -c 'echo pid $$; exec sleep 1000' & "
                         "setsid sh -c 'echo pid $$; exec sleep 1000' & wait"));
  EXPECT_TRUE(tool.wait_for("pid ", 9));
  EXPECT_TRUE(tool.wait_for("\n", 9));
  // A worker's own line comes first.
  kill(printed_pids(tool.out().substr(tool.out().find("[1] pid "))).at(0), SIGKILL);
  EXPECT_EQ(tool.finish(), 128 + 9);
  EXPECT_THAT(tool.err(), MatchesRegex("tutti run: rank 1 \\(pid [0-9]+\\) was killed by signal 9 "
                                       "\\(Killed\\); the others were stopped\n"));
  expect_all_gone(tool.out(), 9);
}

TEST(RunCommand, StopsAWorkerThatIsSuspended) {
  Tool tool(
      Tool::shells(2, "echo pid $$; [ $r = 0 ] && kill -STOP $$; read line; exec sleep 1000"));
  EXPECT_TRUE(tool.wait_for("pid ", 2));
  EXPECT_TRUE(tool.wait_for("\n", 2));
  const pid_t suspended = printed_pids(tool.out().substr(tool.out().find("[0] pid "))).at(0);
  const pid_t killed = printed_pids(tool.out().substr(tool.out().find("[1] pid "))).at(0);
  EXPECT_TRUE(eventually([&] { return state(suspended) == 'T'; }));
  kill(killed, SIGKILL);
  EXPECT_EQ(tool.finish(), 128 + 9);
  expect_all_gone(tool.out(), 2);
}

TEST(RunCommand, EndsTheChildrenOfWorkersThatSucceed) {
  Tool tool(Tool::shells(2, "sleep 1000 & echo pid $!; setsid sleep 1000 & echo pid $!"));
  EXPECT_EQ(tool.finish(), 0);
  expect_all_gone(tool.out(), 4);
}

TEST(RunCommand, SparesWhatWasThereBefore) {
  Process shell(
      {"sh", "-c", "sleep 1000 >&- 2>&- & echo pid $!; exec '" TUTTI_TOOL "' run -n 1 true"}, {});
  EXPECT_EQ(shell.finish(), 0);
  const pid_t pid = printed_pids(shell.out()).at(0);
  EXPECT_TRUE(alive(pid));
  kill(pid, SIGKILL);
}

TEST(RunCommand, SaysWhyAProgramCannotBeStarted) {
  for (const std::string n : {"1", "3"}) {
    Tool tool({"run", "-n", n, "./no/such/program"});
    EXPECT_EQ(tool.finish(), 127);
    EXPECT_EQ(tool.err(), "tutti run: cannot start ./no/such/program: No such file or directory\n");
  }
  Tool folder({"run", "-n", "1", "--restarts", "3", "/tmp"});
  EXPECT_EQ(folder.finish(), 127);
  EXPECT_EQ(folder.err(), "tutti run: cannot start /tmp: Permission denied\n");
}

TEST(RunCommand, SaysWhenTheMachineAllowsTooFewFiles) {
  Process shell({"sh", "-c", "ulimit -n 100; exec '" TUTTI_TOOL "' run -n 50 true"}, {});
  EXPECT_EQ(shell.finish(), 1);
  EXPECT_THAT(shell.err(), HasSubstr("tutti run: 50 workers take 264 open files here, and at most "
                                     "100 are allowed: raise the limit (ulimit -n)"));
}

// ---- restarts

TEST(RunCommand, StartsTheWholeJobAgain) {
  Folder folder;
  const std::string count = folder.file("count"), log = folder.file("log");
  Tool tool({"run", "-n", "2", "--restarts", "5", "sh", "-c",
             Tool::worker("echo here; [ $r = 0 ] && exit 0; echo x >>'" + count +
                          "'; [ $(wc -l <'" + count + "') = 3 ] || exit 9")},
            {"TEST_SERVICE_LOG=" + log});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(lines_of(tool.err()),
              ElementsAre(MatchesRegex("tutti run: rank 1 \\(pid [0-9]+\\) exited with 9"),
                          "tutti run: restart 1 of 5",
                          MatchesRegex("tutti run: rank 1 \\(pid [0-9]+\\) exited with 9"),
                          "tutti run: restart 2 of 5"));
  EXPECT_EQ(lines_of(tool.out()).size(), 6);
  // Each time another service and another token.
  std::set<std::string> tokens;
  std::string order;
  for (const std::string& line : lines_of(content(log))) {
    order += line[0];
    if (line[0] == 's') tokens.insert(line.substr(line.find(' ', 6)));
  }
  EXPECT_EQ(order, "swweswweswwe");
  EXPECT_EQ(tokens.size(), 3);
}

TEST(RunCommand, GivesUpAfterTheLastRestart) {
  Tool tool({"run", "-n", "1", "--restarts", "2", "sh", "-c", "echo here; exit 6"});
  EXPECT_EQ(tool.finish(), 6);
  EXPECT_EQ(tool.out(), "[0] here\n[0] here\n[0] here\n");
  EXPECT_THAT(tool.err(), HasSubstr("restart 2 of 2"));
  EXPECT_THAT(tool.err(), Not(HasSubstr("restart 3")));
}

TEST(RunCommand, DoesNotStartAgainWhatItWasToldToStop) {
  Tool tool({"run", "-n", "1", "--restarts", "9", "sh", "-c", "echo ready; exec sleep 1000"});
  EXPECT_TRUE(tool.wait_for("ready"));
  tool.signal(SIGTERM);
  EXPECT_EQ(tool.finish(), 128 + SIGTERM);
  EXPECT_THAT(tool.err(), Not(HasSubstr("restart")));
}

}  // namespace
}  // namespace tutti::testing
