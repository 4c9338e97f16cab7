// SPDX-License-Identifier: Apache-2.0
// The random numbers of pipelines: the same on every machine.
#pragma once

#include <bit>
#include <cstdint>

namespace tutti::detail {

// SplitMix64. Of our own, since the standard's distributions differ between libraries, and since
// its whole state is one number.
class Random {
 public:
  Random(uint64_t seed, uint64_t run)
      : state_(
            mixed(mixed(seed + 0x9E3779B97F4A7C15u) + std::rotl(run, 32) * 0x9E3779B97F4A7C15u)) {}
  explicit Random(uint64_t state) : state_(state) {}
  uint64_t state() const { return state_; }

  // Uniform in [0, bound), by Lemire's method.
  uint64_t below(uint64_t bound) {
    unsigned __int128 product = (unsigned __int128)next() * bound;
    if (uint64_t(product) < bound)
      for (const uint64_t uneven = (0 - bound) % bound; uint64_t(product) < uneven;)
        product = (unsigned __int128)next() * bound;
    return uint64_t(product >> 64);
  }

 private:
  static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }
  uint64_t next() { return mixed(state_ += 0x9E3779B97F4A7C15u); }
  uint64_t state_;
};

}  // namespace tutti::detail
