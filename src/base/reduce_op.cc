// SPDX-License-Identifier: Apache-2.0
#include "base/reduce_op.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <array>
#include <string>

namespace tutti {

namespace {

constexpr auto kOps = [] {
  std::array<std::string_view, base::kReduceOps.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = base::kReduceOps[i].name;
  return names;
}();
constexpr std::array<std::string_view, 4> kAggregations{"NONE", "SUM", "MEAN",
                                                        "ONLY_FIRST_REPLICA"};
constexpr std::array<std::string_view, 3> kImplementations{"AUTO", "RING", "NCCL"};

template <class E, size_t N>
std::string_view name_in(const std::array<std::string_view, N>& names, E value, const char* type) {
  if (size_t(value) >= N) detail::throw_not_a(type, int(value));
  return names[size_t(value)];
}

template <size_t N>
size_t look_up(std::string_view text, const std::array<std::string_view, N>& names,
               std::string_view what) {
  std::string upper(text), all;
  for (char& c : upper)
    if (c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == upper) return i;
    all += (i ? ", " : "") + std::string(names[i]);
  }
  throw InvalidArgumentError(fmt::format("\"{}\" is not a {}; there are {}", text, what, all));
}

}  // namespace

ReduceOp reduce_op(std::string_view text) { return ReduceOp(look_up(text, kOps, "ReduceOp")); }
std::string_view name(ReduceOp op) { return base::facts(op).name; }
std::ostream& operator<<(std::ostream& os, ReduceOp op) { return os << name(op); }

std::string_view name(VariableAggregation aggregation) {
  return name_in(kAggregations, aggregation, "VariableAggregation");
}
std::ostream& operator<<(std::ostream& os, VariableAggregation aggregation) {
  return os << name(aggregation);
}

ReduceOp reduce_op(VariableAggregation aggregation) {
  switch (aggregation) {
    case VariableAggregation::SUM: return ReduceOp::SUM;
    case VariableAggregation::MEAN: return ReduceOp::MEAN;
    case VariableAggregation::NONE:
    case VariableAggregation::ONLY_FIRST_REPLICA: break;
  }
  throw InvalidArgumentError(
      fmt::format("VariableAggregation {} has no ReduceOp; SUM and MEAN do", name(aggregation)));
}

DType result_dtype(ReduceOp op, DType dtype) {
  (void)base::facts(op);  // which throws for a value that is not a ReduceOp
  (void)size_of(dtype);   // and this for one that is not a DType
  if (dtype == DType::boolean && !base::is_selection(op))
    throw InvalidArgumentError(
        fmt::format("bool has no {}; it has MIN (and) and MAX (or)", name(op)));
  return base::divides(op) ? detail::kDTypes[size_t(dtype)].mean : dtype;
}

CommunicationImplementation communication_implementation(std::string_view text) {
  return CommunicationImplementation(
      look_up(text, kImplementations, "CommunicationImplementation"));
}

CommunicationOptions CommunicationOptions::merge(const CommunicationOptions& other) const {
  CommunicationOptions merged = *this;
  if (other.bytes_per_pack != 0) merged.bytes_per_pack = other.bytes_per_pack;
  if (other.timeout) merged.timeout = other.timeout;
  if (other.implementation != CommunicationImplementation::AUTO)
    merged.implementation = other.implementation;
  merged.sparse_as_dense |= other.sparse_as_dense;
  return merged;
}

void CommunicationOptions::validate(std::string_view what) const {
  try {
    (void)name_in(kImplementations, implementation, "CommunicationImplementation");
  } catch (const InvalidArgumentError& e) {
    throw InvalidArgumentError(fmt::format("{}: {}", what, e.what()));
  }
  if (bytes_per_pack < 0)
    throw InvalidArgumentError(
        fmt::format("{}: bytes_per_pack is {}, expected 0 or more", what, bytes_per_pack));
  if (timeout && timeout->count() < 0)
    throw InvalidArgumentError(fmt::format(
        "{}: the timeout is {} ns, expected 0 (no limit) or more", what, timeout->count()));
}

}  // namespace tutti
