// SPDX-License-Identifier: Apache-2.0
#include "group/shm/window.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/idle_cores.h"
#include "base/spin.h"
#include "base/world.h"
#include "group/liveness/timing.h"
#include "group/shm/peer_memory.h"

namespace tutti::group {

namespace {

using base::Clock;
using std::chrono::nanoseconds;

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, bool shared) {
  if (base::World* const world = base::world())
    return world->wait(&word, world->now() + timing::kPoll);
  const timespec nap{0, timing::kPoll.count()};
  syscall(SYS_futex, &word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, &nap, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, bool shared) {
  if (base::World* const world = base::world()) return world->wake(&word);
  syscall(SYS_futex, &word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr,
          0);
}

// In a simulated world: until this process is done with the work that it has begun.
void finish_work() {
  if (base::World* const world = base::world()) world->wait(nullptr, world->now());
}

}  // namespace

Window::Window(int rank, Blocks blocks, std::shared_ptr<const PeerMonitor> peers, Pump* pump)
    : rank_(rank),
      blocks_(blocks),
      latch_(blocks_.failure()),
      liveness_(std::move(peers), latch_, pump),
      wait_graph_(rank, blocks_),
      crowded_(liveness_.peers().crowded()),
      separate_processes_(liveness_.peers().separate_processes()),
      least_looks_(2000 + 500 * blocks_.size()),
      unclaimed_(size_t(blocks_.size())) {
  latch_.on_set([this](const FailureLatch::Event&) {
    for (int r = 0; r < size(); ++r)
      for (Slot& slot : blocks_[r].slots) wake(slot.phase, blocks_[r].sleepers);
  });
}

Window::~Window() {
  Block& mine = blocks_[rank_];
  mine.left.store(1);
  for (Slot& slot : mine.slots) wake(slot.phase, mine.sleepers);
  blocks_.gone().fetch_add(1);
}

void Window::begin(const Description& what, Timeouts timeouts, std::span<const Piece> list) {
  liveness_.check_at_start(what, number_ + 1);
  deadline_ = Deadline(timeouts);
  what_ = what;
  list_ = list;
  hash_ = what.hash();
  Block& mine = blocks_[rank_];
  mine.operation.store(++number_, std::memory_order_relaxed);
  mine.descriptions[(phase_ + 1) & 1] = what;
}

void Window::next_phase(uint32_t flag) {
  const uint32_t phase = ++phase_;
  Block& mine = blocks_[rank_];
  Slot& shown = mine.slots[phase & 1];
  shown.flag = flag;
  shown.hash = hash_;
  finish_work();
  // This store comes before `sleepers` is read, so a peer that goes to sleep either sees the phase
  // or is woken.
  shown.phase.store(phase);
  wake(shown.phase, mine.sleepers);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    Slot& other = slot(r, phase);
    if (other.phase.load(std::memory_order_acquire) != phase) {
      Wait wait{other.phase, phase, true, blocks_[r].sleepers, r, what_, number_, deadline_};
      await(wait);
    }
    if (other.hash != hash_) disagree(r);
  }
}

void Window::disagree(int other) {
  // Only the first phase of an operation can bring this, so its description is in this
  // phase's slot.
  const Description& theirs = blocks_[other].descriptions[phase_ & 1];
  const std::string difference = compare_lists(other, theirs);
  const std::string me = liveness_.name(rank_), peer = liveness_.name(other);
  // All ranks report it in the same words, whichever finds it first.
  liveness_.fail(-1, ErrorCode::invalid_argument,
                 rank_ < other ? disagreement(number_, me, what_, peer, theirs, difference)
                               : disagreement(number_, peer, theirs, me, what_, difference));
}

// Every rank disagrees with some other in this phase, so none reads the areas of it any more: they
// are free for the lists.
std::string Window::compare_lists(int other, const Description& theirs) {
  constexpr size_t kMost = kArea / sizeof(ListedTensor);
  if (list_.empty() || !are_lists(what_, theirs)) return {};
  Block &mine = blocks_[rank_], &others = blocks_[other];
  const std::vector<ListedTensor> list = listed(list_, kMost);
  std::memcpy(blocks_.area(rank_, phase_), list.data(), list.size() * sizeof(ListedTensor));
  mine.listed.store(phase_);
  for (const auto until = Clock::now() + timing::kReason; others.listed.load() != phase_;) {
    check();
    if (Clock::now() > until) return {};
    base::sleep_for(timing::kShortPoll);
  }
  std::vector<ListedTensor> shown(std::min<size_t>(theirs.tensors, kMost));
  std::memcpy(shown.data(), blocks_.area(other, phase_), shown.size() * sizeof(ListedTensor));
  const std::string me = liveness_.name(rank_), peer = liveness_.name(other);
  return rank_ < other ? first_difference(me, list, peer, shown)
                       : first_difference(peer, shown, me, list);
}

void Window::wake(std::atomic<uint32_t>& word, const std::atomic<uint32_t>& sleepers) const {
  if (sleepers.load() != 0) futex_wake(word, separate_processes_);
}

bool Window::yield_until(auto over) {
  Clock::time_point before = Clock::now();
  if (before < no_yield_before_.load(std::memory_order_relaxed)) return false;
  for (int i = 0; i < 20; ++i) {
    sched_yield();
    if (over()) return true;
    const Clock::time_point now = Clock::now();
    if (now - before > timing::kLongYield) {
      const Clock::time_point last = no_yield_before_.load(std::memory_order_relaxed);
      const nanoseconds pause = no_yield_for_.load(std::memory_order_relaxed);
      const nanoseconds next =
          now - last < pause * 4 ? std::min(pause * 2, timing::kLongestNoYield) : timing::kNoYield;
      no_yield_for_.store(next, std::memory_order_relaxed);
      no_yield_before_.store(now + next, std::memory_order_relaxed);
      return false;
    }
    before = now;
  }
  return false;
}

