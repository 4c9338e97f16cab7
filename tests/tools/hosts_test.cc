// SPDX-License-Identifier: Apache-2.0
// tutti run --hosts, with a stand-in for ssh: "hosts" are sessions of their own on this machine.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <tutti/version.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/costs.h"
#include "job/interfaces.h"
#include "tool.h"

namespace tutti::testing {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (group::outside_address("").empty())
      GTEST_SKIP() << "no network interface but loopback is up";
    setenv("RES_OPTIONS", "timeout:1 attempts:1", 1);  // the hosts a and b do not exist
    // Like ssh: another session, another folder, and nothing of our environment.
    write_script("ssh",
                 "while [ \"${1#-}\" != \"$1\" ]; do [ \"$1\" = -o ] && shift; shift; done\n"
                 "host=$1; shift\n"
                 "cd /\nsetsid -w env -i PATH=\"$PATH\" ASAN_OPTIONS=\"$ASAN_OPTIONS\" "
                 "HOST=\"$host\" sh -c \"$*\"\nexit $?\n");
  }

  void write_script(const std::string& name, const std::string& text) {
    std::ofstream(folder_.file(name)) << "#!/bin/sh\n" << text;
    fs::permissions(folder_.file(name), fs::perms::owner_all);
  }

  // `tutti run` with these options and workers that run `script`.
  std::vector<std::string> shells(const std::vector<std::string>& options,
                                  const std::string& script, const std::string& ssh = "ssh") {
    std::vector<std::string> command{"run", "--ssh", folder_.file(ssh)};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--", "sh", "-c", Tool::worker(script)});
    return command;
  }

  Folder folder_;
};

TEST_F(Hosts, EveryWorkerKnowsTheClusterAndItsPlace) {
  Tool tool(shells({"--hosts", "a,me@b:2,a"},
                   "echo \"$HOST\"; echo \"$TF_CONFIG\"; echo \"$TUTTI_COORDINATOR\"; pwd; "
                   "echo \"$UCX_TLS,$TUTTI_THREADS,$TUTTI_HOST_ID,$SECRET\"; cat"),
            {"UCX_TLS=it's \"tcp\"", "TUTTI_THREADS=3", "TUTTI_HOST_ID=here", "SECRET=x",
             "TUTTI_COORDINATOR=outer:1", "TF_CONFIG=outer", "TUTTI_TEST_X-Y=unusable"});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "");
  std::map<std::string, std::vector<std::string>> lines;
  for (const std::string& line : lines_of(tool.out()))
    lines[line.substr(0, 3)].push_back(line.substr(4));
  ASSERT_EQ(lines.size(), 4) << tool.out();
  const std::vector<std::string> hosts{"a", "me@b", "me@b", "a"};
  for (int rank = 0; rank < 4; ++rank) {
    const auto& own = lines["[" + std::to_string(rank) + "]"];
    ASSERT_EQ(own.size(), 5) << tool.out();
    EXPECT_EQ(own[0], hosts[size_t(rank)]);
    const json config = json::parse(own[1]);
    EXPECT_EQ(config["task"], (json{{"type", "worker"}, {"index", rank}}));
    EXPECT_EQ(config["cluster"], (json{{"worker", {"a:5000", "b:5000", "b:5001", "a:5001"}}}));
    EXPECT_THAT(own[2], MatchesRegex(group::outside_address("") + ":[1-9][0-9]*"));
    EXPECT_EQ(own[3], fs::current_path());
    EXPECT_EQ(own[4], "it's \"tcp\",3,,");
  }
}

TEST_F(Hosts, WorkersGetTheVariablesThatOtherProgramsRead) {
  std::vector<std::string> command = shells(
      {"--hosts", "a,me@b:2,a,c", "--env", "TEST_X=it's a \"word\"", "--env", "OMP_SCHEDULE=x"},
      "echo $HOST $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $MASTER_ADDR "
      "${MASTER_PORT:-no port}, ${OMP_NUM_THREADS:-no} threads, ${GOMP_SPINCOUNT:-its own} spins, "
      "$TEST_X $OMP_SCHEDULE "
      "$PYTHONUNBUFFERED");
  command.insert(command.begin(), {"env", "-u", "OMP_NUM_THREADS", "-u", "GOMP_SPINCOUNT", "-u",
                                   "OMP_WAIT_POLICY", TUTTI_TOOL});
  Process tool(command, {"TUTTI_MODULE_PATH=" TUTTI_TEST_MODULES});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "");
  const auto line = [](const std::string& text, bool has_neighbours) {
    return MatchesRegex(text + ", a [1-9][0-9]*, " +
                        (has_neighbours ? "[1-9][0-9]* threads, 20000" : "no threads, its own") +
                        " spins, it's a \"word\" x 1");
  };
  EXPECT_THAT(
      sorted(lines_of(tool.out())),
      ElementsAre(line("\\[0\\] a 0 of 5, 0 of 2", true), line("\\[1\\] me@b 1 of 5, 0 of 2", true),
                  line("\\[2\\] me@b 2 of 5, 1 of 2", true), line("\\[3\\] a 3 of 5, 1 of 2", true),
                  line("\\[4\\] c 4 of 5, 0 of 1", false)));
}

