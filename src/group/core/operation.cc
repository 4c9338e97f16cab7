// SPDX-License-Identifier: Apache-2.0
#include "group/core/operation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/hash.h"

namespace tutti::group {

std::string_view name(Collective kind) {
  switch (kind) {
    case Collective::barrier: return "barrier";
    case Collective::all_reduce: return "all_reduce";
    case Collective::reduce: return "reduce";
    case Collective::broadcast: return "broadcast";
    case Collective::all_gather: return "all_gather";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::all_to_all: return "all_to_all";
    case Collective::gather: return "gather";
    case Collective::scatter: return "scatter";
    case Collective::send: return "send";
    case Collective::recv: return "recv";
    case Collective::split: return "split";
  }
  return "?";
}

uint64_t Description::hash() const {
  using base::mixed;
  // Products that do not wait for each other.
  const uint64_t call = mixed(uint64_t(kind) | uint64_t(dtype) << 8 | uint64_t(op) << 16 |
                                  uint64_t(route) << 24 | uint64_t(uint32_t(root)) << 32,
                              uint64_t(tensors) | uint64_t(rank) << 32);
  const uint64_t shape = mixed(uint64_t(extents[0]), uint64_t(extents[1]));
  return mixed(call ^ std::rotl(shape, 32), mixed(uint64_t(extents[2]), others));
}

std::string Description::to_string(bool in_brief) const {
  if (kind == Collective::barrier || kind == Collective::split) return "";
  std::string text{tutti::name(dtype)};
  if (rank > extents.size())
    text += fmt::format("[{} elements]", extents[0]);
  else
    text += fmt::format("[{}]", fmt::join(std::span(extents).first(rank), ", "));
  if (tensors != 1)
    text = fmt::format("{} tensors{}", tensors, in_brief ? "" : ", the first " + text);
  if (kind == Collective::all_gather && others == kStragglers) text += ", for TUTTI_STRAGGLERS";
  if (others == kGpus) text += ", what each has for a GPU";
  if (route == Route::gpu) text += " on GPUs";
  if (route == Route::gpu_by_host) text += " on GPUs, not by NCCL";
  if (kind == Collective::all_reduce || kind == Collective::reduce ||
      kind == Collective::reduce_scatter)
    text += fmt::format(", {}", tutti::name(op));
  if (kind == Collective::send || kind == Collective::recv)
    text += fmt::format(", {} rank {}", kind == Collective::send ? "to" : "from", root);
  else if (root >= 0)
    text += fmt::format(", root {}", root);
  return text;
}

std::string rank_name(int rank, const std::string& address) {
  return address.empty() ? fmt::format("rank {}", rank)
                         : fmt::format("rank {} ({})", rank, address);
}

std::string described(const Description& what, uint64_t number) {
  const std::string details = what.to_string();
  return fmt::format("{} #{}{}", name(what.kind), number,
                     details.empty() ? "" : fmt::format(" ({})", details));
}

std::string seconds(std::chrono::nanoseconds time) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(time).count());
}

std::string ListedTensor::to_string() const {
  if (rank > extents.size()) return fmt::format("{}[{} elements]", tutti::name(dtype), count);
  return fmt::format("{}[{}]", tutti::name(dtype), fmt::join(std::span(extents).first(rank), ", "));
}

std::vector<ListedTensor> listed(std::span<const Piece> pieces, size_t at_most) {
  std::vector<ListedTensor> list;
  for (const Piece& piece : pieces.first(std::min(pieces.size(), at_most))) {
    ListedTensor& tensor = list.emplace_back(
        ListedTensor{.number = piece.number < 0 ? int64_t(list.size()) : piece.number,
                     .count = piece.count,
                     .dtype = piece.dtype,
                     .rank = uint32_t(piece.shape ? piece.shape->rank() : 1),
                     .extents = {piece.count}});
    if (piece.shape && tensor.rank <= tensor.extents.size()) {
      tensor.extents = {};
      std::ranges::copy(*piece.shape, tensor.extents.begin());
    }
  }
  return list;
}

std::string first_difference(const std::string& one, std::vector<ListedTensor> ones,
                             const std::string& other, std::vector<ListedTensor> others) {
  std::ranges::sort(ones, {}, &ListedTensor::number);
  std::ranges::sort(others, {}, &ListedTensor::number);
  const auto differ = [&](const auto& same) -> std::string {
    for (auto a = ones.begin(), b = others.begin(); a != ones.end() || b != others.end();) {
      const bool first = b == others.end() || (a != ones.end() && a->number < b->number);
      if (first || a == ones.end() || b->number < a->number) {
        const ListedTensor& tensor = first ? *a : *b;
        return fmt::format("tensor {} is {} on {} and missing on {}", tensor.number,
                           tensor.to_string(), first ? one : other, first ? other : one);
      }
      if (!same(*a, *b))
        return fmt::format("tensor {} is {} on {} and {} on {}", a->number, a->to_string(), one,
                           b->to_string(), other);
      ++a, ++b;
    }
    return {};
  };
  // Ranks agree on elements; shapes count for the first tensor alone.
  const std::string elements = differ([](const ListedTensor& a, const ListedTensor& b) {
    return a.dtype == b.dtype && a.count == b.count;
  });
  return elements.empty() ? differ(std::equal_to<>{}) : elements;
}

bool are_lists(const Description& one, const Description& other) {
  return one.kind == Collective::all_reduce && other.kind == one.kind && one.route == other.route &&
         one.tensors > 1 && other.tensors > 1;
}

std::string disagreement(uint64_t number, const std::string& one, const Description& ones,
                         const std::string& other, const Description& others,
                         const std::string& difference) {
  const bool in_brief = !difference.empty();
  const std::string text = ones.to_string(in_brief), other_text = others.to_string(in_brief);
  std::string more = in_brief ? "; " + difference : "";
  if (!in_brief && are_lists(ones, others) && text == other_text)
    more = "; the lists differ after their first tensor, or in the replicas that they come from";
  return fmt::format(
      "operation #{}: {} calls {}({}), and {} calls {}({}){}; all ranks of a group must call the "
      "same operations in the same order",
      number, one, name(ones.kind), text, other, name(others.kind), other_text, more);
}

}  // namespace tutti::group