// With a core for every rank the other is on its way. Else it may need this core to get there. A
// pause takes longer than a line from another core, so the first looks go without.
bool Window::look(const Wait& wait) {
  constexpr int kFirst = 200, kBeforeYield = 2000, kCrowded = 50, kBackground = 500;
  if (crowded_) {
    for (int i = 0; i < kCrowded; ++i) {
      base::pause();
      if (wait.over()) return true;
    }
    return yield_until([&] { return wait.over(); });
  }
  for (int i = 0; i < kFirst; ++i)
    if (wait.over()) return true;
  const int looks =
      base::is_background_thread() ? kBackground : looks_.load(std::memory_order_relaxed);
  for (int i = 0; i < looks; ++i) {
    base::pause();
    if (wait.over()) return true;
    // Another thread may need this core: if it keeps it for long, this one rather sleeps.
    if (i % kBeforeYield == kBeforeYield - 1) {
      const Clock::time_point before = Clock::now();
      sched_yield();
      if (Clock::now() - before > timing::kLongYield) return wait.over();
    }
  }
  return false;
}

// Sleepers are woken one after the other. Ranks that look for less than that takes would sleep
// every time, once one of them was late: so a rank that slept for a short time looks longer.
void Window::adapt_looks(nanoseconds slept) {
  const int most = std::max(1 << 16, 4 * least_looks_);
  if (crowded_ || base::is_background_thread()) return;
  const int looks = looks_.load(std::memory_order_relaxed);
  looks_.store(slept < timing::kShortSleep ? std::min(2 * looks, most) : least_looks_,
               std::memory_order_relaxed);
}

void Window::await(Wait& wait) {
  if (!base::world() && look(wait)) return;
  const Clock::time_point before = Clock::now();
  wait.deadline.start();
  const WaitGraph::Waiting waiting(wait_graph_, role_of(wait.what.kind), wait.peer);
  while (true) {
    wait.sleepers.fetch_add(1);
    const uint32_t now = wait.word.load();
    if (!wait.over(now)) futex_wait(wait.word, now, separate_processes_);
    wait.sleepers.fetch_sub(1);
    if (wait.over()) return adapt_looks(Clock::now() - before);
    check_wait(wait);
  }
}

void Window::check_loss(const std::string& during, int rank) const {
  liveness_.check_loss(
      during, rank, [&] { return blocks_[rank].left.load() != 0; },
      [&] { return operation_of(rank); });
}

void Window::check_ranks(const std::string& during) const {
  check();  // a published failure comes first
  for (int r = 0; r < size(); ++r)
    if (r != rank_) check_loss(during, r);
  liveness_.check_now(during);
}

void Window::check_wait(Wait& wait) const {
  const std::string during = described(wait.what, wait.number);
  liveness_.check_now(during);  // a rank may have left since the job has failed
  // A rank that left is missed only by ranks that wait for it; it may have done its part before.
  if (blocks_[wait.peer].left.load() && !wait.over()) {
    // What it told the coordination service may come later than the mark in its memory.
    if (const auto reason = liveness_.await_reason())
      liveness_.latch().fail(
          {reason->rank, reason->code, fmt::format("{}: {}", during, reason->text)});
    liveness_.fail_since_left(during, wait.peer, operation_of(wait.peer));
  }
  // The coordination service reports the loss of other ranks. If every rank checked all others, the
  // checks would cost too much.
  check_loss(during, wait.peer);
  if (on_wait_) on_wait_(wait.deadline);
  if (wait.deadline.due() == Deadline::Due::nothing) return;
  const auto is_missing = [&](int r) {
    return wait.until_equal ? slot(r, phase_).phase.load() != phase_ : r == wait.peer;
  };
  const auto missing = [&] {
    LateRanks all;
    for (int r = 0; r < size(); ++r)
      if (is_missing(r)) all.add(wait_graph_.blame(r, liveness_));
    return all;
  };
  // A rank that waits for another host knows better which rank is missing, and fails before.
  nanoseconds slack{};
  for (int r = 0; r < size(); ++r)
    if (is_missing(r) && wait_graph_.waits_elsewhere(r)) slack = timing::kSlackBehindAnother;
  liveness_.check_deadline(wait.deadline, slack, wait.what, wait.number, missing, rank_);
}

void Window::Touch::begin() {
  // This rank stores, then checks; a failing rank publishes, then looks at `touching`. So one of
  // the two notices the other.
  window_.blocks_[window_.rank_].touching.store(1);
  window_.check();
}

void Window::Touch::end() { window_.blocks_[window_.rank_].touching.store(0); }

Window::Touch::~Touch() {
  end();
  if (all_done_) return;
  // Threads soon leave the memory. A process may have been suspended in it.
  const auto limit = Clock::now() + timing::kLetGo;
  for (int r = 0; r < window_.size(); ++r)
    while (r != window_.rank_ && window_.blocks_[r].touching.load() != 0) {
      if (window_.separate_processes_ && Clock::now() > limit) {
        memory_.abandon();
        return;
      }
      base::yield();
    }
}

}  // namespace tutti::group
