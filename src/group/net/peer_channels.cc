// SPDX-License-Identifier: Apache-2.0
#include "group/net/peer_channels.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/idle_cores.h"
#include "base/log.h"
#include "base/world.h"
#include "group/liveness/timing.h"

namespace tutti::group {

namespace {

using base::Clock;
using std::chrono::nanoseconds;
using Notice = ControlPlane::Notice;

bool is_recent(Clock::time_point said) { return Clock::now() - said < timing::kPresumedSuspended; }

}  // namespace

PeerChannels::PeerChannels(GroupMembers group, std::shared_ptr<ControlPlane> control,
                           std::shared_ptr<const PeerMonitor> peers, Window* window,
                           FailureLatch& latch)
    : group_(std::move(group)),
      control_(std::move(control)),
      transport_(control_->transport()),
      window_(window),
      latch_(latch),
      liveness_(std::move(peers), latch_, control_.get()),
      crowded_(liveness_.peers().crowded()),
      greeting_stride_(base::is_length_only(0) ? kGreetingData : kGreetingBytes),
      peer_states_(group_.ranks.size()) {
  latch_.on_set([this](const FailureLatch::Event& event) {
    if (event.from_peer)
      told_failure_.store(true);
    else
      tell_failure(event.failure);
  });
  // A rank that waits in the window says so as well, so that no rank on another host blames it.
  if (window_) window_->on_wait([this](Deadline& deadline) { announce(deadline, -1); });
  control_->add(group_.id, this);
}

PeerChannels::~PeerChannels() {
  control_->remove(group_.id);
  if (has_lost_memory()) peer_states_.abandon();
  tell_all({.group = group_.id, .kind = Notice::Kind::leaving});
  transport_.progress();
}

void PeerChannels::tell_failure(const cluster::Failure& failure) {
  if (told_failure_.exchange(true)) return;
  tell_all(
      {.group = group_.id, .code = failure.code, .culprit = failure.rank, .text = failure.text});
  for (int i = 0; i < 10; ++i) transport_.progress();
}

void PeerChannels::fail_all(ErrorCode code, const std::string& text) {
  const cluster::Failure failure{outer(rank()), code, text};
  latch_.set(failure);
  // Another rank of this host may have been first, and died since.
  tell_failure(latch_.failure().value_or(failure));
}

void PeerChannels::hear(int from, const Notice& notice) {
  const auto found = std::ranges::find(group_.ranks, from);
  if (found == group_.ranks.end()) return;
  const int peer = int(found - group_.ranks.begin());
  if (notice.kind == Notice::Kind::failure)
    return latch_.set({notice.culprit, notice.code, notice.text}, true);
  std::lock_guard lock(mutex_);
  switch (notice.kind) {
    case Notice::Kind::leaving: left_[peer] = Clock::now(); break;
    case Notice::Kind::waiting:
      if (notice.culprit == outer(rank()))
        waits_.erase(peer);
      else
        waits_[peer] = Clock::now();
      if (is_on_this_host(notice.culprit))
        accuses_[peer] = Clock::now();
      else
        accuses_.erase(peer);
      break;
    case Notice::Kind::list: {
      std::vector<ListedTensor>& list = lists_[peer];
      const size_t more = notice.text.size() / sizeof(ListedTensor), before = list.size();
      if (before + more > kMostListed) return;
      list.resize(before + more);
      std::memcpy(list.data() + before, notice.text.data(), more * sizeof(ListedTensor));
      break;
    }
    case Notice::Kind::failure:
    case Notice::Kind::probe:
    case Notice::Kind::reply: break;
  }
}

void PeerChannels::begin(const Description& what, Timeouts timeouts, std::span<const Piece> list) {
  control_->dispatch();  // a rank that comes late gets the group's first failure, too
  wait_state_ = {Deadline(timeouts)};
  what_ = what;
  hash_ = what.hash();
  list_ = list;
  ++number_;
  liveness_.check_at_start(what, number_);
}

PeerChannels::Transfers::Transfers(PeerChannels& channels) : channels_(channels) {
  if (channels.spare_items_.empty()) return;
  items_ = std::move(channels.spare_items_.back());
  channels.spare_items_.pop_back();
}

PeerChannels::Transfers::~Transfers() {
  // Messages are left only if an operation failed. Their memory must not be touched afterwards.
  // Receives first: they are soon done.
  for (const bool sending : {false, true})
    for (Item& item : items_)
      if (item.sending == sending) channels_.cancel(item.message);
  items_.clear();
  channels_.spare_items_.push_back(std::move(items_));
}

void PeerChannels::cancel(Transport::Message* message) {
  if (!message || transport_.cancel(message)) return;
  lost_memory_.store(true);
  base::log_once(base::LogLevel::warning,
                 "a message could not be called back when its operation failed: a rank that was "
                 "stopped may still write to the memory it was for");
}

size_t PeerChannels::Transfers::send(int peer, MessageKind kind, const void* data, size_t bytes) {
  items_.push_back(
      {channels_.transport_.send(channels_.outer(peer), channels_.tag(kind), data, bytes), peer,
       true});
  return items_.size() - 1;
}

size_t PeerChannels::Transfers::receive(int peer, MessageKind kind, void* data, size_t bytes) {
  items_.push_back(
      {channels_.transport_.receive(channels_.outer(peer), channels_.tag(kind), data, bytes), peer,
       false});
  return items_.size() - 1;
}

void PeerChannels::Transfers::wait(size_t number) {
  Item& item = items_[number];
  if (item.message)
    channels_.await(item.message,
                    {item.peer, channels_.what_, channels_.number_, channels_.wait_state_, this});
}

void PeerChannels::Transfers::wait_all() {
  for (; over_ < items_.size(); ++over_) wait(over_);
}

void PeerChannels::Transfers::settle(nanoseconds at_most) {
  const auto until = Clock::now() + at_most;
  while (!pending().empty() && Clock::now() < until) {
    channels_.transport_.sleep(nullptr, timing::kShortPoll);
    channels_.control_->pump();
    channels_.liveness_.check();  // a peer that never comes may have said why
  }
}

std::vector<int> PeerChannels::Transfers::pending() {
  std::set<int> peers;
  for (const Item& item : items_)
    if (item.message && !item.sending && channels_.transport_.is_under_way(item.message))
      peers.insert(item.peer);
  return {peers.begin(), peers.end()};
}

void PeerChannels::await(Transport::Message*& message, const Wait& wait) {
  const auto over = [&](Transport::State state) {
    switch (state) {
      case Transport::State::under_way: return false;
      case Transport::State::over: message = nullptr; return true;
      case Transport::State::failed: message = nullptr; fail_since_lost(wait);
      case Transport::State::too_long: message = nullptr; break;
    }
    liveness_.fail(
        wait.peer, ErrorCode::data_loss,
        fmt::format("{}: {} sent more than it was expected to; do all ranks run the same program?",
                    wait.during(), liveness_.name(wait.peer)));
  };
  // With a core for every rank, this thread polls for a millisecond or two before it sleeps. It
  // yields, since the rank that it waits for, or a thread that computes, may be on this core.
  const bool is_brief = crowded_ || base::is_background_thread();
  for (int i = base::world() ? 99 : is_brief ? 80 : 0; i < 100; ++i) {
    if (over(transport_.advance(message, crowded_ ? 1 : 20))) return;
    if (base::world() || (i < 5 && !crowded_)) continue;
    const Clock::time_point before = Clock::now();
    sched_yield();
    if (!crowded_ && Clock::now() - before > timing::kLongYield) break;
  }
  wait.state.lost.reset();
  wait.state.deadline.start();
  WaitGraph::WaitingElsewhere elsewhere(window_ ? &window_->wait_graph() : nullptr,
                                        role_of(wait.what.kind));
  for (Clock::time_point next{};;) {
    elsewhere.announce();
    if (const auto now = Clock::now(); now >= next) {  // the first time at once
      check_wait(wait, transport_.is_coming(message));
      next = now + timing::kPoll;
    }
    transport_.sleep(message, timing::kPoll);
    transport_.progress();
    if (over(transport_.test(message))) return;
  }
}

void PeerChannels::fail_since_lost(const Wait& wait) {
  // A reason that the peer or the job gives says more than that a connection broke.
  if (const auto reason =
          liveness_.await_reason([&] { transport_.sleep(nullptr, timing::kPoll / 4); }))
    latch_.fail({reason->rank, reason->code, fmt::format("{}: {}", wait.during(), reason->text)});
  if (left_at(wait.peer))
    liveness_.fail_since_left(wait.during(), wait.peer, operation_of(wait.peer));
  const std::string loss = transport_.loss(outer(wait.peer));
  const std::string what =
      !control_->is_connected(outer(wait.peer))
          ? "cannot be reached " + loss
          : "is lost: the connection to it broke" + (loss.empty() ? "" : " (" + loss + ")");
  liveness_.fail(wait.peer, ErrorCode::unavailable,
                 fmt::format("{}: {} {}; {}", wait.during(), liveness_.name(wait.peer), what,
                             liveness_.progress(wait.peer, operation_of(wait.peer))));
}

void PeerChannels::check_wait(const Wait& wait, bool is_coming) {
  control_->dispatch();
  liveness_.check();
  liveness_.check_job(wait.during());
  const auto now = Clock::now();
  const auto left = left_at(wait.peer);
  if (left && !is_coming && now - *left > timing::kLastMessages)
    liveness_.fail_since_left(wait.during(), wait.peer, operation_of(wait.peer));
  // The peer's last messages may have arrived already, and only have to be taken in.
  if (!transport_.loss(outer(wait.peer)).empty()) {
    if (!wait.state.lost) wait.state.lost = now;
    if (now - *wait.state.lost > timing::kReason) fail_since_lost(wait);
  }
  Deadline& deadline = wait.state.deadline;
  if (!deadline.is_near() && deadline.due() == Deadline::Due::nothing) return;
  std::vector<int> peers;
  if (wait.transfers) peers = wait.transfers->pending();
  if (peers.empty()) peers = {wait.peer};
  announce(deadline, peers.size() == 1 ? outer(peers.front()) : -1);
  // Peers that wait themselves are not to blame, if there are others.
  const bool all_wait = std::ranges::all_of(peers, [&](int peer) { return waits(peer); });
  if (!all_wait) std::erase_if(peers, [&](int peer) { return waits(peer); });
  const auto missing = [&] {
    LateRanks all;
    for (const int peer : peers)
      all.add({liveness_.name(peer) + "; " + liveness_.progress(peer, operation_of(peer)), peer});
    return all;
  };
  // Peers that wait for a rank of this host may not hear it. If this host's network is broken, they
  // can tell, so their errors come first.
  const nanoseconds slack = all_wait            ? timing::kSlackBehindAnother
                            : is_accused(peers) ? timing::kSlackIfAccused
                                                : timing::kSlackBetweenHosts;
  liveness_.check_deadline(deadline, slack, wait.what, wait.number, missing, rank());
}

// Shortly before its deadline this rank says that it waits, and for which peer.
void PeerChannels::announce(Deadline& deadline, int culprit) {
  if (!deadline.is_to_announce()) return;
  control_->probe();
  tell_all({.group = group_.id, .kind = Notice::Kind::waiting, .culprit = culprit});
}

// When the peer left the group or the job.
std::optional<Clock::time_point> PeerChannels::left_at(int peer) const {
  {
    std::lock_guard lock(mutex_);
    if (const auto left = left_.find(peer); left != left_.end()) return left->second;
  }
  return control_->left_at(outer(peer));
}

bool PeerChannels::waits(int peer) const {
  std::lock_guard lock(mutex_);
  const auto said = waits_.find(peer);
  return said != waits_.end() && is_recent(said->second);
}

bool PeerChannels::is_accused(std::span<const int> peers) const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(accuses_, [&](const auto& accuser) {
    const int host = group_.hosts[size_t(accuser.first)];
    return is_recent(accuser.second) &&
           std::ranges::any_of(peers, [&](int peer) { return group_.hosts[size_t(peer)] == host; });
  });
}

bool PeerChannels::is_on_this_host(int of_job) const {
  const auto found = std::ranges::find(group_.ranks, of_job);
  return found != group_.ranks.end() &&
         group_.hosts[size_t(found - group_.ranks.begin())] == group_.hosts[size_t(rank())];
}

void PeerChannels::check_ranks(const std::string& during) {
  control_->pump();
  liveness_.check();
  if (window_) window_->check_ranks(during);
  liveness_.check_job(during);
}

}  // namespace tutti::group
