#include "group/net/wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/log.h"
#include "base/spin.h"

namespace tutti::group {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How often somebody who waits looks whether all others are still there.
constexpr nanoseconds kLook = milliseconds(20);
// A connection that breaks, or a rank that leaves, may be followed by the reason.
constexpr nanoseconds kReason = milliseconds(300);
// A message on its way gets so long to arrive from a rank that has left.
constexpr nanoseconds kLast = milliseconds(500);

// Who is about to give up on another says so this long before, and again and again: who waits for
// it in turn knows then that it is not the culprit.
constexpr nanoseconds kBefore = std::chrono::seconds(2);
constexpr nanoseconds kAgain = milliseconds(100);

// Who disagrees with one rank hears the others, too, before it says so; not all may be coming.
constexpr nanoseconds kSettle = milliseconds(500);

// Tensors of a list that ranks show each other when their lists differ: in a notice, and in all.
constexpr size_t kListedAtOnce = 64, kMostListed = 4096;

constexpr size_t kData = 128;  // where a greeting's data begins

Waiting waiting_between_hosts(Patience patience) {
  patience.slack = kSlackBetweenHosts;
  return {patience};
}

}  // namespace

struct Wire::Greeting {
  uint64_t number;
  uint64_t hash;
  Description what;
};

// Before a message between two ranks.
struct Wire::Head {
  int64_t tag;
  uint64_t bytes;
  DType dtype;
};

Wire::Wire(WireGroup group, std::shared_ptr<Network> network,
           std::shared_ptr<const Members> members, Window* window)
    : group_(std::move(group)),
      network_(std::move(network)),
      transport_(network_->transport()),
      members_(std::move(members)),
      window_(window),
      crowded_(members_->crowded()),
      alarm_(members_->alarm()),
      greetings_(std::make_unique_for_overwrite<std::byte[]>(2 * group_.ranks.size() *
                                                             (kData + kMostTold))),
      left_(group_.ranks.size()),
      waits_(group_.ranks.size()),
      lists_(group_.ranks.size()),
      heard_(group_.ranks.size()),
      unclaimed_(group_.ranks.size()) {
  static_assert(sizeof(Greeting) <= kData);
  network_->add(group_.id, this);
}

Wire::~Wire() {
  network_->remove(group_.id);
  if (has_lost_memory()) static_cast<void>(greetings_.release());
  tell_all({.group = group_.id, .kind = Network::Notice::Kind::farewell});
  transport_.progress();
}

void Wire::tell_all(const Network::Notice& notice) {
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank()) network_->tell(outer(peer), notice);
}

void Wire::hear(int from, const Network::Notice& notice) {
  const auto found = std::ranges::find(group_.ranks, from);
  if (found == group_.ranks.end()) return;
  const size_t peer = size_t(found - group_.ranks.begin());
  std::lock_guard lock(mutex_);
  if (notice.kind == Network::Notice::Kind::farewell) {
    left_[peer] = Clock::now();
  } else if (notice.kind == Network::Notice::Kind::waiting) {
    waits_[peer] = notice.culprit == outer(rank()) ? std::nullopt : std::optional(Clock::now());
  } else if (notice.kind == Network::Notice::Kind::list) {
    const size_t more = notice.text.size() / sizeof(ListedTensor), before = lists_[peer].size();
    if (before + more > kMostListed) return;
    lists_[peer].resize(before + more);
    std::memcpy(lists_[peer].data() + before, notice.text.data(), more * sizeof(ListedTensor));
  } else if (!poison_) {
    poison_ = {notice.culprit, notice.code, notice.text};
    poisoned_.store(true);
    if (window_) window_->poison(notice.code, notice.text);
  }
}

