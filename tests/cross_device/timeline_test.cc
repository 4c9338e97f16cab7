// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/program.h"

namespace tutti {
namespace {

using nlohmann::json;
using testing::run_program;

// A file that is gone again with the test.
class TimelineFile {
 public:
  TimelineFile()
      : path_(std::filesystem::temp_directory_path() /
              ("tutti_timeline_" + std::to_string(getpid()) + ".json")) {}
  ~TimelineFile() { std::filesystem::remove(path_); }
  std::string setting() const { return "TUTTI_TIMELINE='" + path_.string() + "'"; }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path path_;
};

constexpr const char* kCpu0 = "/job:localhost/replica:0/task:0/device:CPU:0";
constexpr const char* kCpu1 = "/job:localhost/replica:0/task:0/device:CPU:1";

TEST(Timeline, AdvisesToAddSlicesAsDenseIfThatIsCheaper) {
  TimelineFile file;
  const auto program = run_program(file.setting(), "sparse");
  ASSERT_EQ(program.status, 0) << program.output;
  int advised = 0;
  for (const json& event : json::parse(file.text()))
    if (event["name"] == "reduce") {
      EXPECT_EQ(event["args"].value("advice", ""),
                "6 rows of a tensor of 2 travel: sparse_as_dense would be cheaper");
      ++advised;
    }
  EXPECT_EQ(advised, 2);
}

TEST(Timeline, DescribesEveryOperation) {
  TimelineFile file;
  const auto program = run_program(file.setting(), "all");
  ASSERT_EQ(program.status, 0) << program.output;
  const json events = json::parse(file.text());
  ASSERT_EQ(events.size(), 5u);
  for (const json& event : events) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_TRUE(event["pid"].is_number_integer());
  }
  const std::string both = std::string(kCpu0) + "," + kCpu1;

  EXPECT_EQ(events[0]["name"], "reduce");
  EXPECT_EQ(events[0]["args"], (json{{"op", "SUM"},
                                     {"bytes", 24},
                                     {"tensors", 1},
                                     {"dtype", "float32"},
                                     {"devices", both},
                                     {"class", "tutti::HierarchicalCopyAllReduce"},
                                     {"algorithm", "hierarchical_copy"},
                                     {"packing", "in place"},
                                     {"packs_asked_for", 8}}));

  EXPECT_EQ(events[1]["name"], "batch_reduce");
  EXPECT_EQ(events[1]["args"], (json{{"op", "MEAN"},
                                     {"bytes", 40},
                                     {"tensors", 2},
                                     {"dtype", "mixed"},
                                     {"devices", "mixed"},
                                     {"class", "tutti::HierarchicalCopyAllReduce"},
                                     {"algorithm", "hierarchical_copy"},
                                     {"packing", "in place"},
                                     {"packs_asked_for", 16}}));

  EXPECT_EQ(events[2]["name"], "reduce");
  EXPECT_EQ(events[2]["args"], (json{{"op", "MAX"},
                                     {"bytes", 16},
                                     {"tensors", 1},
                                     {"dtype", "int64"},
                                     {"devices", kCpu0},
                                     {"class", "tutti::ReductionToOneDevice"},
                                     {"algorithm", "reduction_to_one_device"},
                                     {"packing", "in place"}}));

  EXPECT_EQ(events[3]["name"], "broadcast");
  EXPECT_EQ(events[3]["args"], (json{{"bytes", 12}, {"dtype", "float32"}, {"devices", both}}));
  EXPECT_EQ(events[4]["name"], "gather");
  EXPECT_EQ(events[4]["args"], (json{{"bytes", 24}, {"dtype", "float32"}, {"devices", kCpu0}}));
}

// Viewers accept an array without its closing bracket.
TEST(Timeline, SurvivesAKilledProcess) {
  TimelineFile file;
  EXPECT_EQ(run_program(file.setting(), "killed").status, 128 + 9);
  const json events = json::parse(file.text() + "]");
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[4]["name"], "gather");
}

TEST(Timeline, IsAnErrorIfTheFileCannotBeWritten) {
  const auto program = run_program("TUTTI_TIMELINE=/nowhere/at/all.json", "all");
  EXPECT_EQ(program.status, 3);
  EXPECT_THAT(program.output, ::testing::HasSubstr("TUTTI_TIMELINE=/nowhere/at/all.json: cannot "
                                                   "write the file: No such file or directory"));
}

}  // namespace
}  // namespace tutti