TEST_F(Hosts, HandsOnArgumentsAsTheyAre) {
  Tool tool({"run", "--ssh", folder_.file("ssh"), "--hosts", "a", "--", "printf", "<%s>", "-n",
             "--", "", "a  b", "*", "$HOME", "it's", "\"\\n`", "two\nlines\n"});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.out(), "[0] <-n><--><><a  b><*><$HOME><it's><\"\\n`><two\n[0] lines\n[0] >\n");
}

TEST_F(Hosts, PassAnEnvironmentThatNoPipeHolds) {
  const std::string value(300'000, 'x');
  // One string of 128 KiB is the most that a program is given.
  Tool tool(shells({"--hosts", "a,b"}, "echo ${#UCX_A} ${#UCX_B} ${#UCX_C}"),
            {"UCX_A=" + value.substr(0, 100'000), "UCX_B=" + value.substr(0, 100'001),
             "UCX_C=" + value.substr(0, 100'002)});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] 100000 100001 100002", "[1] 100000 100001 100002"));
}

TEST_F(Hosts, NoCommandLineHoldsTheToken) {
  Tool tool(shells({"--hosts", "a,b"}, "echo \"token $TUTTI_TOKEN.\"; exec sleep 1000"));
  EXPECT_TRUE(tool.wait_for(".\n", 2));
  const std::string token = tool.out().substr(tool.out().find("token ") + 6, 32);
  EXPECT_THAT(token, MatchesRegex("[0-9a-f]{32}"));
  int seen = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string line = content(entry.path() / "cmdline");
    seen += line.find(folder_.file("ssh") + '\0' + "-T") != line.npos;
    EXPECT_EQ(line.find(token), line.npos) << line;
  }
  EXPECT_EQ(seen, 2);
  tool.signal(SIGTERM);
  EXPECT_EQ(tool.finish(), 128 + SIGTERM);
}

TEST_F(Hosts, KeepTheTwoStreamsApart) {
  Tool tool(shells({"--hosts", "a,b"}, "echo out; echo err >&2; printf end"));
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] end", "[0] out", "[1] end", "[1] out"));
  EXPECT_THAT(sorted(lines_of(tool.err())), ElementsAre("[0] err", "[1] err"));
}

TEST_F(Hosts, AWorkerThatFailsEndsTheOthers) {
  Tool tool(shells({"--hosts", "a,b:2"}, "echo pid $$; [ $r = 1 ] && exit 3; exec sleep 1000"));
  EXPECT_EQ(tool.finish(), 3);
  EXPECT_THAT(tool.err(), MatchesRegex("tutti run: rank 1 on b \\(pid [0-9]+\\) exited with 3; "
                                       "the others were stopped\n"));
  const std::string pid = tool.out().substr(tool.out().find("[1] pid ") + 4);
  EXPECT_THAT(tool.err(), HasSubstr("(" + pid.substr(0, pid.find('\n')) + ")"));
  expect_all_gone(tool.out(), 3);
}

TEST_F(Hosts, SayWhichSignalKilledAWorker) {
  Tool tool(shells({"--hosts", "a,b"}, "echo pid $$; [ $r = 1 ] && kill -9 $$; exec sleep 1000"));
  EXPECT_EQ(tool.finish(), 128 + 9);
  EXPECT_THAT(tool.err(), HasSubstr("exited with 137, as by signal 9 (Killed); the others were"));
  expect_all_gone(tool.out(), 2);
}

TEST_F(Hosts, WorkersThatWillNotStopAreKilled) {
  Tool tool(shells({"--hosts", "a,b"},
                   "[ $r = 1 ] && exit 3; trap '' TERM HUP INT; echo pid $$; "
                   "sh -c 'echo pid $$; exec sleep 1000' & while :; do sleep 0.1; done"));
  EXPECT_EQ(tool.finish(), 3);
  expect_all_gone(tool.out(), 2);
}

TEST_F(Hosts, WorkersEndWhenTheLauncherIsKilled) {
  Tool tool(shells({"--hosts", "a,b:2"}, "echo pid $$; trap '' HUP; exec sleep 1000"));
  EXPECT_TRUE(tool.wait_for("pid ", 3));
  EXPECT_TRUE(tool.wait_for("\n", 3));
  tool.signal(SIGKILL);
  const std::vector<pid_t> pids = printed_pids(tool.out());
  EXPECT_EQ(pids.size(), 3u);
  for (const pid_t pid : pids)
    EXPECT_TRUE(eventually([&] { return !alive(pid) || state(pid) == 'Z'; })) << pid;
}

TEST_F(Hosts, AHostThatDoesNotAnswerIsLeftAlone) {
  write_script("hangs",
               "case \"$*\" in *' b '*) exec sleep 1000;; esac\n"
               "exec '" +
                   folder_.file("ssh") + "' \"$@\"\n");
  const auto start = Clock::now();
  Tool tool(shells({"--hosts", "a,b"}, "exit 3", "hangs"));
  EXPECT_EQ(tool.finish(), 3);
  EXPECT_LT(Clock::now() - start, 20s);
  EXPECT_THAT(tool.err(), HasSubstr("rank 0 on a (pid"));
}

TEST_F(Hosts, SignalsReachEveryWorker) {
  Tool tool(shells({"--hosts", "a,b:2"},
                   "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.05; done"));
  EXPECT_TRUE(tool.wait_for("ready", 3));
  tool.signal(SIGUSR1);
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_TRUE(tool.wait_for("heard", 3));
}

TEST_F(Hosts, SayWhichHostCannotBeReached) {
  write_script("fails",
               "case \"$*\" in *' b '*) echo 'ssh: Could not resolve hostname b' >&2; exit 255;; "
               "esac\nexec '" +
                   folder_.file("ssh") + "' \"$@\"\n");
  Tool tool(shells({"--hosts", "a,b"}, "exec sleep 1000", "fails"));
  EXPECT_EQ(tool.finish(), 255);
  EXPECT_THAT(tool.err(), EndsWith("tutti run: rank 1 on b: fails could not connect: ssh: Could "
                                   "not resolve hostname b; the others were stopped\n"));
}

TEST_F(Hosts, SayWhatIsMissing) {
  Tool none({"run", "--ssh", "./no/such/ssh -p 22", "--hosts", "a,b", "true"});
  EXPECT_EQ(none.finish(), 127);
  EXPECT_EQ(none.err(),
            "tutti run: no way to a: cannot start ./no/such/ssh (--ssh names another): No such "
            "file or directory\n");
  Tool program({"run", "--ssh", folder_.file("ssh"), "--hosts", "a", "./no/such/program"});
  EXPECT_EQ(program.finish(), 127);
  EXPECT_THAT(program.err(), HasSubstr("./no/such/program"));
  EXPECT_THAT(program.err(), EndsWith("exited with 127\n"));
  write_script("other", "exit 4\n");
  Tool other(shells({"--hosts", "a"}, "true", "other"));
  EXPECT_EQ(other.finish(), 4);
  EXPECT_EQ(other.err(), "tutti run: rank 0 on a: other exited with 4 and no worker was started\n");
}

TEST_F(Hosts, AnExitCodeLikeThatOfSshIsNotMistaken) {
  Tool tool(shells({"--hosts", "a"}, "exit 255"));
  EXPECT_EQ(tool.finish(), 255);
  EXPECT_THAT(tool.err(), MatchesRegex("tutti run: rank 0 on a \\(pid [0-9]+\\) exited with 255, "
                                       "or ssh lost the connection\n"));
}

TEST_F(Hosts, AreStartedAgain) {
  Tool tool(shells({"--hosts", "a,b", "--restarts", "1"}, "echo here; exit $r"));
  EXPECT_EQ(tool.finish(), 1);
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] here", "[0] here", "[1] here", "[1] here"));
}

TEST_F(Hosts, ComeFromAFile) {
  std::ofstream(folder_.file("hosts")) << "# ours\n\na  # the first\n  b:2\r\nc   slots=2\n";
  Tool tool(shells({"-n", "5", "--hostfile", folder_.file("hosts")}, "echo $HOST"));
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] a", "[1] b", "[2] b", "[3] c", "[4] c"));
}

