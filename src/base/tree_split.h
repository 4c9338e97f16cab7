// SPDX-License-Identifier: Apache-2.0
// The shape of the tree that every reduction is: T(n) = T(p) op T(n - p), with p the largest power
// of two below n. The bits of every sum follow from it.
#pragma once

#include <bit>
#include <concepts>
#include <type_traits>

namespace tutti::base {

// p, for n > 1 inputs.
template <std::integral N>
constexpr N left_part(N n) {
  return N(std::bit_floor(std::make_unsigned_t<N>(n - 1)));
}

}  // namespace tutti::base
