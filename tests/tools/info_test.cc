// SPDX-License-Identifier: Apache-2.0
// tutti info
#include <gmock/gmock.h>
#include <tutti/version.h>

#include <nlohmann/json.hpp>

#include "base/settings.h"
#include "tool.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Info, ShowsTheMachineTheBackendsAndEverySetting) {
  Tool tool({"info"}, {"TUTTI_THREADS=3"});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.err(), "");
  EXPECT_THAT(tool.out(), HasSubstr("Tutti " + std::string(version())));
  EXPECT_THAT(tool.out(), HasSubstr("/job:localhost/replica:0/task:0/device:CPU:0"));
  for (const auto& doc : base::setting_docs()) EXPECT_THAT(tool.out(), HasSubstr(doc.name));
  EXPECT_THAT(tool.out(), HasSubstr("* TUTTI_THREADS             3"));
}

TEST(Info, FitsATerminal) {
  for (const std::string path : {TUTTI_TEST_MODULES, "/nowhere"}) {
    Process tool({TUTTI_TOOL, "info"}, {"TUTTI_MODULE_PATH=" + path, "TUTTI_THREADS=3"});
    EXPECT_EQ(tool.finish(), 0);
    for (const std::string& line : lines_of(tool.out()))
      EXPECT_TRUE(line.size() <= 80 || line.find(path) != line.npos) << line;
    // Words keep their distance: a column that is too long once ran into the next.
    EXPECT_THAT(tool.out(), HasSubstr("  ucx          off  transport between hosts, by RDMA"));
    EXPECT_THAT(tool.out(), HasSubstr("* TUTTI_THREADS             3 (by default 0)\n"));
  }
}

TEST(Info, SaysThatTheFolderOfModulesIsWrong) {
  Folder folder;
  const std::string missing = "TUTTI_MODULE_PATH=/nowhere: there is no such folder";
  Process nowhere({TUTTI_TOOL, "info"}, {"TUTTI_MODULE_PATH=/nowhere"});
  EXPECT_EQ(nowhere.finish(), 0);
  EXPECT_THAT(nowhere.out(), HasSubstr("Modules\n  " + missing + "\n"));
  EXPECT_THAT(nowhere.out(), HasSubstr("no GPU: " + missing + "\n"));
  EXPECT_THAT(nowhere.out(), Not(HasSubstr("not installed")));
  Process empty({TUTTI_TOOL, "info", "--json"}, {"TUTTI_MODULE_PATH=" + folder.file("")});
  EXPECT_EQ(empty.finish(), 0);
  EXPECT_THAT(std::string(nlohmann::json::parse(empty.out())["modules_error"]),
              HasSubstr("this folder holds no module of Tutti (libtutti_*.so)"));
}

TEST(Info, SaysWhyThereIsNoGpu) {
  Tool tool({"info"});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(tool.out(), HasSubstr("  no GPU: the module \"cuda\" cannot be loaded"));
}

TEST(Info, SaysWhyAModuleIsOffAndWhatBringsIt) {
  Tool tool({"info", "--json"});
  EXPECT_EQ(tool.finish(), 0);
  const auto info = nlohmann::json::parse(tool.out());
  EXPECT_EQ(info["version"], version());
  for (const char* what : {"compiler", "type", "TUTTI_GRPC", "TUTTI_CUDA"})
    EXPECT_NE(info["build"][what], "") << what;
  EXPECT_GE(info["cores"], 1);
  EXPECT_GE(info["last_level_cache"], 1024);
  EXPECT_FALSE(info["vector_instructions"].empty());
  EXPECT_EQ(info["devices"].size(), 1);
  for (const auto& module : info["modules"]) {
    SCOPED_TRACE(module.dump());
    if (module["name"] == "cluster") {  // the stand-in
      EXPECT_TRUE(module["loaded"]);
      EXPECT_EQ(module["reason"], "");
    } else {
      EXPECT_FALSE(module["loaded"]);
      EXPECT_THAT(std::string(module["reason"]), HasSubstr("not installed: install the package"));
    }
  }
  for (const auto& backend : info["backends"])
    EXPECT_EQ(backend["available"], backend["module"] == "") << backend.dump();
}

TEST(Info, NeverShowsTheToken) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"info"}, {"info", "--json"}}) {
    Tool tool(arguments, {"TUTTI_TOKEN=xyzzy"});
    EXPECT_EQ(tool.finish(), 0);
    EXPECT_THAT(tool.out(), Not(HasSubstr("xyzzy")));
    EXPECT_THAT(tool.out(), HasSubstr("(not shown)"));
  }
}

TEST(Info, SaysWhichSettingIsWrong) {
  Tool tool({"info"}, {"TUTTI_THREADS=some"});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_THAT(tool.out(), HasSubstr("TUTTI_THREADS=some: expected a number"));
}

}  // namespace
}  // namespace tutti::testing
