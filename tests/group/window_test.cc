// SPDX-License-Identifier: Apache-2.0
// Phases in the memory that ranks of a host share.
#include "group/shm/window.h"

#include <thread>

#include "group/secluded.h"
#include "support/expect.h"

namespace tutti::group {
namespace {

using namespace std::chrono_literals;

constexpr Description kBarrier{.kind = Collective::barrier};

class WindowTest : public ::testing::Test {
 protected:
  WindowTest() {
    for (int r = 0; r < 2; ++r) windows.push_back(std::make_unique<Window>(r, blocks, commons));
  }
  // f(window) on a thread for each rank.
  template <class F>
  void on_both(const F& f) {
    std::thread other([&] { f(*windows[1]); });
    f(*windows[0]);
    other.join();
  }

  const std::shared_ptr<testing::Commons> commons =
      std::make_shared<testing::Commons>(testing::Seclusion{});
  const std::shared_ptr<void> memory = commons->allocate(Blocks::bytes(2));
  const Blocks blocks{memory.get(), 2};
  std::vector<std::unique_ptr<Window>> windows;
};

TEST_F(WindowTest, ShowsWhatAllRanksWroteInAPhase) {
  on_both([](Window& window) {
    for (const size_t bytes : {size_t{4}, sizeof(Slot::few), sizeof(Slot::few) + 1, kArea})
      for (uint8_t phase = 1; phase < 6; ++phase) {
        window.begin(kBarrier, {10s, 0s});
        std::memset(window.mine(bytes), 10 * phase + window.rank(), bytes);
        window.next_phase(phase);
        const int other = 1 - window.rank();
        EXPECT_EQ(window.flag(other), phase);
        EXPECT_EQ(window.shown(other, bytes)[0], std::byte(10 * phase + other));
        EXPECT_EQ(window.shown(other, bytes)[bytes - 1], std::byte(10 * phase + other));
      }
  });
}

TEST_F(WindowTest, NamesTheRankThatDoesNotCome) {
  windows[0]->begin(kBarrier, {50ms, 0s});
  EXPECT_ERROR(DeadlineExceededError,
               "barrier #1: waited 0.05 s for rank 1 (host:5001); rank 1 has not begun any "
               "operation",
               windows[0]->next_phase());
  EXPECT_ERROR(DeadlineExceededError, "barrier #1", windows[1]->begin(kBarrier, {10s, 0s}));
}

TEST_F(WindowTest, WakesARankThatSleepsWhenTheGroupFails) {
  std::thread other([&] {
    while (blocks[0].sleepers.load() + blocks[1].sleepers.load() == 0) std::this_thread::yield();
    windows[1]->latch().set({1, ErrorCode::aborted, "rank 1 gives up"});
  });
  windows[0]->begin(kBarrier, {60s, 0s});
  EXPECT_ERROR(AbortedError, "rank 1 gives up", windows[0]->next_phase());
  other.join();
}

TEST_F(WindowTest, BlamesTheRankAtTheEndOfAChain) {
  const Liveness liveness(commons, windows[0]->latch(), nullptr);
  const WaitGraph& graph = windows[0]->wait_graph();
  blocks[0].slots[1].phase = 1;  // rank 0 is ahead, and waits
  blocks[0].operation = 1;
  const WaitGraph::Waiting waiting(graph, Role::collective, 1);
  const LateRanks late = graph.blame(0, liveness);
  EXPECT_EQ(late.names,
            "rank 0 (host:5000), which waits for rank 1 (host:5001); rank 1 has not begun any "
            "operation");
  EXPECT_EQ(late.culprit, 1);
  EXPECT_FALSE(graph.waits_elsewhere(0));
  const WaitGraph::WaitingElsewhere elsewhere(&windows[1]->wait_graph(), Role::recv);
  EXPECT_TRUE(graph.waits_elsewhere(0));
}

}  // namespace
}  // namespace tutti::group
