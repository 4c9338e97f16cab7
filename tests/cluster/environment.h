// SPDX-License-Identifier: Apache-2.0
// An environment without a launcher, for tests that play one.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>

extern "C" char** environ;

namespace tutti::testing {

// Each test starts with no variable that says anything about a job, and leaves the environment as
// it was.
class EnvironmentTest : public ::testing::Test {
 protected:
  EnvironmentTest() : before_(job_variables()) { clear(); }
  ~EnvironmentTest() override {
    clear();
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

  static void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  static void unset(const std::string& name) { unsetenv(name.c_str()); }
  static void set_all(std::initializer_list<std::pair<const std::string, std::string>> variables) {
    clear();
    for (const auto& [name, value] : variables) set(name, value);
  }

 private:
  static std::map<std::string, std::string> job_variables() {
    std::map<std::string, std::string> found;
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      const std::string name = text.substr(0, text.find('='));
      for (const char* prefix : {"TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_",
                                 "SLURM_", "OMPI_", "PMI_", "TUTTI_"})
        if (name.starts_with(prefix)) found[name] = text.substr(name.size() + 1);
    }
    return found;
  }
  static void clear() {
    for (const auto& [name, value] : job_variables()) unset(name);
  }

  std::map<std::string, std::string> before_;
};

}  // namespace tutti::testing
