// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), which file formats of other programs use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tutti::base {

namespace detail {

// tables[k][b]: the remainder of byte b with k bytes behind it, so that 8 bytes are one step.
constexpr std::array<std::array<uint32_t, 256>, 8> crc32c_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k)
    for (size_t b = 0; b < 256; ++b)
      tables[k][b] = tables[k - 1][b] >> 8 ^ tables[0][tables[k - 1][b] & 0xFF];
  return tables;
}

}  // namespace detail

inline uint32_t crc32c(const void* data, size_t size) {
  static constexpr auto tables = detail::crc32c_tables();
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~0u;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][word >> 8 * k & 0xFF];
  }
  for (; size > 0; --size, ++at) crc = crc >> 8 ^ tables[0][(crc ^ *at) & 0xFF];
  return ~crc;
}

}  // namespace tutti::base
