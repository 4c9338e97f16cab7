// SPDX-License-Identifier: Apache-2.0
#include "group/shm/wait_graph.h"

#include <fmt/format.h>

#include "base/world.h"
#include "group/liveness/timing.h"

namespace tutti::group {

namespace {

using base::Clock;
using std::chrono::nanoseconds;

}  // namespace

WaitGraph::WaitingElsewhere::WaitingElsewhere(const WaitGraph* graph, Role role)
    : graph_(graph), role_(role) {
  announce();
  if (graph_) graph_->awaited(role_).store(Block::kElsewhere);
}

WaitGraph::WaitingElsewhere::~WaitingElsewhere() {
  if (graph_) graph_->awaited(role_).store(0);
}

void WaitGraph::WaitingElsewhere::announce() {
  if (graph_)
    graph_->blocks_[graph_->rank_].elsewhere_at.store(
        nanoseconds(Clock::now().time_since_epoch()).count());
}

int WaitGraph::awaited_by(int rank) const {
  const auto peer = [&](Role role) { return int(blocks_[rank].awaited[size_t(role)].load()) - 1; };
  // A rank that is stopped may have got what it was waiting for.
  if (const int to = peer(Role::send); to >= 0) {
    const Channel& channel = blocks_.channel(rank, to);
    if (channel.written.load() - channel.taken.load() == 2) return to;
  }
  if (const int from = peer(Role::recv); from >= 0) {
    const Channel& channel = blocks_.channel(from, rank);
    if (channel.written.load() == channel.taken.load()) return from;
  }
  if (const int other = peer(Role::collective); other >= 0) {
    const auto shown = [&](int r) {
      const Slot* const slots = blocks_[r].slots;
      const uint32_t a = slots[0].phase.load(), b = slots[1].phase.load();
      return int32_t(a - b) > 0 ? a : b;
    };
    if (int32_t(shown(other) - shown(rank)) < 0) return other;
  }
  return -1;
}

bool WaitGraph::waits_elsewhere(int rank) const {
  for (int steps = 0; steps < blocks_.size(); ++steps) {
    const Block& block = blocks_[rank];
    const bool announces =
        Clock::now().time_since_epoch() - nanoseconds(block.elsewhere_at.load()) <
        timing::kPresumedSuspended;
    for (const std::atomic<uint32_t>& awaited : block.awaited)
      if (awaited.load() == Block::kElsewhere && announces) return true;
    rank = awaited_by(rank);
    if (rank < 0) return false;
  }
  return false;
}

LateRanks WaitGraph::blame(int rank, const Liveness& liveness) const {
  std::string text = liveness.name(rank);
  std::vector<bool> named(size_t(blocks_.size()));
  named[size_t(rank)] = true;
  for (int next; (next = awaited_by(rank)) >= 0 && !named[size_t(next)]; rank = next) {
    named[size_t(next)] = true;
    text += fmt::format(", which waits for {}", liveness.name(next));
  }
  const std::string progress = liveness.progress(rank, blocks_[rank].operation.load());
  return {fmt::format("{}; {}", text, progress), rank};
}

}  // namespace tutti::group
