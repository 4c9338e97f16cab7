// SPDX-License-Identifier: Apache-2.0
// The table of reduce ops: what is known of each.
#pragma once

#include <tutti/reduce_op.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace tutti::base {

// What is made of two values.
enum class Combine : uint8_t { add, multiply, least, most };

struct ReduceOpFacts {
  const char* name;  // null: not a ReduceOp
  Combine combine;
  ReduceOp partial;  // the op by which partial results are combined
  bool divides;      // by the number of values, once all are combined
};

// The facts of `op`. What is not here is a switch without a default, over ReduceOp or over Combine,
// so that the compiler names what a new op needs.
constexpr ReduceOpFacts facts_of(ReduceOp op) {
  using enum ReduceOp;
  using enum Combine;
  switch (op) {
    case SUM: return {"SUM", add, SUM, false};
    case MEAN: return {"MEAN", add, SUM, true};
    case MIN: return {"MIN", least, MIN, false};
    case MAX: return {"MAX", most, MAX, false};
    case PROD: return {"PROD", multiply, PROD, false};
  }
  return {};
}

constexpr size_t num_reduce_ops() {
  size_t n = 0;
  while (facts_of(ReduceOp(n)).name) ++n;
  return n;
}

// The same as a table, for a look-up without branches.
inline constexpr auto kReduceOps = [] {
  std::array<ReduceOpFacts, num_reduce_ops()> table{};
  for (size_t i = 0; i < table.size(); ++i) table[i] = facts_of(ReduceOp(i));
  return table;
}();

constexpr const ReduceOpFacts& facts(ReduceOp op) {
  if (size_t(op) >= kReduceOps.size()) tutti::detail::throw_not_a("ReduceOp", int(op));
  return kReduceOps[size_t(op)];
}

constexpr Combine combine_of(ReduceOp op) { return facts(op).combine; }
constexpr ReduceOp partial_op(ReduceOp op) { return facts(op).partial; }
constexpr bool divides(ReduceOp op) { return facts(op).divides; }
constexpr bool is_sum(ReduceOp op) { return combine_of(op) == Combine::add; }  // SUM and MEAN

// MIN and MAX: the result is one of the values.
constexpr bool is_selection(ReduceOp op) {
  switch (combine_of(op)) {
    case Combine::add:
    case Combine::multiply: return false;
    case Combine::least:
    case Combine::most: return true;
  }
  return false;
}

// Whether any number of equal values give that value: MEAN, MIN and MAX, but not SUM and PROD.
constexpr bool keeps_equal_values(ReduceOp op) { return divides(op) || is_selection(op); }

}  // namespace tutti::base
