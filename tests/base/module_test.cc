// SPDX-License-Identifier: Apache-2.0
#include "base/module.h"

#include <tutti/version.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "support/expect.h"

namespace tutti::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Settings are read once, on first use: this comes before any test can.
const int path_is_set = setenv("TUTTI_MODULE_PATH", TUTTI_TEST_MODULES, 1);

std::string error_of_loading(const char* name) {
  return testing::error_of<UnavailableError>([&] { load_module(name); });
}

TEST(LoadModule, HandsOutWhatTheModuleOffers) {
  ASSERT_EQ(path_is_set, 0);
  const Module& module = load_module("testmodule");
  EXPECT_EQ(module.version, version());
  EXPECT_EQ(*static_cast<const int*>(module.interface), 42);
}

TEST(LoadModule, LoadsOnce) {
  std::vector<const Module*> seen(4);
  std::vector<std::thread> threads;
  for (const Module*& module : seen)
    threads.emplace_back([&module] { module = &load_module("testmodule"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seen, ::testing::Each(&load_module("testmodule")));
}

TEST(LoadModule, AMissingOneIsUnavailableWithTheRemedy) {
  for (int attempt = 0; attempt < 2; ++attempt)
    EXPECT_THAT(error_of_loading("nothere"),
                AllOf(HasSubstr("\"nothere\""), HasSubstr("libtutti_nothere.so"),
                      HasSubstr("TUTTI_MODULE_PATH")));
}

TEST(LoadModule, AnotherVersionIsRefused) {
  EXPECT_THAT(error_of_loading("oldmodule"),
              AllOf(HasSubstr("\"oldmodule\""), HasSubstr("version 0.0.1"),
                    HasSubstr(std::string(version()))));
}

TEST(LoadModule, ALibraryWithoutTheEntryPointIsRefused) {
  EXPECT_THAT(error_of_loading("notamodule"),
              AllOf(HasSubstr("libtutti_notamodule.so"), HasSubstr("is not a module")));
}

TEST(LoadModule, AFileThatIsNoLibraryIsRefused) {
  EXPECT_THAT(error_of_loading("garbage"), HasSubstr("libtutti_garbage.so"));
}

}  // namespace
}  // namespace tutti::base
