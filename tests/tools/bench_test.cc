// SPDX-License-Identifier: Apache-2.0
// tutti bench
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "group/net/registry.h"
#include "tool.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using json = nlohmann::json;

std::vector<std::string> quick(std::vector<std::string> more) {
  std::vector<std::string> all{"bench", "--seconds", "0.001", "--no-pin"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
std::vector<std::string> on_threads(std::vector<std::string> more) {
  std::vector<std::string> all = quick({"--backend", "in_process", "--json"});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<json> measured(Process& tool) {
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  std::vector<json> all;
  for (const std::string& line : lines_of(tool.out())) all.push_back(json::parse(line));
  for (const json& one : all) {
    SCOPED_TRACE(one.dump());
    EXPECT_EQ(one["wrong"], 0);
    EXPECT_GE(one["iterations"], 5);
    EXPECT_GT(one["p10_us"], 0.0);
    EXPECT_LE(one["p10_us"], one["median_us"]);
    EXPECT_LE(one["median_us"], one["p90_us"]);
    EXPECT_NEAR(one["algbw_GBps"].get<double>(),
                one["bytes"].get<double>() / one["median_us"].get<double>() / 1e3, 1e-9);
  }
  return all;
}

TEST(Bench, MeasuresEveryCollectiveAndCountsItsTrafficAsNcclTestsDo) {
  // What crosses the links of 3 ranks, per byte of the result.
  const std::vector<std::pair<std::string, double>> ops{
      {"all_reduce", 4 / 3.}, {"reduce", 1},      {"broadcast", 1},          {"all_gather", 2 / 3.},
      {"all_to_all", 2 / 3.}, {"send_recv", 1.0}, {"reduce_scatter", 2 / 3.}};
  for (const auto& [op, traffic] : ops) {
    SCOPED_TRACE(op);
    Tool tool(on_threads({"-n", "3", "--op", op, "--min-bytes", "12", "--max-bytes", "3072"}));
    const std::vector<json> all = measured(tool);
    ASSERT_EQ(all.size(), 5);
    for (const json& one : all) {
      EXPECT_EQ(one["op"], op);
      EXPECT_EQ(one["ranks"], 3);
      EXPECT_NEAR(one["busbw_GBps"].get<double>() / one["algbw_GBps"].get<double>(), traffic, 1e-9);
    }
  }
}

TEST(Bench, TakesEveryReductionThatKeepsItsType) {
  for (const char* const dtype : {"float32", "float64", "bfloat16", "float16", "int32", "uint8"})
    for (const char* const reduce : {"SUM", "MEAN", "MIN", "MAX", "PROD"}) {
      SCOPED_TRACE(std::string(dtype) + " " + reduce);
      const bool fits =
          std::string(reduce) != "MEAN" || std::string(dtype).find("int") == std::string::npos;
      Tool tool(on_threads({"-n", "2", "--dtype", dtype, "--reduce", reduce, "--max-bytes", "64"}));
      if (fits) {
        const std::vector<json> all = measured(tool);
        ASSERT_EQ(all.size(), 3);
        EXPECT_EQ(all[2]["dtype"], dtype);
        EXPECT_EQ(all[2]["bytes"], 64);
      } else {
        EXPECT_EQ(tool.finish(), 2);
        EXPECT_EQ(tool.err(),
                  "tutti bench: the MEAN of " + std::string(dtype) + " has another type\n");
      }
    }
}

TEST(Bench, SizesGrowByTheFactorUpToTheLargest) {
  Tool tool(on_threads({"-n", "2", "--min-bytes", "100", "--max-bytes", "5000", "--factor", "7"}));
  std::vector<size_t> sizes;
  for (const json& one : measured(tool)) sizes.push_back(one["bytes"]);
  EXPECT_EQ(sizes, (std::vector<size_t>{100, 700, 4900}));
}

TEST(Bench, TakesSizesWithAUnit) {
  Tool tool(on_threads({"-n", "1", "--min-bytes", "1K", "--max-bytes", "64k", "--factor", "8"}));
  std::vector<size_t> sizes;
  for (const json& one : measured(tool)) sizes.push_back(one["bytes"]);
  EXPECT_EQ(sizes, (std::vector<size_t>{1 << 10, 8 << 10, 64 << 10}));
  Tool wrong({"bench", "--max-bytes", "64X"});
  EXPECT_EQ(wrong.finish(), 2);
  EXPECT_THAT(wrong.err(), HasSubstr("--max-bytes"));
}

TEST(Bench, ExplainsEveryOption) {
  Tool tool({"bench", "--help"});
  EXPECT_EQ(tool.finish(), 0);
  int options = 0;
  const std::vector<std::string> lines = lines_of(tool.out());
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].starts_with("  -")) continue;
    ++options;
    const std::string next = i + 1 < lines.size() ? lines[i + 1] : "";
    const bool below = next.starts_with("          ");  // if the option itself is long
    EXPECT_TRUE(below || lines[i].find("  ", 4) != std::string::npos) << lines[i];
  }
  EXPECT_EQ(options, 15) << tool.out();
}

TEST(Commands, HaveHelpThatFitsATerminal) {
  for (const char* const command : {"run", "info", "bench", "timeline"}) {
    Tool tool({command, "--help"});
    EXPECT_EQ(tool.finish(), 0);
    for (const std::string& line : lines_of(tool.out())) EXPECT_LE(line.size(), 80) << line;
  }
}

TEST(Bench, ShowsOneTableOnATerminal) {
  // `script` gives it a terminal for its output.
  const std::string command =
      "'" TUTTI_TOOL "' bench --seconds 0.001 --no-pin --backend in_process --max-bytes 64";
  Process tool({"script", "-qec", command, "/dev/null"}, {});
  EXPECT_EQ(tool.finish(), 0) << tool.out();
  const std::vector<std::string> lines = lines_of(tool.out());
  EXPECT_EQ(lines.size(), 5) << tool.out();
  for (const std::string& line : lines) EXPECT_LE(line.size(), 81) << line;  // with its \r
}

