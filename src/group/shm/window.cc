#include "group/shm/window.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "base/spin.h"

namespace tutti::group {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

// How long a sleeper sleeps before it looks whether all others are still there.
constexpr nanoseconds kNap = std::chrono::milliseconds(20);
// How long the job may take to tell why a process ended that is gone, and a rank to show its list.
constexpr nanoseconds kReason = std::chrono::milliseconds(300);

// Who yields to a thread that computes gets the core back only when that one's slice is over; who
// sleeps gets it back when woken. So a yield of this length is the last one for a while: a short
// one, since it may have been a hiccup, and twice as long each time that it is no better after it.
constexpr nanoseconds kLongYield = std::chrono::microseconds(500);
constexpr nanoseconds kNoYield = std::chrono::milliseconds(1);
constexpr nanoseconds kLongestNoYield = std::chrono::milliseconds(128);

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, bool shared) {
  const timespec nap{0, kNap.count()};
  syscall(SYS_futex, &word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, &nap, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, bool shared) {
  syscall(SYS_futex, &word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr,
          0);
}

// Of the three things that a rank may do at once.
size_t role_of(Collective kind) {
  return kind == Collective::send ? 1 : kind == Collective::recv ? 2 : 0;
}

}  // namespace

std::string overdue(Waiting& waiting, const Description& what, uint64_t number,
                    const std::function<std::string()>& missing) {
  const Patience& patience = waiting.patience;
  const nanoseconds waited = waiting.waited->elapsed();
  const bool over = patience.timeout.count() && waited - patience.slack >= patience.timeout;
  const bool warn = patience.warn_after.count() && waited >= patience.warn_after && !waiting.warned;
  if (!over && !warn) return {};
  const std::string who = missing();
  if (who.empty()) return {};
  if (over)
    return fmt::format("{}: waited {} for {}", described(what, number), seconds(patience.timeout),
                       who);
  waiting.warned = true;
  base::log(base::LogLevel::warning,
            fmt::format("{}: has waited {} for {}", described(what, number), seconds(waited), who));
  return {};
}

// Something that another rank will do: `word` leaves `value` (sends, receives) or becomes it
// (phases).
struct Window::Wait {
  std::atomic<uint32_t>& word;
  uint32_t value;
  bool until_equal;
  std::atomic<uint32_t>& sleepers;
  int peer;
  const Description& what;
  uint64_t number;
  Waiting& waiting;

  bool over(uint32_t now) const { return (now == value) == until_equal; }
};

Window::Window(int rank, std::vector<Block*> blocks, std::shared_ptr<const Members> members)
    : rank_(rank),
      blocks_(std::move(blocks)),
      members_(std::move(members)),
      crowded_(members_->crowded()),
      alarm_(members_->alarm()),
      unclaimed_(blocks_.size()) {}

Window::~Window() {
  Block& mine = *blocks_[size_t(rank_)];
  mine.left.store(1);
  for (Slot& slot : mine.slots) wake(slot.phase, mine.sleepers);
  for (Block* block : blocks_) block->gone.fetch_add(1);
}

void Window::begin(const Description& what, Patience patience, std::span<const Piece> list) {
  if (blocks_[0]->poison.state.load(std::memory_order_relaxed) != 0) check();
  waiting_ = {patience};
  what_ = what;
  list_ = list;
  hash_ = what.hash();
  if (alarm_ && alarm_->load(std::memory_order_relaxed))
    if (const auto failure = members_->failure())
      fail(failure->code, fmt::format("{}: {}", described(what, number_ + 1), failure->text));
  Block& mine = *blocks_[size_t(rank_)];
  mine.operation.store(++number_, std::memory_order_relaxed);
  mine.descriptions[(phase_ + 1) & 1] = what;
}

void Window::meet(uint32_t flag) {
  const uint32_t phase = ++phase_;
  Block& mine = *blocks_[size_t(rank_)];
  Slot& shown = mine.slots[phase & 1];
  shown.flag = flag;
  shown.hash = hash_;
  shown.phase.store(phase);  // before sleepers is read: who sleeps has seen it, or is seen
  if (mine.sleepers.load() != 0) wake(shown.phase, mine.sleepers);
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    Slot& other = slot(r, phase);
    if (other.phase.load(std::memory_order_acquire) != phase) {
      Wait wait{other.phase, phase, true,    blocks_[size_t(r)]->sleepers,
                r,           what_, number_, waiting_};
      await(wait);
    }
    if (other.hash != hash_) disagree(r);
  }
}

void Window::disagree(int other) {
  // Only the first phase of an operation can bring this, so its description is in this phase's
  // place.
  const Description& theirs = blocks_[size_t(other)]->descriptions[phase_ & 1];
  const std::string difference = compare_lists(other, theirs);
  // All ranks say it in the same way, whoever finds it first.
  const bool first = rank_ < other;
  fail(ErrorCode::invalid_argument,
       first ? disagreement(number_, name_of(rank_), what_, name_of(other), theirs, difference)
             : disagreement(number_, name_of(other), theirs, name_of(rank_), what_, difference));
}

