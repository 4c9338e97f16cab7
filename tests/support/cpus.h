// A fixture for tests that need several logical devices before their members are made.
#pragma once

#include <gtest/gtest.h>
#include <tutti/device.h>

#include <string>

namespace tutti::testing {

template <int kCount, class Base = ::testing::Test>
class LogicalCpus : public Base {
 protected:
  LogicalCpus() { set_logical_devices("CPU", kCount); }
};

inline std::string cpu(size_t index) { return canonicalize("/cpu:" + std::to_string(index)); }

}  // namespace tutti::testing
