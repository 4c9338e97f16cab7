// SPDX-License-Identifier: Apache-2.0
// The end of a worker by an exception that the program does not catch.
#pragma once

namespace tutti::group {

// From now on std::terminate hands the exception's text to `publish`, on a thread of its own, and
// waits up to a second for it; so the throwing thread may hold any lock. Then the program's own
// terminate handler runs, if it has installed one before. Else the process writes "rank N failed:
// TEXT" to stderr and exits with 1, or aborts if it may leave a core dump. The first call counts.
void publish_uncaught_exceptions(int rank, void (*publish)(const char* text));

}  // namespace tutti::group
