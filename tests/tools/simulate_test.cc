// SPDX-License-Identifier: Apache-2.0
// tutti simulate
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tool.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;

std::vector<json> simulated(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"simulate", "--json"});
  Tool tool(arguments);
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  EXPECT_EQ(tool.err(), "");
  std::vector<json> all;
  for (const std::string& line : lines_of(tool.out())) all.push_back(json::parse(line));
  return all;
}

TEST(Simulate, PredictsTheTimeOfEverySize) {
  const std::vector<json> all =
      simulated({"--hosts", "2", "--latency", "20us", "--overhead", "500ns", "--bandwidth", "8Gbit",
                 "--bytes", "4:64K", "--sum", "0"});
  ASSERT_EQ(all.size(), 8);
  EXPECT_EQ(all[0]["op"], "all_reduce");
  EXPECT_EQ(all[0]["hosts"], 2);
  EXPECT_EQ(all[0]["ranks_per_host"], 1);
  EXPECT_EQ(all[0]["ranks"], 2);
  EXPECT_EQ(all[0]["bytes"], 4);
  // The latency, an overhead at each end, and 148 bytes on the wire.
  EXPECT_NEAR(all[0]["median_us"].get<double>(), 20 + 2 * 0.5 + 0.148, 1e-9);
  EXPECT_EQ(all[0]["host_messages_mean"], 1.0);
  EXPECT_EQ(all[0]["host_messages_most"], 1.0);
  EXPECT_EQ(all[0]["host_bytes_mean"], 148.0);
  EXPECT_EQ(all[0]["host_bytes_most"], 148.0);
  EXPECT_EQ(all[0]["rank_connections"], 1);
  EXPECT_GT(all[0]["rank_bytes_reserved"], 65536);
  EXPECT_EQ(all[7]["bytes"], 64 << 10);
  for (size_t i = 1; i < all.size(); ++i)
    EXPECT_GT(all[i]["median_us"], all[i - 1]["median_us"]) << all[i];
}

TEST(Simulate, TakesABandwidthInBytesOrBits) {
  const auto time = [](const char* bandwidth) {
    return simulated({"--bytes", "16M", "--bandwidth", bandwidth}).at(0)["median_us"];
  };
  EXPECT_EQ(time("10Gbit"), time("1.25GB"));
  EXPECT_EQ(time("10Gbit"), time("10000Mbit"));
  EXPECT_GT(time("1Gbit"), time("10Gbit"));
}

TEST(Simulate, GivesATableThatFitsATerminal) {
  Tool tool({"simulate", "--hosts", "2,4", "--ranks-per-host", "3", "--op", "all_gather", "--bytes",
             "48:3M"});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  const std::vector<std::string> lines = lines_of(tool.out());
  EXPECT_EQ(lines.size(), 2 * (4 + 9 + 1) + 1) << tool.out();
  EXPECT_THAT(tool.out(), HasSubstr("all_gather of float32, simulated; hosts: 2, ranks: 6"));
  EXPECT_THAT(tool.out(), HasSubstr("all_gather of float32, simulated; hosts: 4, ranks: 12"));
  EXPECT_THAT(tool.out(), HasSubstr("Memory that a rank reserves: up to"));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 80) << line;
}

TEST(Simulate, DrawsALineForEachNumberOfHosts) {
  Folder folder;
  const std::string file = folder.file("plot.svg");
  Tool tool({"simulate", "--hosts", "2,8", "--bytes", "4:1M", "--plot", file});
  EXPECT_EQ(tool.finish(), 0) << tool.err();
  const std::string svg = content(file);
  for (const char* const part : {"<svg", "all_reduce of float32, simulated", "   2 hosts",
                                 "   8 hosts", "latency 10us, overhead 1us, 100Gbit", "time, us"})
    EXPECT_THAT(svg, HasSubstr(part));
}

TEST(Simulate, HasASizeForABarrierToo) {
  const std::vector<json> all = simulated({"--hosts", "4", "--op", "barrier"});
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all[0]["bytes"], 0);
}

TEST(Simulate, SaysWhatToWriteInstead) {
  const std::vector<std::tuple<std::string, std::string, std::string>> wrong{
      {"--latency", "10", "--latency 10 is no time: write it as 500ns, 10us or 1.5ms"},
      {"--overhead", "-1us", "--overhead -1us is no time: write it as 500ns, 10us or 1.5ms"},
      {"--bandwidth", "100", "--bandwidth 100 is no bandwidth: write it as 100Gbit or 12.5GB"},
      {"--bandwidth", "0Gbit", "--bandwidth 0Gbit is no bandwidth"},
      {"--cache", "big", "--cache big is no size: write it as 64M"},
      {"--bytes", "1M:4", "--bytes 1M:4 is no range of sizes: write it as 4:256M"},
      {"--bytes", "many", "--bytes many is no range of sizes: write it as 4:256M"},
      {"--op", "sort", "--op"},
      {"--hosts", "0", "--hosts"}};
  for (const auto& [option, value, text] : wrong) {
    SCOPED_TRACE(option + " " + value);
    Tool tool({"simulate", option + "=" + value});
    EXPECT_EQ(tool.finish(), 2);
    EXPECT_THAT(tool.err(), HasSubstr(text));
    EXPECT_EQ(tool.out(), "");
  }
}

TEST(Simulate, NamesTheMemoryThatTooManyRanksNeed) {
  Tool tool({"simulate", "--hosts", "65536", "--ranks-per-host", "64", "--bytes", "4"});
  EXPECT_EQ(tool.finish(), 1);
  EXPECT_THAT(tool.err(), HasSubstr("4194304 ranks need about"));
  EXPECT_THAT(tool.err(), HasSubstr("choose fewer --hosts or --ranks-per-host"));
}

}  // namespace
}  // namespace tutti::testing
