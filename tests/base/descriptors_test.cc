// SPDX-License-Identifier: Apache-2.0
#include "base/descriptors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <tutti/error.h>

#include <cerrno>

namespace tutti::base {
namespace {

TEST(Descriptors, AreEnoughOrTheErrorSaysHowManyAreMissing) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{64, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_NO_THROW(expect_descriptors(1, "this test"));
  std::string text;
  try {
    expect_descriptors(64, "this test");
  } catch (const ResourceExhaustedError& error) {
    text = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(text, ::testing::MatchesRegex("this test needs about [0-9]+ descriptors in this "
                                            "process, of which [0-9]+ are open, and ulimit -n "
                                            "allows 64: raise it, as in ulimit -n [0-9]+"));
}

TEST(Descriptors, AreTheReasonOfTwoErrors) {
  EXPECT_TRUE(out_of_descriptors(EMFILE) && out_of_descriptors(ENFILE));
  EXPECT_FALSE(out_of_descriptors(EACCES));
  EXPECT_THAT(describe_out_of_descriptors(EMFILE), ::testing::HasSubstr("ulimit -n allows"));
  EXPECT_THAT(describe_out_of_descriptors(ENFILE), ::testing::HasSubstr("fs.file-max"));
}

}  // namespace
}  // namespace tutti::base
