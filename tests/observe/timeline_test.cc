// SPDX-License-Identifier: Apache-2.0
// The files of timelines: their names, and whose they are.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/expect.h"
#include "support/program.h"

namespace tutti {
namespace {

using nlohmann::json;
using testing::run_program;
namespace fs = std::filesystem;

class TimelineFiles : public ::testing::Test {
 protected:
  TimelineFiles() { fs::create_directories(folder); }
  ~TimelineFiles() override { fs::remove_all(folder); }

  void run(const std::string& arguments) const {
    const auto result =
        run_program("TUTTI_TIMELINE='" + (folder / "a b.json").string() + "'", arguments);
    EXPECT_EQ(result.status, 0) << result.output;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path().filename());
    std::ranges::sort(all);
    return all;
  }
  std::map<std::string, json> events(const std::string& name) const {
    std::map<std::string, json> all;
    for (const json& event : json::parse(std::ifstream(folder / name)))
      all[event["name"].get<std::string>()] = event;
    return all;
  }

  const fs::path folder = fs::temp_directory_path() / ("tutti_observe_" + std::to_string(getpid()));
};

TEST_F(TimelineFiles, SpansCarryAnyArguments) {
  run("advice");
  EXPECT_EQ(names(), std::vector<std::string>{"a b.json"});
  EXPECT_EQ(events("a b.json").at("first")["args"],
            (json{{"bytes", 13}, {"advice", "the dense form \"is\" smaller"}}));
}

TEST_F(TimelineFiles, HoldTheSpansOfAProgramBesideThoseOfATrainingStep) {
  run("training '" + (folder / "checkpoints").string() + "'");
  std::map<std::string, std::vector<json>> spans;
  for (const json& event : json::parse(std::ifstream(folder / "a b.json")))
    spans[event["name"]].push_back(event);
  const auto only = [&](const std::string& name) {
    EXPECT_EQ(spans[name].size(), 1u) << name;
    return spans[name].at(0);
  };
  // Of both events, the first contains the second.
  const auto expect_inside = [](const json& outer, const json& inner) {
    const auto end = [](const json& e) { return e["ts"].get<double>() + e["dur"].get<double>(); };
    EXPECT_LE(outer["ts"], inner["ts"]) << inner;
    EXPECT_GE(end(outer) + 1e-3, end(inner)) << inner;
    EXPECT_EQ(outer["pid"], inner["pid"]);
  };
  const json step = only("step");
  EXPECT_EQ(step["args"], (json{{"epoch", 3}, {"rate", 0.5}, {"phase", "warm \"up\""}}));
  for (const char* name : {"get_next", "Checkpoint::save", "Checkpoint::restore", "save_variables",
                           "load_variables", "batch_reduce"})
    expect_inside(step, only(name));
  EXPECT_EQ(only("Checkpoint::save")["args"], (json{{"step", 7}}));

  ASSERT_EQ(spans["run"].size(), 2u);
  ASSERT_EQ(spans["all_reduce"].size(), 2u);
  for (const json& run : spans["run"]) {
    expect_inside(step, run);
    for (const json& call : spans["all_reduce"])
      if (call["args"]["replica"] == run["args"]["replica"]) {
        expect_inside(run, call);
        EXPECT_EQ(call["tid"], run["tid"]);
      }
  }
  EXPECT_NE(spans["run"][0]["args"]["replica"], spans["run"][1]["args"]["replica"]);
  EXPECT_NE(spans["run"][0]["tid"], spans["run"][1]["tid"]);
}

TEST_F(TimelineFiles, OfRanksNameTheRank) {
  run("early 3");
  run("late 4");
  EXPECT_EQ(names(), (std::vector<std::string>{"a b.rank3.json", "a b.rank4.json"}));
  for (const int rank : {3, 4}) {
    const auto all = events("a b.rank" + std::to_string(rank) + ".json");
    EXPECT_TRUE(all.contains("first") && all.contains("second"));
    EXPECT_EQ(all.at("process_name")["args"]["name"], "rank " + std::to_string(rank) + " (left)");
    const json& part = all.at("tutti_timeline_part");
    EXPECT_EQ(part["ph"], "M");
    EXPECT_EQ(part["pid"], all.at("first")["pid"]);
    EXPECT_EQ(part["args"], (json{{"rank", rank},
                                  {"ranks", 5},
                                  {"host", "left"},
                                  {"job", "run 1"},
                                  {"add_us", -1.5},
                                  {"error_us", 0.25}}));
  }
}

TEST_F(TimelineFiles, AreNotWrittenByTwoProcessesAtOnce) {
  run("parent '\"" TUTTI_TEST_PROGRAM "\" advice'");
  const auto all = names();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0], "a b.json");
  EXPECT_THAT(all[1], ::testing::MatchesRegex("a b\\.pid[0-9]+\\.json"));
  for (const std::string& name : all) EXPECT_EQ(events(name).size(), 2u) << name;
  run("advice");  // those have ended: it is written anew
  EXPECT_EQ(names().size(), 2u);
  EXPECT_EQ(events("a b.json").size(), 2u);
}

TEST_F(TimelineFiles, StayWholeIfAForkedChildExits) {
  run("fork");
  EXPECT_EQ(events("a b.json").size(), 2u);
}

TEST_F(TimelineFiles, WhatIsNoFileKeepsItsName) {
  const auto result = run_program("TUTTI_TIMELINE=/dev/stderr", "early 3");
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(json::parse(result.output).size(), 4u);
  EXPECT_EQ(run_program("TUTTI_TIMELINE=/dev/null", "late 3").status, 0);
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// A full disk costs the timeline, not the job.
TEST_F(TimelineFiles, OnAFullDiskAreOneWarning) {
  const auto result = run_program("TUTTI_TIMELINE=/dev/full", "early 3");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, ::testing::HasSubstr("cannot write /dev/full: No space left"));
  EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
}

TEST_F(TimelineFiles, PastTheLimitOnFilesEndWithAWholeEvent) {
  const std::string path = folder / "a.json";
  const auto result = run_program("ulimit -f 1; TUTTI_TIMELINE='" + path + "'", "advice 300");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, ::testing::HasSubstr("cannot write " + path));
  EXPECT_THAT(result.output, ::testing::HasSubstr("ulimit -f"));
  EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(json::parse(text + "]").empty()) << text;
}

}  // namespace
}  // namespace tutti
