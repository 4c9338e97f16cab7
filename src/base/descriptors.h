// SPDX-License-Identifier: Apache-2.0
// How many files this process may open.
#pragma once

#include <string>

namespace tutti::base {

// ResourceExhaustedError if this process may not open `more` files beside the open ones. `what`
// names what needs them, as in "this job of 64 ranks".
void expect_descriptors(int more, const std::string& what);

// Whether `error`, an errno, says that there are no descriptors left, and the error text for it,
// with the remedy.
bool out_of_descriptors(int error);
std::string describe_out_of_descriptors(int error);

}  // namespace tutti::base
