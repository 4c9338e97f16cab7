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

TEST(Info, SaysWhyAModuleIsOffAndWhatBringsIt) {
  Tool tool({"info", "--json"});
  EXPECT_EQ(tool.finish(), 0);
  const auto info = nlohmann::json::parse(tool.out());
  EXPECT_EQ(info["version"], version());
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
      EXPECT_THAT(std::string(module["reason"]), HasSubstr("built without it"));
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