TEST_F(Hosts, ThatAreAllThisMachineNeedNoConnection) {
  Tool tool({"run", "--ssh", "/no/such/ssh", "--hosts", "localhost:2,127.0.0.1", "--", "sh", "-c",
             "echo ${TUTTI_COORDINATOR%:*}"});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  EXPECT_THAT(sorted(lines_of(tool.out())),
              ElementsAre("[0] 127.0.0.1", "[1] 127.0.0.1", "[2] 127.0.0.1"));
}

TEST_F(Hosts, ThisMachineHasItsRealAddressBesideOthers) {
  const std::string here = group::outside_address("");
  Tool tool(shells({"--hosts", "localhost,b"}, "echo \"${HOST-none} $TF_CONFIG\""));
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  const auto lines = sorted(lines_of(tool.out()));
  ASSERT_EQ(lines.size(), 2);
  const std::string cluster = "\"worker\":[\"" + here + ":5000\",\"b:5000\"]";
  EXPECT_THAT(lines[0], HasSubstr(cluster));
  EXPECT_THAT(lines[1], HasSubstr("[1] b "));
  EXPECT_THAT(lines[1], HasSubstr(cluster));
}

TEST_F(Hosts, MistakesAreExplained) {
  struct Mistake {
    std::string text, error;
  };
  for (const auto& [list, error] :
       {Mistake{",", "--hosts ,: \"\" is no host"}, Mistake{"a,,b", "\"\" is no host"},
        Mistake{"a:0", "\"a:0\" is no host; expected HOST or HOST:WORKERS with 1 to 4096"},
        Mistake{"a:x", "\"a:x\" is no host"}, Mistake{"a:5000", "\"a:5000\" is no host"},
        Mistake{"-oProxyCommand=x", "is no host"}, Mistake{"a b", "\"a b\" is no host"},
        Mistake{"a:4096,b", "4097 workers, of which there may be 4096 at most"}}) {
    Tool tool({"run", "--hosts=" + list, "--", "true"});
    EXPECT_EQ(tool.finish(), 2) << list;
    EXPECT_THAT(tool.err(), HasSubstr("tutti run: "));
    EXPECT_THAT(tool.err(), HasSubstr(error));
  }
  const std::string file = folder_.file("hosts");
  for (const auto& [line, error] :
       {Mistake{"b slots=many", ":2: \"b slots=many\": expected HOST, HOST:WORKERS or HOST slots="},
        Mistake{"b:2 slots=2", ":2: \"b:2 slots=2\""}, Mistake{"b slots=0", ":2: \"b slots=0\""},
        Mistake{"b 4", ":2: \"b 4\""}, Mistake{"-b", ":2: \"-b\""}}) {
    std::ofstream(file) << "a\n" << line << "  # no\n";
    Tool tool({"run", "--hostfile", file, "--", "true"});
    EXPECT_EQ(tool.finish(), 2) << line;
    EXPECT_THAT(tool.err(), HasSubstr("tutti run: " + file + error));
  }
  std::ofstream(file) << "# nobody\n";
  Tool empty({"run", "--hostfile", file, "true"});
  EXPECT_EQ(empty.finish(), 2);
  EXPECT_EQ(empty.err(), "tutti run: --hostfile " + file + ": no host in it\n");
  Tool missing({"run", "--hostfile", "/no/such", "true"});
  EXPECT_EQ(missing.finish(), 2);
  EXPECT_EQ(missing.err(), "tutti run: --hostfile /no/such: No such file or directory\n");
  Tool both({"run", "--hosts", "a", "--hostfile", file, "true"});
  EXPECT_EQ(both.finish(), 2);
  Tool count({"run", "-n", "4", "--hosts", "a,b:2", "true"});
  EXPECT_EQ(count.finish(), 2);
  EXPECT_EQ(count.err(), "tutti run: -n 4, but the hosts have 3 workers together\n");
}

