// How many files this process may open.
#pragma once

#include <string>

namespace tutti::base {

// ResourceExhaustedError if it may not open `more` beside those that are open. `what` needs them,
// as in "this job of 64 ranks".
void expect_descriptors(int more, const std::string& what);

// Whether a call failed for want of them, and what the error then says, with the remedy.
bool out_of_descriptors(int error);
std::string describe_out_of_descriptors(int error);

}  // namespace tutti::base
