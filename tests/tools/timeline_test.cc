// SPDX-License-Identifier: Apache-2.0
// tutti timeline
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tool.h"

namespace tutti::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// A rank's file, as a process that was killed leaves it: without the last bracket.
std::string part(int rank, const std::string& host, double add_us, const std::string& job = "run 1",
                 double error_us = 0) {
  const int pid = 4711;  // containers on two hosts may well have the same
  std::string text = "[";
  const auto add = [&](const json& event) {
    text += (text.size() == 1 ? "\n" : ",\n") + event.dump();
  };
  add({{"name", "tutti_timeline_part"},
       {"ph", "M"},
       {"pid", pid},
       {"args",
        {{"rank", rank},
         {"ranks", 3},
         {"host", host},
         {"job", job},
         {"add_us", add_us},
         {"error_us", error_us}}}});
  for (const int number : {1, 2})
    add({{"name", "all_reduce"},
         {"ph", "X"},
         {"ts", 1000. * number + rank - add_us},
         {"dur", 2.5},
         {"pid", pid},
         {"tid", 10 + rank},
         {"args", {{"operation", number}}}});
  return text;
}

class TimelineMerge : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder.file(name);
    std::ofstream(path) << text;
    return path;
  }
  std::string mistake(std::vector<std::string> files, int code = 1) const {
    files.insert(files.begin(), {"timeline", "merge"});
    Tool tool(files);
    EXPECT_EQ(tool.finish(), code);
    EXPECT_EQ(tool.out(), "");
    EXPECT_THAT(tool.err(), ::testing::StartsWith("tutti timeline: "));
    return tool.err();
  }

  const Folder folder;
  const std::string out = folder.file("all.json");
  const std::string first = write("trace.rank0.json", part(0, "left", 0) + "\n]\n");
  const std::string second = write("trace.rank1.json", part(1, "right", -5e6, "run 1", 20));
  const std::string third = write("trace.rank2.json", part(2, "right", 250.5));
};

TEST_F(TimelineMerge, MergesTheRanksOnOneClock) {
  Tool tool({"timeline", "merge", out, third, first, second});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  EXPECT_EQ(tool.err(), "");
  EXPECT_EQ(tool.out(), out + ": events: 6, ranks: 3, hosts: 2; clocks agree to 0.02 ms\n");
  std::map<int, std::string> rows;
  std::vector<std::string> order;
  for (const json& event : json::parse(content(out))) {
    if (event["name"] == "process_name") rows[event["pid"]] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const int rank = event["pid"], number = event["args"]["operation"];
    EXPECT_DOUBLE_EQ(event["ts"], 1000. * number + rank);
    EXPECT_EQ(event["dur"], 2.5);
    EXPECT_EQ(event["tid"], 10 + rank);
    order.push_back(std::to_string(number) + " " + std::to_string(rank));
  }
  EXPECT_EQ(rows, (std::map<int, std::string>{
                      {0, "rank 0 (left)"}, {1, "rank 1 (right)"}, {2, "rank 2 (right)"}}));
  EXPECT_EQ(order, (std::vector<std::string>{"1 0", "1 1", "1 2", "2 0", "2 1", "2 2"}));
}

TEST_F(TimelineMerge, TakesTheFilesOfAFolder) {
  const std::string path = std::filesystem::path(out).parent_path();
  write("notes.json", "{}");
  for (int i = 0; i < 2; ++i) {  // the second time writes over the result of the first
    Tool tool({"timeline", "merge", out, path});
    EXPECT_EQ(tool.finish(), 0) << tool.err();
    EXPECT_THAT(tool.out(), HasSubstr("events: 6, ranks: 3"));
  }
  std::filesystem::create_directory(folder.file("empty"));
  EXPECT_THAT(mistake({out, folder.file("empty")}), HasSubstr("holds no timelines of ranks"));
}

TEST_F(TimelineMerge, SaysWhichRanksAreNotThere) {
  Tool tool({"timeline", "merge", out, second});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "tutti timeline: the timelines of these ranks are missing: 0, 2\n");
}

TEST_F(TimelineMerge, SaysWhatToDoAboutFilesThatCannotBeMerged) {
  EXPECT_THAT(mistake({out, folder.file("none.json")}),
              HasSubstr("none.json: No such file or directory"));
  for (const char* text :
       {"", "{}", "[]", "[\n]\n", "[\n{\"name\":\"x\",\"ph\":\"X\",\"ts\":1}\n]\n"})
    EXPECT_THAT(mistake({out, first, write("foreign.json", text)}),
                ::testing::AllOf(HasSubstr("foreign.json is not the timeline of a rank"),
                                 HasSubstr("leave it out")))
        << text;
  for (const char* text : {"{\"na", "7", "{\"name\":\"x\",\"ph\":\"X\"}", "\"x\"", "{\"ph\":1}x"})
    EXPECT_THAT(mistake({out, first, write("bad.json", part(1, "b", 0) + ",\n" + text)}),
                HasSubstr("bad.json is damaged in line 5; delete that line"))
        << text;
  EXPECT_THAT(mistake({out, first, second, write("old.json", part(1, "left", 0))}),
              HasSubstr(second + " and " + folder.file("old.json") +
                        " are both of rank 1; leave one of them out"));
  EXPECT_THAT(mistake({out, first, write("old.json", part(1, "left", 0, "run 0"))}),
              HasSubstr("are of different runs of a job"));
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_THAT(mistake({"/nowhere/all.json", first}), HasSubstr("cannot write /nowhere/all.json"));
}

TEST_F(TimelineMerge, DoesNotWriteOverARanksFile) {
  const std::string before = content(first);
  EXPECT_THAT(mistake({first, second, third}), HasSubstr("the file to write comes first"));
  EXPECT_THAT(mistake({first, first}), HasSubstr("the file to write comes first"));
  EXPECT_EQ(content(first), before);
}

}  // namespace
}  // namespace tutti::testing
