// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share: a check that stays in release builds, and numbers drawn from the
// input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tutti::fuzz {

inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "a property does not hold: %s\n", what);
  std::abort();
}

// Takes numbers off the front of the input; an input that is used up gives zeros.
class Numbers {
 public:
  explicit Numbers(std::span<const uint8_t> left) : left_(left) {}

  template <class T>
  T take() {
    T value{};
    const size_t size = left_.size() < sizeof value ? left_.size() : sizeof value;
    if (size > 0) std::memcpy(&value, left_.data(), size);
    left_ = left_.subspan(size);
    return value;
  }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace tutti::fuzz
