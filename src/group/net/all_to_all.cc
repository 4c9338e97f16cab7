// SPDX-License-Identifier: Apache-2.0
#include "group/net/collectives.h"

namespace tutti::group {

void NetworkCollectives::all_to_all(const GroupCall& call) {
  const size_t all_bytes = size_in_bytes(call.in), bytes = all_bytes / size_t(channels_.size());
  const std::byte* source = bytes_of(static_cast<const void*>(call.in.data));
  std::vector<std::byte> copy;
  if (call.in.data == call.out.data) {
    copy.assign(source, source + all_bytes);
    source = copy.data();
  }
  const auto part = [&](int peer) { return source + size_t(peer) * bytes; };
  const auto target = [&](int peer) { return bytes_of(call.out.data) + size_t(peer) * bytes; };
  way_ = way_of(call.kind, {bytes, all_bytes});
  exchange(bytes, others(), part, others(), target);
  copy_bytes(target(channels_.rank()), part(channels_.rank()), bytes);
}

}  // namespace tutti::group
