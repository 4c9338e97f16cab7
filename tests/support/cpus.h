// SPDX-License-Identifier: Apache-2.0
// A fixture for tests that need several logical devices before their members are made.
#pragma once

#include <gtest/gtest.h>
#include <tutti/device.h>

#include <cstdlib>
#include <string>

namespace tutti::testing {

template <int kCount, class Base = ::testing::Test>
class LogicalCpus : public Base {
 protected:
  LogicalCpus() { set_logical_devices("CPU", kCount); }
};

inline std::string cpu(size_t index) { return canonicalize("/cpu:" + std::to_string(index)); }

// The conformance tests run on CPUs, or on what TUTTI_TEST_DEVICE says.
inline std::string device_type() {
  const char* const type = std::getenv("TUTTI_TEST_DEVICE");
  return type ? type : "CPU";
}

inline std::string device(size_t index) {
  return canonicalize("/device:" + device_type() + ":" + std::to_string(index));
}

template <int kCount, class Base = ::testing::Test>
class LogicalDevices : public Base {
 protected:
  LogicalDevices() { set_logical_devices(device_type(), kCount); }
};

}  // namespace tutti::testing