TEST(Bench, DrawsItsPeersBesideIt) {
  const Folder folder;
  std::ofstream(folder.file("peers"))
      << R"({"library": "Peer <1>", "ranks": 2, "bytes": 4, "median_us": 3})"
      << "\n\n"
      << R"({"library": "Peer <1>", "ranks": 2, "bytes": 64, "median_us": 5})"
      << "\n";
  Tool tool(on_threads({"-n", "2", "--max-bytes", "64", "--plot", folder.file("plot.svg"),
                        "--peers", folder.file("peers")}));
  EXPECT_EQ(measured(tool).size(), 3);
  const std::string svg = content(folder.file("plot.svg"));
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg;
  EXPECT_TRUE(svg.ends_with("</svg>\n")) << svg;
  EXPECT_THAT(svg, HasSubstr("Peer &lt;1&gt;"));
  EXPECT_THAT(svg, HasSubstr("in_process, private"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, HasSubstr(">all_reduce of float32, 2 ranks</text>"));
  EXPECT_THAT(svg, HasSubstr("the spread from the 10th to the 90th percentile"));
  // A band and a line each, from one side to the other.
  for (const std::string element : {"<polygon", "<polyline"}) {
    const size_t first = svg.find(element);
    EXPECT_NE(first, svg.npos);
    EXPECT_NE(svg.find(element, first + 1), svg.npos) << element;
  }
  EXPECT_THAT(svg, HasSubstr("width=\"800\""));
  EXPECT_THAT(svg, ::testing::ContainsRegex("<polyline points=\"70.0,[0-9.]+ [^\"]*770.0,"));
}

TEST(Bench, SaysWhatIsWrongBeforeItMeasures) {
  const Folder folder;
  std::ofstream(folder.file("broken")) << "{\n";
  const auto refused = [](std::vector<std::string> arguments, const std::string& why) {
    Tool tool(on_threads(std::move(arguments)));
    EXPECT_NE(tool.finish(), 0);
    EXPECT_EQ(tool.out(), "");
    EXPECT_THAT(tool.err(), HasSubstr(why));
    EXPECT_THAT(tool.err(), Not(HasSubstr(" us\n")));  // a size that was measured
  };
  refused({"--dtype", "float31"}, "float31");
  refused({"--op", "all_reverse"}, "all_reverse");
  refused({"--reduce", "AVERAGE"}, "AVERAGE");
  refused({"--seconds", "0"}, "--seconds");
  refused({"--min-bytes", "8", "--max-bytes", "4"}, "--min-bytes 8 is more than --max-bytes 4");
  refused({"--peers", folder.file("broken")}, "--plot");
  refused({"--plot", folder.file("p.svg"), "--peers", folder.file("none")},
          "cannot read " + folder.file("none"));
  refused({"--plot", folder.file("p.svg"), "--peers", folder.file("broken")},
          folder.file("broken"));
}

TEST(Bench, SaysThatThereIsNotSoMuchMemory) {
  Tool tool(
      on_threads({"-n", "2", "--min-bytes", "1099511627776", "--max-bytes", "1099511627776"}));
  EXPECT_EQ(tool.finish(), 1);
  EXPECT_THAT(tool.err(), HasSubstr("tutti bench: 2 ranks with 1024 GiB each need more than the "));
}

#ifdef TUTTI_REAL_MODULES
TEST(Bench, TabulatesProcessesThatShareMemory) {
  Process tool({TUTTI_TOOL, "bench", "--seconds", "0.001", "-n", "3", "--max-bytes", "64",
                "--buffers", "window"},
               {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  const std::vector<std::string> lines = lines_of(tool.out());
  ASSERT_EQ(lines.size(), 5) << tool.out();
  EXPECT_THAT(lines[0], HasSubstr("shm, window: all_reduce, 3 ranks"));
  EXPECT_THAT(lines[1], HasSubstr("busbw"));
  EXPECT_THAT(lines[4], HasSubstr("64 B   float32"));
  EXPECT_TRUE(lines[4].ends_with("      0")) << lines[4];
}
#endif

#ifdef TUTTI_REAL_MODULES
TEST(Bench, ShowsASizeOnceItIsMeasured) {
  Process tool({TUTTI_TOOL, "bench", "--seconds", "100000", "--no-pin", "--min-bytes", "1M",
                "--max-bytes", "1G", "--factor", "512"},
               {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES});
  // The next size takes far longer than a test may.
  EXPECT_TRUE(tool.wait_for("1 MiB"));
  EXPECT_EQ(lines_of(tool.out()).size(), 3) << tool.out();
}

TEST(Bench, MeasuresProcessesThatShareNoMemory) {
  for (const auto& transport : group::transports()) {
    const auto* const module = group::module_for(transport.kind, "");
    if (!module || !std::filesystem::exists(
                       fmt::format("{}/libtutti_{}.so", TUTTI_REAL_MODULES, module->name)))
      continue;
    const std::string backend(transport.name);
    Process tool({TUTTI_TOOL, "bench", "--seconds", "0.001", "-n", "2", "--max-bytes", "64",
                  "--backend", backend, "--json"},
                 {"TUTTI_MODULE_PATH=" TUTTI_REAL_MODULES, "UCX_TLS=tcp"});
    const std::vector<json> all = measured(tool);
    ASSERT_EQ(all.size(), 3);
    EXPECT_THAT(all[0]["library"].get<std::string>(), HasSubstr(backend + ", private"));
  }
}
#endif

}  // namespace
}  // namespace tutti::testing
