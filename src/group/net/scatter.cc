// SPDX-License-Identifier: Apache-2.0
#include "group/net/collectives.h"

namespace tutti::group {

void NetworkCollectives::scatter(const GroupCall& call) {
  const size_t bytes = size_in_bytes(call.out);
  std::byte* const out = bytes_of(call.out.data);
  const auto part = [&](int peer) {
    return bytes_of(static_cast<const void*>(call.in.data)) + size_t(peer) * bytes;
  };
  const size_t all = bytes * all_ranks_.size();
  way_ = way_of(call.kind, {bytes, all});
  if (way_ == Way::rounds)
    return copy_bytes(out, share(call.in.data, all, call.root) + size_t(channels_.rank()) * bytes,
                      bytes);
  const auto target = [&](int) { return out; };
  if (!is_root(call)) return exchange(bytes, {}, part, {&call.root, 1}, target);
  exchange(bytes, others(), part, {}, target);
  copy_bytes(out, part(call.root), bytes);
}

}  // namespace tutti::group
