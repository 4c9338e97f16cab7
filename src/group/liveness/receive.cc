// SPDX-License-Identifier: Apache-2.0
#include "group/liveness/receive.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tutti::group {

void Receive::expect(DType dtype, size_t bytes) const {
  if (dtype == out_.dtype && bytes == size_t(out_.count) * size_of(out_.dtype)) return;
  liveness_.fail(
      -1, ErrorCode::invalid_argument,
      fmt::format("recv: {} sent {}[{}] with tag {}, and {} expects {}[{}]",
                  liveness_.name(ranks_.sender), tutti::name(dtype), bytes / size_of(dtype), tag_,
                  liveness_.name(ranks_.receiver), tutti::name(out_.dtype), out_.count));
}

bool Receive::take_early() {
  const auto found = std::ranges::find(early_, tag_, &EarlyMessage::tag);
  if (found == early_.end()) return false;
  expect(found->dtype, found->data.size());
  if (!found->data.empty()) std::memcpy(out_.data, found->data.data(), found->data.size());
  early_.erase(found);
  return true;
}

std::byte* Receive::begin(int64_t tag, DType dtype, size_t bytes) {
  next_ = {tag, dtype, {}};
  if (tag == tag_) {
    expect(dtype, bytes);
    return static_cast<std::byte*>(out_.data);
  }
  next_.data.resize(bytes);
  return next_.data.data();
}

bool Receive::end() {
  if (next_.tag == tag_) return true;
  early_.push_back(std::move(next_));
  return false;
}

}  // namespace tutti::group