// Every rank disagrees with some other in this phase, so none reads the areas of it any more: they
// are free for the lists.
std::string Window::compare_lists(int other, const Description& theirs) {
  constexpr size_t kMost = kArea / sizeof(ListedTensor);
  if (list_.empty() || !are_lists(what_, theirs)) return {};
  Block &mine = *blocks_[size_t(rank_)], &others = *blocks_[size_t(other)];
  const std::vector<ListedTensor> list = listed(list_, kMost);
  std::memcpy(mine.areas[phase_ & 1], list.data(), list.size() * sizeof(ListedTensor));
  mine.listed.store(phase_);
  for (const auto until = Clock::now() + kReason; others.listed.load() != phase_;) {
    check();
    if (Clock::now() > until) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::vector<ListedTensor> shown(std::min<size_t>(theirs.tensors, kMost));
  std::memcpy(shown.data(), others.areas[phase_ & 1], shown.size() * sizeof(ListedTensor));
  return rank_ < other ? first_difference(name_of(rank_), list, name_of(other), shown)
                       : first_difference(name_of(other), shown, name_of(rank_), list);
}

void Window::wake(std::atomic<uint32_t>& word, const std::atomic<uint32_t>& sleepers) const {
  if (sleepers.load() != 0) futex_wake(word, members_->separate_processes());
}

bool Window::yield_until(auto over) {
  Clock::time_point before = Clock::now();
  if (before < no_yield_before_.load(std::memory_order_relaxed)) return false;
  for (int i = 0; i < 20; ++i) {
    sched_yield();
    if (over()) return true;
    const Clock::time_point now = Clock::now();
    if (now - before > kLongYield) {
      const Clock::time_point last = no_yield_before_.load(std::memory_order_relaxed);
      const nanoseconds pause = no_yield_for_.load(std::memory_order_relaxed);
      const nanoseconds next =
          now - last < pause * 4 ? std::min(pause * 2, kLongestNoYield) : kNoYield;
      no_yield_for_.store(next, std::memory_order_relaxed);
      no_yield_before_.store(now + next, std::memory_order_relaxed);
      return false;
    }
    before = now;
  }
  return false;
}

void Window::await(Wait& wait) {
  const auto over = [&] { return wait.over(wait.word.load(std::memory_order_acquire)); };
  // With a core for every rank the other is on its way. Else it may need this core to get there.
  // A pause takes longer than a line from another core, so the first looks go without.
  for (int i = crowded_ ? 0 : 200; i > 0; --i)
    if (over()) return;
  for (int i = crowded_ ? 50 : 2000; i > 0; --i) {
    base::pause();
    if (over()) return;
  }
  if (crowded_ && yield_until(over)) return;
  if (!wait.waiting.waited) wait.waiting.waited.emplace();
  struct Awaiting {
    std::atomic<uint32_t>& peer;
    ~Awaiting() { peer.store(0); }
  } awaiting{blocks_[size_t(rank_)]->awaited[role_of(wait.what.kind)]};
  awaiting.peer.store(uint32_t(wait.peer) + 1);
  while (true) {
    wait.sleepers.fetch_add(1);
    const uint32_t now = wait.word.load();
    if (!wait.over(now)) futex_wait(wait.word, now, members_->separate_processes());
    wait.sleepers.fetch_sub(1);
    if (over()) return;
    look_around(wait);
  }
}

void Window::check_ranks(const std::string& during) {
  check();  // a published error comes first
  for (int r = 0; r < size(); ++r) {
    if (r == rank_ || blocks_[size_t(r)]->left.load()) continue;
    const std::string loss = members_->loss(r);
    if (loss.empty()) continue;
    check();  // the lost one may have said why before it went
    if (blocks_[size_t(r)]->left.load()) continue;
    // Or it may have told the coordination service, which also knows soon if it did not.
    std::optional<cluster::Failure> failure = members_->failure();
    for (const auto until = Clock::now() + kReason; alarm_ && !failure && Clock::now() < until;
         failure = members_->failure())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!failure || failure->code != ErrorCode::aborted)
      fail(ErrorCode::unavailable,
           fmt::format("{}: {} {}; {}", during, name_of(r), loss, progress(r)));
  }
  if (const auto failure = members_->failure())
    fail(failure->code, fmt::format("{}: {}", during, failure->text));
}

