// SPDX-License-Identifier: Apache-2.0
// Assertions that several tests share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/error.h>

#include <string>

namespace tutti::testing {

// The text of the error E that `f` throws; a failure if it throws something else or nothing.
template <class E, class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    ADD_FAILURE() << "threw another error: " << e.what();
    return "";
  }
  ADD_FAILURE() << "threw nothing";
  return "";
}

}  // namespace tutti::testing

// `expression` throws E (or a class derived from it) with `part` in its text.
#define EXPECT_ERROR(E, part, expression)                                 \
  EXPECT_THAT(::tutti::testing::error_of<E>([&] { (void)(expression); }), \
              ::testing::HasSubstr(part))
