// SPDX-License-Identifier: Apache-2.0
// Hashes that detect damage and difference, not tampering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tutti::base {

// Of two words, such as the hash so far and the next word. For ranks that run the same version;
// files do not hold it.
inline uint64_t mixed(uint64_t a, uint64_t b) {
  const unsigned __int128 product =
      (unsigned __int128)(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
  return uint64_t(product) ^ uint64_t(product >> 64);
}

// The checksum of files. Folds 8 bytes at a time; continues from `seed`, so that parts can be added
// one after another. Every part but the last must be a multiple of 8 bytes long for the result not
// to depend on the cuts.
inline uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0x9e3779b97f4a7c15) {
  uint64_t hash = seed;
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = 0;
    const size_t n = bytes.size() - at < 8 ? bytes.size() - at : 8;
    std::memcpy(&word, bytes.data() + at, n);
    hash = (hash ^ word) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  }
  return hash ^ bytes.size();
}

}  // namespace tutti::base