void Window::look_around(Wait& wait) {
  check();  // a published error comes first
  const auto still_missing = [&] { return !wait.over(wait.word.load(std::memory_order_acquire)); };
  // Who left is missed only by those who wait for it; it may have done its part before.
  if (blocks_[size_t(wait.peer)]->left.load() && still_missing())
    fail(ErrorCode::unavailable,
         fmt::format("{}: {} has left the group; {}", described(wait.what, wait.number),
                     name_of(wait.peer), progress(wait.peer)));
  check_ranks(described(wait.what, wait.number));
  const auto is_missing = [&](int r) {
    return wait.until_equal ? slot(r, phase_).phase.load() != phase_ : r == wait.peer;
  };
  const auto missing = [&] {
    std::vector<std::string> who;
    for (int r = 0; r < size(); ++r)
      if (is_missing(r)) who.push_back(blame(r));
    return fmt::format("{}", fmt::join(who, ", and for "));
  };
  // Who waits for another host knows better who is missing, and says so before.
  wait.waiting.patience.slack = {};
  for (int r = 0; r < size(); ++r)
    if (is_missing(r) && waits_elsewhere(r)) wait.waiting.patience.slack = kSlackBehindAnother;
  if (const std::string text = overdue(wait.waiting, wait.what, wait.number, missing);
      !text.empty())
    fail(ErrorCode::deadline_exceeded, text);
}

std::string Window::name_of(int rank) const {
  const std::string address = members_->address(rank);
  const int number = members_->number(rank);
  return address.empty() ? fmt::format("rank {}", number)
                         : fmt::format("rank {} ({})", number, address);
}

std::string Window::progress(int rank) const {
  const uint64_t at = blocks_[size_t(rank)]->operation.load();
  const int number = members_->number(rank);
  return at == 0 ? fmt::format("rank {} has not begun any operation", number)
                 : fmt::format("rank {} is at #{}", number, at);
}

int Window::awaited_by(int rank) const {
  const auto peer = [&](Collective kind) {
    return int(blocks_[size_t(rank)]->awaited[role_of(kind)].load()) - 1;
  };
  // Who is stopped may have what it was waiting for.
  if (const int to = peer(Collective::send); to >= 0) {
    const Channel& channel = this->channel(rank, to);
    if (channel.written.load() - channel.taken.load() == 2) return to;
  }
  if (const int from = peer(Collective::recv); from >= 0) {
    const Channel& channel = this->channel(from, rank);
    if (channel.written.load() == channel.taken.load()) return from;
  }
  if (const int other = peer(Collective::barrier); other >= 0) {
    const auto shown = [&](int r) {
      const uint32_t a = slot(r, 0).phase.load(), b = slot(r, 1).phase.load();
      return int32_t(a - b) > 0 ? a : b;
    };
    if (int32_t(shown(other) - shown(rank)) < 0) return other;
  }
  return -1;
}

bool Window::waits_elsewhere(int rank) const {
  for (int steps = 0; steps < size(); ++steps) {
    const Block& block = *blocks_[size_t(rank)];
    const bool is_alive =
        Clock::now().time_since_epoch() - nanoseconds(block.elsewhere_at.load()) < kSilence;
    for (const std::atomic<uint32_t>& awaited : block.awaited)
      if (awaited.load() == Block::kElsewhere && is_alive) return true;
    rank = awaited_by(rank);
    if (rank < 0) return false;
  }
  return false;
}

Window::Elsewhere::Elsewhere(Window* window, Collective kind)
    : block_(window ? window->blocks_[size_t(window->rank_)] : nullptr), role_(role_of(kind)) {
  say();
  if (block_) block_->awaited[role_].store(Block::kElsewhere);
}

Window::Elsewhere::~Elsewhere() {
  if (block_) block_->awaited[role_].store(0);
}

void Window::Elsewhere::say() {
  if (block_) block_->elsewhere_at.store(nanoseconds(Clock::now().time_since_epoch()).count());
}

std::string Window::blame(int rank) const {
  std::string text = name_of(rank);
  std::vector<bool> named(blocks_.size());
  named[size_t(rank)] = true;
  for (int next; (next = awaited_by(rank)) >= 0 && !named[size_t(next)]; rank = next) {
    named[size_t(next)] = true;
    text += fmt::format(", which waits for {}", name_of(next));
  }
  return fmt::format("{}; {}", text, progress(rank));
}

void Window::poison(ErrorCode code, const std::string& text) {
  Poison& poison = blocks_[0]->poison;
  uint32_t none = 0;
  if (!poison.state.compare_exchange_strong(none, 1)) return;
  poison.code = code;
  const size_t bytes = std::min(text.size(), sizeof(poison.text) - 1);
  std::memcpy(poison.text, text.data(), bytes);
  poison.text[bytes] = 0;
  poison.state.store(2);
  for (Block* block : blocks_)
    for (Slot& slot : block->slots) wake(slot.phase, block->sleepers);
}