// ---- with the real service

#ifdef TUTTI_REAL_MODULES
TEST(InfoJob, OneHostSharesMemory) {
  Process tool({TUTTI_TOOL, "run", "-n", "3", "--", TUTTI_TOOL, "info", "--job"},
               {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  EXPECT_THAT(tool.out(), HasSubstr("[0] Job of 3 ranks on one host, described by TF_CONFIG"));
  EXPECT_THAT(tool.out(), HasSubstr("all ranks are on one host, and share memory"));
  EXPECT_THAT(tool.out(), HasSubstr("[0]   4 B             whole\n"));
  EXPECT_THAT(tool.out(), HasSubstr("[0]   costs in ns     latency=1500,message=5700,byte=0.34,"));
  EXPECT_THAT(tool.out(), Not(HasSubstr("[1]")));
}

TEST(InfoJob, SaysWhatASettingAskedFor) {
  Process tool({TUTTI_TOOL, "run", "-n", "2", "--", TUTTI_TOOL, "info", "--job"},
               {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES, "TUTTI_BACKEND=shm"});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  EXPECT_THAT(tool.out(), HasSubstr("within a host   shm   TUTTI_BACKEND=shm\n"));
}

TEST(InfoJob, ShowsTheCostsOfRank0AndTheWaysTheyLeadTo) {
  const auto ways = [](const std::string& backend, const std::string& costs) {
    Process tool({TUTTI_TOOL, "run", "-n", "4", "--", TUTTI_TOOL, "info", "--job", "--json"},
                 {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES, backend, costs});
    EXPECT_EQ(tool.finish(), 0) << tool.err();
    std::string text;
    for (const std::string& line : lines_of(tool.out())) text += line.substr(4) + "\n";
    const json job = json::parse(text);
    EXPECT_EQ(job["costs"]["latency"], 1500);
    EXPECT_EQ(job["costs"]["message"], costs.ends_with("50") ? 50 : 5700);
    std::string all;
    for (const json& one : job["ways"])
      all += fmt::format("{}:{} ", one["bytes"].get<size_t>(), one["way"].get<std::string>());
    return all;
  };
  EXPECT_EQ(ways("TUTTI_BACKEND=tcp", "TUTTI_COSTS="),
            "4:doubling 16384:doubling 262144:shares 4194304:shares 67108864:shares ");
  EXPECT_EQ(ways("TUTTI_BACKEND=tcp", "TUTTI_COSTS=message=50"),
            "4:whole 16384:doubling 262144:shares 4194304:shares 67108864:shares ");
  EXPECT_EQ(ways("TUTTI_BACKEND=shm", "TUTTI_COSTS="),
            "4:whole 16384:shares 262144:shares 4194304:shares 67108864:shares ");
}

TEST(InfoJob, MeasuresCostsThatAreAValueOfTheSetting) {
  for (const std::string backend : {"tcp", "shm"}) {
    Process tool({TUTTI_TOOL, "run", "-n", "3", "--", TUTTI_TOOL, "info", "--job", "--measure"},
                 {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES, "TUTTI_BACKEND=" + backend});
    EXPECT_EQ(tool.finish(), 0) << tool.err();
    const std::string before = "[0]   measured now    TUTTI_COSTS=", text = tool.out();
    ASSERT_THAT(text, HasSubstr(before));
    const std::string rest = text.substr(text.find(before) + before.size());
    const base::Costs found = base::parse_costs(rest.substr(0, rest.find('\n'))), usual;
    EXPECT_EQ(found.sum, usual.sum);
    EXPECT_EQ(found.byte == usual.byte, backend == "shm") << rest;
    EXPECT_EQ(found.phase == usual.phase, backend == "tcp") << rest;
    EXPECT_GT(found.latency + found.message, 0);
    EXPECT_GT(found.phase + found.phase_per_rank, 0);
  }
}

TEST(InfoJob, OfOneRankSaysThatItIsAlone) {
  Process tool({TUTTI_TOOL, "info", "--job"}, {});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(tool.out(), HasSubstr("A job of one"));
}
#endif

#ifdef TUTTI_REAL_MODULES
TEST_F(Hosts, ShowTheirLayout) {
  Process tool({TUTTI_TOOL, "run", "--ssh", folder_.file("ssh"), "--hosts", "a:3,b:2", "--", "sh",
                "-c", "TUTTI_HOST_ID=$HOST exec '" TUTTI_TOOL "' info --job --json"},
               {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  std::string text;
  for (const std::string& line : lines_of(tool.out())) text += line.substr(4) + "\n";
  const json job = json::parse(text);
  EXPECT_EQ(job["ranks"], 5);
  ASSERT_EQ(job["hosts"].size(), 2);
  EXPECT_EQ(job["hosts"][0]["host_id"], "a");
  EXPECT_EQ(job["hosts"][0]["ranks"], json({0, 1, 2}));
  EXPECT_EQ(job["hosts"][1]["addresses"], json({"b:5000", "b:5001"}));
  // ((0 1) (2 3)) 4: a subtree of two and a leaf, and two leaves.
  EXPECT_EQ(job["hosts"][0]["partial_sums"], json::parse("[[0, 1], [2]]"));
  EXPECT_EQ(job["hosts"][1]["partial_sums"], json::parse("[[3], [4]]"));
  EXPECT_EQ(job["within"]["backend"], "shm");
  EXPECT_EQ(job["between"]["backend"], "tcp");
  EXPECT_EQ(job["between"]["reason"],
            "ranks 0 and 3 do not share memory: TUTTI_HOST_ID says so; TUTTI_BACKEND is empty");
}
#endif

}  // namespace
}  // namespace tutti::testing
