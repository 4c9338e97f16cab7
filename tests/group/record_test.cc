// SPDX-License-Identifier: Apache-2.0
// The record of the last operations, in a file if one is asked for; settings that groups obey.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "group/ranks.h"
#include "group/record.h"
#include "support/program.h"

namespace tutti {
namespace {

using namespace testing;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class RecordDir : public ::testing::Test {
 protected:
  RecordDir() { fs::remove_all(folder); }
  ~RecordDir() override { fs::remove_all(folder); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    if (fs::exists(folder))
      for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path());
    return all;
  }
  static std::string text_of(const fs::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  const fs::path folder =
      fs::temp_directory_path() / ("tutti_record_test_" + std::to_string(getpid()));
};

TEST_F(RecordDir, GetsAFileWithTheLast256Operations) {
  const ProgramResult result =
      run_program("TUTTI_RECORD_DIR=" + (folder / "made").string(), "deadline");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output, HasSubstr("waited 0.1 s for rank 1; rank 1 is at #300"));
  ASSERT_TRUE(fs::exists(folder / "made")) << result.output;
  ASSERT_EQ(files().size(), 1u);
  std::vector<fs::path> made;
  for (const auto& entry : fs::directory_iterator(folder / "made")) made.push_back(entry.path());
  ASSERT_EQ(made.size(), 1u);
  EXPECT_THAT(made[0].filename().string(), HasSubstr("rank0"));
  const std::string text = text_of(made[0]);
  EXPECT_THAT(text, ::testing::StartsWith("all_reduce #301 (float32[5], SUM): waited 0.1 s"));
  EXPECT_THAT(text, HasSubstr(" #46 barrier() done\n"));
  EXPECT_THAT(text, HasSubstr(" #300 barrier() done\n"));
  EXPECT_THAT(text, HasSubstr(" #301 all_reduce(float32[5], SUM) [whole] not done\n"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr(" #45 ")));
}

TEST_F(RecordDir, StaysEmptyIfNothingFails) {
  const ProgramResult result = run_program("TUTTI_RECORD_DIR=" + folder.string(), "fine");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_TRUE(files().empty());
}

// Neither the same error again nor that of another group of this rank writes over the first.
TEST_F(RecordDir, KeepsWhatEveryGroupHasRecorded) {
  const ProgramResult result = run_program("TUTTI_RECORD_DIR=" + folder.string(), "twice");
  EXPECT_EQ(result.status, 0) << result.output;
  std::string all;
  for (const fs::path& file : files()) all += text_of(file);
  EXPECT_THAT(all, HasSubstr(" #46 barrier() done\n"));
  EXPECT_THAT(all, HasSubstr(" #301 all_reduce(float32[5], SUM) [whole] not done\n"));
  EXPECT_THAT(all, HasSubstr("all_reduce #1 (float32[5], SUM): waited 0.1 s for rank 1"));
}

TEST_F(RecordDir, ThatCannotBeWrittenIsAWarning) {
  const ProgramResult result = run_program("TUTTI_RECORD_DIR=/proc/nowhere", "deadline");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output, HasSubstr("TUTTI_RECORD_DIR: cannot write /proc/nowhere"));
  EXPECT_THAT(result.output, HasSubstr("waited 0.1 s for rank 1"));
}

TEST_F(RecordDir, OnAFullDiskIsAWarningThatNamesTheFile) {
  fs::create_directories(folder);
  const std::string start = (folder / "tutti-record-rank0-").string(),
                    setting = "TUTTI_RECORD_DIR=" + folder.string();
  // The shell becomes the program, so its process id is the one in the file's name. A record has
  // more than 8 KiB.
  for (const std::string& full :
       {"ln -s /dev/full " + start + "$$.txt; " + setting + " exec", "ulimit -f 8; " + setting}) {
    const ProgramResult result = run_program(full, "twice");
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("TUTTI_RECORD_DIR: cannot write " + start));
    EXPECT_THAT(result.output,
                ::testing::AnyOf(HasSubstr("No space left"), HasSubstr("ulimit -f")));
    EXPECT_EQ(result.output.find("cannot write"), result.output.rfind("cannot write"));
    EXPECT_THAT(result.output, HasSubstr("waited 0.1 s for rank 1"));
  }
}

TEST(Settings, TimeoutIsTheDeadlineOfCallsWithoutOne) {
  const ProgramResult result = run_program("TUTTI_TIMEOUT=0.3 TUTTI_WARN_AFTER=0.1", "default");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output,
              HasSubstr("all_reduce #301 (float32[5], SUM): waited 0.3 s for rank 1"));
  EXPECT_THAT(result.output, HasSubstr("all_reduce #301 (float32[5], SUM): has waited 0.1"));
}

// Shared memory is a file to the system, so `ulimit -f` counts for it.
TEST(Window, LargerThanTheLimitOnFilesIsAnError) {
  EXPECT_EQ(run_program("", "window").output, "mapped\n");
  const ProgramResult result = run_program("ulimit -f 8;", "window");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_THAT(result.output, ::testing::ContainsRegex("ulimit -f.* [0-9]+ KiB"));
}

TEST(Record, KeepsTheLast256) {
  group::Record record;
  EXPECT_EQ(record.all(), "");
  EXPECT_EQ(record.last(8), "");
  for (int i = 0; i < 1000; ++i) {
    record.begin({.kind = group::Collective::broadcast, .root = i % 3, .extents = {i}});
    if (i == 999) record.set_way(group::Way::relay);
    if (i != 998) record.end();
  }
  EXPECT_EQ(
      record.last(2),
      "#999 broadcast(float32[998], root 2) (not done), #1000 broadcast(float32[999], root 0) "
      "[relay]");
  const std::string all = record.all();
  EXPECT_EQ(std::ranges::count(all, '\n'), 256);
  EXPECT_THAT(all, HasSubstr("#745 broadcast(float32[744], root 0) done"));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("#744 ")));
}

}  // namespace
}  // namespace tutti