void Window::fail(ErrorCode code, const std::string& text) {
  poison(code, text);
  check();
  throw_error(code, text);  // whoever was first died while writing it
}

void Window::check() const {
  const Poison& poison = blocks_[0]->poison;
  if (poison.state.load(std::memory_order_acquire) == 0) return;
  // Whoever writes it is about to be done, unless it dies in between.
  const auto limit = Clock::now() + std::chrono::milliseconds(100);
  while (poison.state.load(std::memory_order_acquire) == 1)
    if (Clock::now() > limit)
      throw UnavailableError("the group has failed, and the rank that said so died saying it");
  throw_error(poison.code, poison.text);
}

void Window::Touch::begin() {
  // First this, then the look: whoever fails looks in the other order, so one of us sees the other.
  window_.blocks_[size_t(window_.rank_)]->touching.store(1);
  window_.check();
}

void Window::Touch::end() { window_.blocks_[size_t(window_.rank_)]->touching.store(0); }

Window::Touch::~Touch() {
  end();
  if (all_done_) return;
  // Threads finish what they are at. A process may have been stopped.
  const auto limit = Clock::now() + std::chrono::milliseconds(200);
  for (int r = 0; r < window_.size(); ++r)
    while (r != window_.rank_ && window_.blocks_[size_t(r)]->touching.load() != 0) {
      if (window_.members_->separate_processes() && Clock::now() > limit) {
        window_.members_->abandon_memory();
        return;
      }
      sched_yield();
    }
}

void Window::send(const Description& what, const detail::Memory& in, int64_t tag,
                  Patience patience) {
  ++sent_;
  check();
  Waiting waiting{patience};
  Channel& channel = this->channel(rank_, what.root);
  const auto* from = static_cast<const std::byte*>(in.data);
  const size_t bytes = size_t(in.count) * size_of(in.dtype);
  size_t at = 0;
  do {
    const uint32_t number = channel.written.load(std::memory_order_relaxed);
    const uint32_t full = number - 2;  // both packets are on their way while this many are taken
    if (channel.taken.load(std::memory_order_acquire) == full) {
      Wait wait{channel.taken, full, false, channel.sleepers, what.root, what, sent_, waiting};
      await(wait);
    }
    Packet& packet = channel.packets[number & 1];
    const size_t now = std::min(bytes - at, kPacket);
    packet.tag = tag;
    packet.bytes = bytes;
    packet.dtype = in.dtype;
    if (now) std::memcpy(packet.data, from + at, now);
    channel.written.store(number + 1);
    wake(channel.written, channel.sleepers);
    at += now;
  } while (at < bytes);
}

void Window::recv(const Description& what, const detail::Memory& out, int64_t tag,
                  Patience patience) {
  ++received_;
  check();
  Waiting waiting{patience};
  const int peer = what.root;
  const size_t bytes = size_t(out.count) * size_of(out.dtype);
  const auto expect = [&](DType dtype, size_t sent) {
    if (dtype == out.dtype && sent == bytes) return;
    fail(ErrorCode::invalid_argument,
         fmt::format("recv: {} sent {}[{}] with tag {}, and {} expects {}[{}]", name_of(peer),
                     tutti::name(dtype), sent / size_of(dtype), tag, name_of(rank_),
                     tutti::name(out.dtype), out.count));
  };
  std::vector<Message>& early = unclaimed_[size_t(peer)];
  const auto found = std::ranges::find(early, tag, &Message::tag);
  if (found != early.end()) {
    expect(found->dtype, found->data.size());
    if (bytes) std::memcpy(out.data, found->data.data(), bytes);
    early.erase(found);
    return;
  }
  Channel& channel = this->channel(peer, rank_);
  for (bool mine = false; !mine;) {
    // One message, packet by packet: into `out`, or aside where it is another's turn.
    Message aside{};
    size_t at = 0, whole = 0;
    do {
      const uint32_t number = channel.taken.load(std::memory_order_relaxed);
      if (channel.written.load(std::memory_order_acquire) == number) {
        Wait wait{channel.written, number, false, channel.sleepers, peer, what, received_, waiting};
        await(wait);
      }
      const Packet& packet = channel.packets[number & 1];
      if (at == 0) {
        whole = packet.bytes;
        mine = packet.tag == tag;
        if (mine)
          expect(packet.dtype, whole);
        else
          aside = {packet.tag, packet.dtype, std::vector<std::byte>(whole)};
      }
      const size_t now = std::min(whole - at, kPacket);
      std::byte* const to = mine ? static_cast<std::byte*>(out.data) : aside.data.data();
      if (now) std::memcpy(to + at, packet.data, now);
      channel.taken.store(number + 1);
      wake(channel.taken, channel.sleepers);
      at += now;
    } while (at < whole);
    if (!mine) early.push_back(std::move(aside));
  }
}

}  // namespace tutti::group
