// SPDX-License-Identifier: Apache-2.0
// One recv, matched by tag with the messages of its sender.
#pragma once

#include <cstddef>
#include <vector>

#include "group/liveness/liveness.h"

namespace tutti::group {

// A message that came before a recv asked for its tag.
struct EarlyMessage {
  int64_t tag;
  DType dtype;
  std::vector<std::byte> data;
};

// Messages with one tag arrive in the order in which they were sent. Not thread-safe.
class Receive {
 public:
  struct Ranks {
    int sender, receiver;
  };
  // `early`: those of this sender. A recv takes one of them, or adds to them.
  Receive(const Liveness& liveness, Ranks ranks, const detail::Memory& out, int64_t tag,
          std::vector<EarlyMessage>& early)
      : liveness_(liveness), ranks_(ranks), out_(out), tag_(tag), early_(early) {}

  // Whether the message was among the early ones.
  bool take_early();
  // Where the data of the next message goes: to the caller if it has the tag, else aside. Fails if
  // the caller expects another type or size.
  std::byte* begin(int64_t tag, DType dtype, size_t bytes);
  // The data is there. Whether it was the caller's.
  bool end();

 private:
  void expect(DType dtype, size_t bytes) const;

  const Liveness& liveness_;
  const Ranks ranks_;
  const detail::Memory& out_;
  const int64_t tag_;
  std::vector<EarlyMessage>& early_;
  EarlyMessage next_{};  // its data stays empty if it goes to the caller
};

}  // namespace tutti::group