void Wire::begin(const Description& what, Patience patience, std::span<const Piece> list) {
  network_->listen();  // the first error is the last, for who comes late, too
  check();
  waiting_ = waiting_between_hosts(patience);
  what_ = what;
  list_ = list;
  ++number_;
  if (alarm_ && alarm_->load(std::memory_order_relaxed))
    if (const auto failure = members_->failure())
      fail(failure->code, fmt::format("{}: {}", described(what, number_), failure->text));
}

std::byte* Wire::greeting_to(int peer) const {
  return greetings_.get() + 2 * size_t(peer) * (kData + kMostTold);
}
std::byte* Wire::greeting_from(int peer) const { return greeting_to(peer) + kData + kMostTold; }
const std::byte* Wire::told(int peer) const { return greeting_from(peer) + kData; }
std::byte* Wire::to_tell(int peer) const { return greeting_to(peer) + kData; }

Wire::Greetings::Greetings(Wire& wire, std::span<const int> peers, std::span<const size_t> bytes)
    : wire_(wire), peers_(peers), hash_(wire.what_.hash()), flight_(wire) {
  const Greeting greeting{wire.number_, hash_, wire.what_};
  // Others wait for these.
  for (size_t i = 0; i < peers.size(); ++i) {
    std::memcpy(wire.greeting_to(peers[i]), &greeting, sizeof(greeting));
    flight_.send(peers[i], Lane::greeting, wire.greeting_to(peers[i]),
                 kData + (bytes.empty() ? 0 : bytes[i]));
  }
  for (const int peer : peers) std::memset(wire.greeting_from(peer), 0, sizeof(Greeting));
  for (const int peer : peers)
    flight_.receive(peer, Lane::greeting, wire.greeting_from(peer), kData + kMostTold);
}

void Wire::Greetings::finish() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    flight_.wait(peers_.size() + i);
    Greeting theirs;
    std::memcpy(&theirs, wire_.greeting_from(peers_[i]), sizeof(theirs));
    wire_.heard_[size_t(peers_[i])].store(theirs.number, std::memory_order_relaxed);
    if (theirs.hash == hash_ && theirs.number == wire_.number_) continue;
    // With all greetings, all ranks name the same two.
    flight_.settle(kSettle);
    wire_.disagree(peers_);
  }
  flight_.wait_all();
}

void Wire::disagree(std::span<const int> peers) {
  std::map<int, Greeting> all{{rank(), {number_, what_.hash(), what_}}};
  for (const int peer : peers) {
    Greeting theirs;
    std::memcpy(&theirs, greeting_from(peer), sizeof(theirs));
    if (theirs.number) all[peer] = theirs;
  }
  const auto one = all.begin();
  const auto other = std::ranges::find_if(all, [&](const auto& entry) {
    return entry.second.hash != one->second.hash || entry.second.number != one->second.number;
  });
  std::string difference;
  if (!list_.empty() && are_lists(one->second.what, other->second.what)) {
    show_list();
    const auto ones = list_of(one->first, one->second),
               others = list_of(other->first, other->second);
    if (!ones.empty() && !others.empty())
      difference = first_difference(name_of(one->first), ones, name_of(other->first), others);
  }
  fail(ErrorCode::invalid_argument,
       disagreement(number_, name_of(one->first), one->second.what, name_of(other->first),
                    other->second.what, difference));
}

void Wire::show_list() {
  const std::vector<ListedTensor> list = listed(list_, kMostListed);
  for (size_t at = 0; at < list.size(); at += kListedAtOnce)
    tell_all({.group = group_.id,
              .kind = Network::Notice::Kind::list,
              .text = {reinterpret_cast<const char*>(list.data() + at),
                       std::min(kListedAtOnce, list.size() - at) * sizeof(ListedTensor)}});
}

