// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "support/expect.h"

namespace tutti::base {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

// Each test starts with none of the variables set, and leaves the environment as it was.
class SettingsTest : public ::testing::Test {
 protected:
  SettingsTest() {
    for (const SettingDoc& doc : setting_docs()) {
      if (const char* value = std::getenv(doc.name)) before_.emplace(doc.name, value);
      unsetenv(doc.name);
    }
  }
  ~SettingsTest() override {
    for (const SettingDoc& doc : setting_docs()) unsetenv(doc.name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

  static Settings with(const char* name, const char* value) {
    const std::shared_ptr<const char> unset(name, [](const char* n) { unsetenv(n); });
    setenv(name, value, 1);
    return read_settings();
  }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(SettingsTest, AreTheOnesOfTheDocs) {
  std::ifstream page(TUTTI_SOURCE_DIR "/docs/settings.md");
  std::vector<std::string> rows, expected;
  for (std::string line; std::getline(page, line);)
    if (line.starts_with("| `TUTTI_"))
      rows.push_back(line.starts_with("| `TUTTI_BACKEND`") ? "| `TUTTI_BACKEND`" : line);
  for (const SettingDoc& doc : setting_docs())  // the page explains backends in its own words
    expected.push_back(
        doc.name == std::string("TUTTI_BACKEND")
            ? "| `TUTTI_BACKEND`"
            : fmt::format("| `{}` | {} | {} |", doc.name, doc.default_value, doc.meaning));
  rows.resize(expected.size());  // a second table has the backends
  EXPECT_EQ(rows, expected);
}

TEST_F(SettingsTest, HaveTheDocumentedDefaults) {
  const Settings s = read_settings();
  EXPECT_EQ(s.threads, 0);
  EXPECT_EQ(s.timeout, 600s);
  EXPECT_EQ(s.warn_after, 30s);
  EXPECT_EQ(s.timeline, "");
  EXPECT_EQ(s.stragglers, 0);
  EXPECT_EQ(s.costs, Costs{});
  EXPECT_EQ(s.log_level, "warning");
  EXPECT_EQ(s.backend, "");
  EXPECT_EQ(s.module_path, "");
}

TEST_F(SettingsTest, AnEmptyVariableIsTheDefault) {
  for (const SettingDoc& doc : setting_docs()) setenv(doc.name, "", 1);
  const Settings s = read_settings();
  EXPECT_EQ(s.timeout, 600s);
  EXPECT_EQ(s.log_level, "warning");
}

TEST_F(SettingsTest, EachIsReadFromItsVariable) {
  EXPECT_EQ(with("TUTTI_THREADS", "3").threads, 3);
  EXPECT_EQ(with("TUTTI_THREADS", "4096").threads, 4096);
  EXPECT_EQ(with("TUTTI_TIMEOUT", "2.5").timeout, 2500ms);
  EXPECT_EQ(with("TUTTI_TIMEOUT", "0").timeout, 0s);
  EXPECT_EQ(with("TUTTI_TIMEOUT", "1e9").timeout, 1'000'000'000s);
  EXPECT_EQ(with("TUTTI_WARN_AFTER", "0.25").warn_after, 250ms);
  EXPECT_EQ(with("TUTTI_TIMELINE", "/tmp/a b.json").timeline, "/tmp/a b.json");
  EXPECT_EQ(with("TUTTI_STRAGGLERS", "100").stragglers, 100);
  EXPECT_EQ(with("TUTTI_COSTS", "byte=0.5,latency=1e4").costs,
            (Costs{.latency = 10'000, .byte = 0.5}));
  for (const char* level : {"debug", "info", "warning", "error", "off"})
    EXPECT_EQ(with("TUTTI_LOG", level).log_level, level);
  EXPECT_EQ(with("TUTTI_BACKEND", "nccl").backend, "nccl");
  EXPECT_EQ(with("TUTTI_MODULE_PATH", "/opt/modules").module_path, "/opt/modules");
}

TEST_F(SettingsTest, ABadValueIsAnErrorThatNamesItsVariable) {
  const std::vector<std::pair<const char*, const char*>> bad = {
      {"TUTTI_THREADS", "-1"},    {"TUTTI_THREADS", "1.5"},    {"TUTTI_THREADS", "4097"},
      {"TUTTI_THREADS", "two"},   {"TUTTI_THREADS", "2 "},     {"TUTTI_TIMEOUT", "-1"},
      {"TUTTI_TIMEOUT", "10s"},   {"TUTTI_TIMEOUT", "nan"},    {"TUTTI_TIMEOUT", "inf"},
      {"TUTTI_TIMEOUT", "1e10"},  {"TUTTI_WARN_AFTER", "x"},   {"TUTTI_WARN_AFTER", "-0.5"},
      {"TUTTI_STRAGGLERS", "-1"}, {"TUTTI_STRAGGLERS", "0.5"}, {"TUTTI_LOG", "verbose"},
      {"TUTTI_LOG", "WARNING"},   {"TUTTI_BACKEND", "gloo"},   {"TUTTI_BACKEND", "nccl,mpi"},
      {"TUTTI_COSTS", "latency"}, {"TUTTI_COSTS", "latency="}, {"TUTTI_COSTS", "byte=-1"},
      {"TUTTI_COSTS", "byte=1s"}, {"TUTTI_COSTS", "bytes=1"},  {"TUTTI_COSTS", "byte=nan"},
      {"TUTTI_COSTS", ","},       {"TUTTI_COSTS", "sum=1,,"},  {"TUTTI_COSTS", "message=2e9"}};
  for (const auto& each : bad)
    EXPECT_ERROR(InvalidArgumentError, std::string(each.first) + "=" + each.second,
                 with(each.first, each.second));
}

TEST_F(SettingsTest, CostsThatAreWrongAreAnsweredWithWhatToWrite) {
  EXPECT_ERROR(InvalidArgumentError,
               "TUTTI_COSTS=sum=1,ltency=2: there is no cost \"ltency\"; write it as in "
               "latency=1500,byte=0.34, in nanoseconds, with any of latency, message, byte, sum",
               with("TUTTI_COSTS", "sum=1,ltency=2"));
  EXPECT_ERROR(InvalidArgumentError, "sum is \"x\", expected a number from 0 to 1e+09; write",
               with("TUTTI_COSTS", "sum=x"));
}

TEST_F(SettingsTest, CostsKeepTheirValueAsText) {
  EXPECT_EQ(to_string(Costs{}), "");
  const Costs costs{.message = 1.0 / 3, .share_byte = 1e-7};
  EXPECT_EQ(parse_costs(to_string(costs)), costs);
}

TEST_F(SettingsTest, CostsAreTheOnesOfTheDocs) {
  std::ifstream page(TUTTI_SOURCE_DIR "/docs/settings.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  for (const CostDoc& doc : cost_docs())
    EXPECT_THAT(text, HasSubstr(fmt::format("| `{}` | {} | {} |\n", doc.name, Costs{}.*doc.value,
                                            doc.meaning)));
}

TEST_F(SettingsTest, AMisspelledNameIsAnsweredWithTheNearest) {
  const auto unknown = [](const char* name) {
    setenv(name, "1", 1);
    const std::vector<std::string> found = unknown_settings();
    unsetenv(name);
    return found;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(unknown("TUTTI_TIMOUT"),
              ElementsAre("TUTTI_TIMOUT is not a setting and has no effect; did you mean "
                          "TUTTI_TIMEOUT?"));
  EXPECT_THAT(unknown("TUTTI_BACKENDS"), ElementsAre(HasSubstr("mean TUTTI_BACKEND?")));
  EXPECT_THAT(unknown("TUTTI_HEARTBEAT_TIMEOUTS"),
              ElementsAre(HasSubstr("mean TUTTI_HEARTBEAT_TIMEOUT?")));
  EXPECT_THAT(unknown("TUTTI_COMPRESSION"),
              ElementsAre("TUTTI_COMPRESSION is not a setting and has no effect; tutti info lists "
                          "the settings"));
  EXPECT_THAT(unknown("TUTTI_X"), ElementsAre(HasSubstr("tutti info lists the settings")));
  for (const char* known : {"TUTTI_TIMEOUT", "TUTTI_LAUNCHER", "TUTTI_TEST_ANYTHING"})
    EXPECT_THAT(unknown(known), ElementsAre()) << known;
}

// A positive timeout that is too short to count must not turn into the 0 that means "no limit".
TEST_F(SettingsTest, ATinyTimeoutIsNotForever) {
  EXPECT_GT(with("TUTTI_TIMEOUT", "1e-10").timeout, 0ns);
}

TEST_F(SettingsTest, EachVariableIsDocumentedOnce) {
  std::set<std::string> names;
  for (const SettingDoc& doc : setting_docs()) {
    EXPECT_TRUE(names.insert(doc.name).second) << doc.name << " is documented twice";
    EXPECT_THAT(doc.name, ::testing::StartsWith("TUTTI_"));
    EXPECT_NE(std::string(doc.meaning), "") << doc.name;
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"TUTTI_BACKEND", "TUTTI_LOG", "TUTTI_MODULE_PATH",
                                              "TUTTI_THREADS", "TUTTI_TIMELINE", "TUTTI_TIMEOUT",
                                              "TUTTI_WARN_AFTER"}));
}

TEST_F(SettingsTest, TheDocumentedDefaultsAreTheDefaults) {
  for (const SettingDoc& doc : setting_docs()) setenv(doc.name, doc.default_value, 1);
  const Settings documented = read_settings();
  for (const SettingDoc& doc : setting_docs()) unsetenv(doc.name);
  const Settings unset = read_settings();
  EXPECT_EQ(documented.threads, unset.threads);
  EXPECT_EQ(documented.timeout, unset.timeout);
  EXPECT_EQ(documented.warn_after, unset.warn_after);
  EXPECT_EQ(documented.log_level, unset.log_level);
}

}  // namespace
}  // namespace tutti::base
