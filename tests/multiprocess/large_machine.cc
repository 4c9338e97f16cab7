// SPDX-License-Identifier: Apache-2.0
// Preloaded into a process: its machine has TUTTI_TEST_MEMORY_TIB of memory.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

extern "C" __attribute__((visibility("default"))) long sysconf(int name) noexcept {
  using Sysconf = long(int);
  static Sysconf* const real = reinterpret_cast<Sysconf*>(dlsym(RTLD_NEXT, "sysconf"));
  const char* const tebibytes = std::getenv("TUTTI_TEST_MEMORY_TIB");
  if (name == _SC_PHYS_PAGES && tebibytes) return (std::atol(tebibytes) << 40) / real(_SC_PAGESIZE);
  return real(name);
}