// Empty if it does not come in time.
std::vector<ListedTensor> Wire::list_of(int peer, const Greeting& greeting) {
  if (greeting.hash == what_.hash()) return listed(list_, kMostListed);  // the same as this rank's
  for (const auto until = Clock::now() + kSettle; Clock::now() < until;) {
    {
      std::lock_guard lock(mutex_);
      if (lists_[size_t(peer)].size() >= std::min<size_t>(greeting.what.tensors, kMostListed))
        return lists_[size_t(peer)];
    }
    transport_.sleep(nullptr, milliseconds(1));
    transport_.progress();
    network_->listen();
    check();
  }
  return {};
}

Wire::Flight::Flight(Wire& wire) : wire_(wire) {
  if (wire.spare_items_.empty()) return;
  items_ = std::move(wire.spare_items_.back());
  wire.spare_items_.pop_back();
}

Wire::Flight::~Flight() {
  // Only where something failed is there anything left. Its memory must not be touched afterwards.
  // Receives first: they are soon done.
  for (const bool sending : {false, true})
    for (Item& item : items_)
      if (item.sending == sending) wire_.give_up(item.message);
  items_.clear();
  wire_.spare_items_.push_back(std::move(items_));
}

void Wire::give_up(Transport::Message* message) {
  if (!message || transport_.cancel(message)) return;
  lost_memory_.store(true);
  base::log_once(base::LogLevel::warning,
                 "a message could not be called back when its operation failed: a rank that was "
                 "stopped may still write to the memory it was for");
}

size_t Wire::Flight::send(int peer, Lane lane, const void* data, size_t bytes) {
  items_.push_back(
      {wire_.transport_.send(wire_.outer(peer), wire_.tag(lane), data, bytes), peer, true});
  return items_.size() - 1;
}

size_t Wire::Flight::receive(int peer, Lane lane, void* data, size_t bytes) {
  items_.push_back(
      {wire_.transport_.receive(wire_.outer(peer), wire_.tag(lane), data, bytes), peer, false});
  return items_.size() - 1;
}

void Wire::Flight::wait(size_t number) {
  Item& item = items_[number];
  if (item.message)
    wire_.await(item.message, {item.peer, wire_.what_, wire_.number_, wire_.waiting_, this});
}

void Wire::Flight::wait_all() {
  for (; over_ < items_.size(); ++over_) wait(over_);
}

void Wire::Flight::settle(nanoseconds at_most) {
  const auto until = Clock::now() + at_most;
  while (!pending().empty() && Clock::now() < until) {
    wire_.transport_.sleep(nullptr, milliseconds(1));
    wire_.transport_.progress();
  }
}

std::vector<int> Wire::Flight::pending() {
  std::set<int> peers;
  for (const Item& item : items_)
    if (item.message && !item.sending && wire_.transport_.is_under_way(item.message))
      peers.insert(item.peer);
  return {peers.begin(), peers.end()};
}

void Wire::await(Transport::Message*& message, const Need& need) {
  const auto over = [&](Transport::State state) {
    switch (state) {
      case Transport::State::under_way: return false;
      case Transport::State::over: message = nullptr; return true;
      case Transport::State::failed: message = nullptr; broken(need);
      case Transport::State::too_long: message = nullptr; break;
    }
    fail(ErrorCode::data_loss,
         fmt::format("{}: {} sent more than it was expected to; do all ranks run the same program?",
                     described(need.what, need.number), name_of(need.peer)));
  };
  // With a core for every rank, what is under way is worth a millisecond or two of looking. Still,
  // the one that is waited for may be on this core.
  for (int i = 0; i < (crowded_ ? 20 : 100); ++i) {
    if (over(transport_.advance(message, crowded_ ? 1 : 20))) return;
    if (crowded_ || i >= 10) sched_yield();
  }
  need.waiting.lost.reset();
  if (!need.waiting.waited) need.waiting.waited.emplace();
  Window::Elsewhere elsewhere(window_, need.what.kind);
  for (Clock::time_point next{};;) {
    elsewhere.say();
    if (const auto now = Clock::now(); now >= next) {  // the first time at once
      look_around(need);
      next = now + kLook;
    }
    transport_.sleep(message, kLook);
    transport_.progress();
    if (over(transport_.test(message))) return;
  }
}

