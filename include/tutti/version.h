// SPDX-License-Identifier: Apache-2.0
// The version of the headers, and of the library they are used with.
#pragma once

#include <string_view>

#pragma GCC visibility push(default)

// All names of the C++ interface. Those in tutti::detail are no part of it.
namespace tutti {

// Of the headers that a program is compiled with; as constants, for if constexpr.
inline constexpr int version_major = 0;
inline constexpr int version_minor = 2;
inline constexpr int version_patch = 0;

// The version of the loaded library, "major.minor.patch".
std::string_view version();

}  // namespace tutti

#pragma GCC visibility pop
