// SPDX-License-Identifier: Apache-2.0
// The command line itself.
#include <gmock/gmock.h>
#include <tutti/version.h>

#include "tool.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

TEST(Command, PrintsItsVersion) {
  Tool tool({"--version"});
  EXPECT_EQ(tool.finish(), 0);
  EXPECT_EQ(tool.out(), "tutti " + std::string(version()) + "\n");
}

TEST(Command, HelpsWithEveryCommand) {
  Tool tool({"--help"});
  EXPECT_EQ(tool.finish(), 0);
  for (const std::string name : {"run", "bench", "simulate", "timeline", "info"}) {
    EXPECT_THAT(tool.out(), HasSubstr("  " + name));
    Tool command({name, "--help"});
    EXPECT_EQ(command.finish(), 0);
    EXPECT_THAT(command.out(), HasSubstr("usage: tutti " + name));
    EXPECT_EQ(command.err(), "");
  }
}

TEST(Command, SaysWhatThereIsIfACommandIsUnknown) {
  Tool tool({"dance"});
  EXPECT_EQ(tool.finish(), 2);
  EXPECT_THAT(tool.err(), HasSubstr("tutti: there is no command \"dance\""));
  EXPECT_THAT(tool.err(), HasSubstr("  run "));
  EXPECT_EQ(tool.out(), "");
  EXPECT_EQ(Tool(std::vector<std::string>{}).finish(), 2);
}

struct Mistake {
  std::vector<std::string> arguments;
  std::string text;
};

TEST(Command, ExplainsMistakesInItsArguments) {
  for (const Mistake& mistake :
       {Mistake{{"run"}, "-n is required"}, Mistake{{"run", "true"}, "-n is required"},
        Mistake{{"run", "-n", "2"}, "which program?"},
        Mistake{{"run", "-n", "2", "--"}, "which program?"},
        Mistake{{"run", "-n", "0", "true"}, "-n: Value 0 not in range 1 to 4096"},
        Mistake{{"run", "-n", "4097", "true"}, "-n: Value 4097 not in range"},
        Mistake{{"run", "-n", "-1", "true"}, "-n: Value -1 not in range"},
        Mistake{{"run", "-n", "many", "true"}, "many"},
        Mistake{{"run", "-n", "1", "--restarts", "-1", "true"}, "--restarts"},
        Mistake{{"run", "-n", "1", "--fast", "true"}, "there is no option --fast"},
        Mistake{{"timeline"}, "ACTION is required"},
        Mistake{{"timeline", "dance", "a", "b"}, "dance"},
        Mistake{{"timeline", "merge", "out.json"}, "FILE is required"},
        Mistake{{"info", "--yaml"}, "--yaml"}}) {
    Tool tool(mistake.arguments);
    EXPECT_EQ(tool.finish(), 2);
    EXPECT_THAT(tool.err(), HasSubstr("tutti " + mistake.arguments[0] + ": "));
    EXPECT_THAT(tool.err(), HasSubstr(mistake.text));
    EXPECT_THAT(tool.err(), HasSubstr("usage: tutti " + mistake.arguments[0]));
    EXPECT_EQ(tool.out(), "");
  }
}

}  // namespace
}  // namespace tutti::testing