void Wire::broken(const Need& need) {
  // What the peer, or the job, has to say is worth more than a connection that broke.
  const auto until = Clock::now() + kReason;
  while (Clock::now() < until) {
    transport_.sleep(nullptr, kLook / 4);
    transport_.progress();
    network_->listen();
    check();
    if (const auto failure = members_->failure())
      fail(failure->code, fmt::format("{}: {}", described(need.what, need.number), failure->text));
  }
  const std::string loss = transport_.loss(outer(need.peer));
  fail(ErrorCode::unavailable,
       fmt::format("{}: the connection to {} is lost{}; {}", described(need.what, need.number),
                   name_of(need.peer), loss.empty() ? "" : " (" + loss + ")", progress(need.peer)));
}

void Wire::look_around(const Need& need) {
  network_->listen();
  check();
  if (const auto failure = members_->failure())
    fail(failure->code, fmt::format("{}: {}", described(need.what, need.number), failure->text));
  const auto now = Clock::now();
  {
    std::unique_lock lock(mutex_);
    if (const auto left = left_[size_t(need.peer)]; left && now - *left > kLast) {
      lock.unlock();
      fail(ErrorCode::unavailable,
           fmt::format("{}: {} has left the group; {}", described(need.what, need.number),
                       name_of(need.peer), progress(need.peer)));
    }
  }
  // What it sent last may be here already, and only has to be taken in.
  if (!transport_.loss(outer(need.peer)).empty()) {
    if (!need.waiting.lost) need.waiting.lost = now;
    if (now - *need.waiting.lost > kReason) broken(need);
  }
  std::vector<int> peers;
  if (need.flight) peers = need.flight->pending();
  if (peers.empty()) peers = {need.peer};
  if (const nanoseconds timeout = need.waiting.patience.timeout;
      timeout.count() &&
      need.waiting.waited->elapsed() > std::max(timeout / 2, timeout - kBefore) &&
      (!need.waiting.told || now - *need.waiting.told > kAgain)) {
    need.waiting.told = now;
    network_->probe();
    tell_all({.group = group_.id,
              .kind = Network::Notice::Kind::waiting,
              .culprit = peers.size() == 1 ? outer(peers.front()) : -1});
  }
  // Those that wait themselves are not to blame, if there are others.
  const bool all_wait = std::ranges::all_of(peers, [&](int peer) { return waits(peer); });
  if (!all_wait) std::erase_if(peers, [&](int peer) { return waits(peer); });
  need.waiting.patience.slack = all_wait ? kSlackBehindAnother : kSlackBetweenHosts;
  const auto missing = [&] {
    std::vector<std::string> who;
    for (const int peer : peers) who.push_back(name_of(peer) + "; " + progress(peer));
    return fmt::format("{}", fmt::join(who, ", and for "));
  };
  const std::string text = overdue(need.waiting, need.what, need.number, missing);
  if (text.empty()) return;
  const std::string isolation = members_->isolation();
  if (isolation.empty()) fail(ErrorCode::deadline_exceeded, text);
  const std::string operation = described(need.what, need.number);
  fail(ErrorCode::deadline_exceeded, fmt::format("{}: {} {}; it {}", operation, name_of(rank()),
                                                 isolation, text.substr(operation.size() + 2)));
}

bool Wire::waits(int peer) const {
  std::lock_guard lock(mutex_);
  const auto said = waits_[size_t(peer)];
  return said && Clock::now() - *said < kSilence;
}

std::string Wire::name_of(int peer) const {
  const std::string address = members_->address(peer);
  return address.empty() ? fmt::format("rank {}", peer)
                         : fmt::format("rank {} ({})", peer, address);
}

std::string Wire::progress(int peer) const {
  const uint64_t at = heard_[size_t(peer)].load();
  return at == 0 ? fmt::format("rank {} has not begun any operation", peer)
                 : fmt::format("rank {} is at #{}", peer, at);
}

