// SPDX-License-Identifier: Apache-2.0
// Threads that work in the background, beside those of the program that compute.
#pragma once

namespace tutti::base {

// Whether this thread has a core for itself: no more threads are ready to run on this machine than
// it has cores, nor of this process than it may use. Threads that spin count. Takes a few
// microseconds. True if the system does not say.
bool has_idle_core();

// This thread works in the background: it sleeps rather than spins.
void mark_background_thread();
bool is_background_thread();

}  // namespace tutti::base
