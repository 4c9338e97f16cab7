// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/settings.h"
#include "support/expect.h"

namespace tutti::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    set_log_sink([this](LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex_);
      messages_.emplace_back(level, text);
    });
  }
  ~LogTest() override { set_log_sink(nullptr); }

  std::mutex mutex_;
  std::vector<std::pair<LogLevel, std::string>> messages_;
};

TEST_F(LogTest, TheSinkGetsEveryMessageAtEveryLevel) {
  log(LogLevel::debug, "a");
  log(LogLevel::info, "b");
  log(LogLevel::warning, "c");
  log(LogLevel::error, "d");
  EXPECT_THAT(messages_, ElementsAre(Pair(LogLevel::debug, "a"), Pair(LogLevel::info, "b"),
                                     Pair(LogLevel::warning, "c"), Pair(LogLevel::error, "d")));
}

TEST_F(LogTest, LogOnceSaysATextOnce) {
  for (int i = 0; i < 3; ++i) {
    log_once(LogLevel::info, "first");
    log_once(LogLevel::info, "second");
  }
  log(LogLevel::info, "first");
  EXPECT_THAT(messages_, ElementsAre(Pair(LogLevel::info, "first"), Pair(LogLevel::info, "second"),
                                     Pair(LogLevel::info, "first")));
}

TEST_F(LogTest, LogOnceSaysItOnceFromManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) log_once(LogLevel::info, "message " + std::to_string(i));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(messages_.size(), 50u);
}

TEST_F(LogTest, SettingASinkForgetsWhatWasSaid) {
  log_once(LogLevel::info, "again");
  int heard = 0;
  set_log_sink([&](LogLevel, std::string_view) { ++heard; });
  log_once(LogLevel::info, "again");
  EXPECT_EQ(heard, 1);
}

TEST_F(LogTest, ASinkMayLogItself) {
  std::vector<std::string> heard;
  set_log_sink([&](LogLevel, std::string_view text) {
    heard.emplace_back(text);
    if (text == "outer") log(LogLevel::info, "inner");
  });
  log(LogLevel::info, "outer");
  EXPECT_THAT(heard, ElementsAre("outer", "inner"));
}

TEST(Log, WithoutASinkGoesToStderrFromTheSetLevelOn) {
  if (settings().log_level != "warning") GTEST_SKIP() << "TUTTI_LOG=" << settings().log_level;
  ::testing::internal::CaptureStderr();
  log(LogLevel::info, "too quiet");
  log(LogLevel::warning, "braces {} {0} stay");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("tutti: warning: braces {} {0} stay"));
  EXPECT_THAT(text, Not(HasSubstr("too quiet")));
}

}  // namespace
}  // namespace tutti::base