void Wire::poison(ErrorCode code, const std::string& text) {
  {
    std::lock_guard lock(mutex_);
    if (poison_) return;
    poison_ = {-1, code, text};
    poisoned_.store(true);
  }
  if (window_) window_->poison(code, text);
  tell_all({.group = group_.id, .code = code, .text = text});
  for (int i = 0; i < 10; ++i) transport_.progress();
}

void Wire::fail(ErrorCode code, const std::string& text) {
  poison(code, text);
  check();
  throw_error(code, text);
}

void Wire::check() {
  if (window_) window_->check();
  if (!poisoned_.load(std::memory_order_acquire)) return;
  std::unique_lock lock(mutex_);
  const cluster::Failure failure = *poison_;
  lock.unlock();
  throw_error(failure.code, failure.text);
}

void Wire::check_ranks(const std::string& during) {
  transport_.progress();
  network_->listen();
  check();
  if (window_) window_->check_ranks(during);
  if (const auto failure = members_->failure())
    fail(failure->code, fmt::format("{}: {}", during, failure->text));
}

void Wire::send(const Description& what, const detail::Memory& in, int64_t tag, Patience patience) {
  ++sent_;
  transport_.progress();
  network_->listen();
  check();
  Waiting waiting = waiting_between_hosts(patience);
  const int peer = what.root;
  const Head head{tag, uint64_t(in.count) * size_of(in.dtype), in.dtype};
  const Need need{peer, what, sent_, waiting};
  Parcel first(*this, transport_.send(outer(peer), this->tag(Lane::head), &head, sizeof(head)));
  Parcel second(*this, head.bytes ? transport_.send(outer(peer), this->tag(Lane::message), in.data,
                                                    head.bytes)
                                  : nullptr);
  await(first.message, need);
  await(second.message, need);
}

void Wire::recv(const Description& what, const detail::Memory& out, int64_t tag,
                Patience patience) {
  ++received_;
  transport_.progress();
  network_->listen();
  check();
  Waiting waiting = waiting_between_hosts(patience);
  const int peer = what.root;
  const size_t bytes = size_t(out.count) * size_of(out.dtype);
  const auto expect = [&](DType dtype, size_t sent) {
    if (dtype == out.dtype && sent == bytes) return;
    fail(ErrorCode::invalid_argument,
         fmt::format("recv: {} sent {}[{}] with tag {}, and {} expects {}[{}]", name_of(peer),
                     tutti::name(dtype), sent / size_of(dtype), tag, name_of(rank()),
                     tutti::name(out.dtype), out.count));
  };
  std::vector<Stored>& early = unclaimed_[size_t(peer)];
  if (const auto found = std::ranges::find(early, tag, &Stored::tag); found != early.end()) {
    expect(found->dtype, found->data.size());
    if (bytes) std::memcpy(out.data, found->data.data(), bytes);
    early.erase(found);
    return;
  }
  const Need need{peer, what, received_, waiting};
  const auto take = [&](Lane lane, void* data, size_t size) {
    Parcel parcel(*this, transport_.receive(outer(peer), this->tag(lane), data, size));
    await(parcel.message, need);
  };
  while (true) {
    Head head;
    take(Lane::head, &head, sizeof(head));
    if (head.dtype > DType::float64)
      fail(ErrorCode::data_loss, fmt::format("recv: {} sent what is no message", name_of(peer)));
    const bool mine = head.tag == tag;
    if (mine) expect(head.dtype, head.bytes);
    Stored aside{head.tag, head.dtype, std::vector<std::byte>(mine ? 0 : head.bytes)};
    if (head.bytes) take(Lane::message, mine ? out.data : aside.data.data(), head.bytes);
    if (mine) return;
    early.push_back(std::move(aside));
  }
}

}  // namespace tutti::group
