// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace tutti::base {
namespace {

// The vectors of RFC 3720, and the usual check value.
TEST(Crc32c, GivesTheValuesOfItsStandard) {
  const auto of = [](const std::string& bytes) { return crc32c(bytes.data(), bytes.size()); };
  std::string ascending(32, 0);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(of(""), 0u);
  EXPECT_EQ(of("123456789"), 0xE3069283u);
  EXPECT_EQ(of(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(of(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(of(ascending), 0x46DD794Eu);
}

}  // namespace
}  // namespace tutti::base
