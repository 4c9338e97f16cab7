#include "job/clocks.h"

#include <chrono>
#include <limits>

namespace tutti::group {

namespace {

// The first ones open connections; of the rest, one is likely not to be held up.
constexpr int kRounds = 20;

void pass(Backend& group, Collective kind, int64_t& value, int peer, Patience patience) {
  const Description what{.kind = kind, .dtype = DType::int64, .root = peer, .extents = {1}};
  const detail::Memory memory{&value, 1, DType::int64};
  group.run(what, {.kind = kind, .in = memory, .out = memory, .root = peer}, patience);
}

}  // namespace

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

ClockDifference ask_clock(Backend& group, int peer, Patience patience, const ClockFunction& now) {
  ClockDifference best{0, std::numeric_limits<int64_t>::max()};
  for (int i = 0; i < kRounds; ++i) {
    int64_t theirs = 0;
    const int64_t before = now();
    pass(group, Collective::send, theirs, peer, patience);
    pass(group, Collective::recv, theirs, peer, patience);
    const int64_t after = now();
    // They looked some time in between.
    const int64_t half = (after - before + 1) / 2;
    if (half < best.error_ns) best = {theirs - (before + half), half};
  }
  return best;
}

void answer_clock(Backend& group, int peer, Patience patience, const ClockFunction& now) {
  for (int i = 0; i < kRounds; ++i) {
    int64_t value = 0;
    pass(group, Collective::recv, value, peer, patience);
    value = now();
    pass(group, Collective::send, value, peer, patience);
  }
}

}  // namespace tutti::group
