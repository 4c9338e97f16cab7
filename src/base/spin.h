// SPDX-License-Identifier: Apache-2.0
// Waiting for a few microseconds without giving up the core.
#pragma once

namespace tutti::base {

// Tells the core that this thread is spinning.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace tutti::base
