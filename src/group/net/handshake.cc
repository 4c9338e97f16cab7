// SPDX-License-Identifier: Apache-2.0
// The beginning of an operation between hosts: its ranks find out that they do the same, and small
// data travels with that.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/world.h"
#include "group/liveness/timing.h"
#include "group/net/peer_channels.h"

namespace tutti::group {

using base::Clock;

size_t PeerChannels::PeerStates::count_greetings() const {
  size_t count = 0;
  for (const std::atomic<Chunk*>& entry : chunks_)
    if (const Chunk* const chunk = entry.load(std::memory_order_acquire))
      count += size_t(std::ranges::count_if(
          *chunk, [](const PeerState& peer) { return peer.greetings != nullptr; }));
  return count;
}

size_t PeerChannels::reserved() const {
  return 2 * peer_states_.count_greetings() * kGreetingBytes;
}

uint64_t PeerChannels::operation_of(int peer) const {
  const PeerState* const state = peer_states_.find(peer);
  return state ? state->heard.load(std::memory_order_relaxed) : 0;
}

std::byte* PeerChannels::greeting_to(int peer) {
  PeerState& state = peer_states_.make(peer);
  if (!state.greetings)
    state.greetings = std::make_unique_for_overwrite<std::byte[]>(2 * greeting_stride_);
  return state.greetings.get();
}
std::byte* PeerChannels::greeting_from(int peer) { return greeting_to(peer) + greeting_stride_; }
const std::byte* PeerChannels::told(int peer) { return greeting_from(peer) + kGreetingData; }
std::byte* PeerChannels::to_tell(int peer) { return greeting_to(peer) + kGreetingData; }

PeerChannels::Handshake::Handshake(PeerChannels& channels, std::span<const int> to,
                                   std::span<const size_t> bytes, std::span<const int> from)
    : channels_(channels), told_(to.size()), from_(from), transfers_(channels) {
  const Greeting greeting{channels.number_, channels.hash_, channels.what_};
  // Sends first: peers wait for these.
  for (size_t i = 0; i < to.size(); ++i) {
    std::memcpy(channels.greeting_to(to[i]), &greeting, sizeof(greeting));
    transfers_.send(to[i], MessageKind::handshake, channels.greeting_to(to[i]),
                    kGreetingData + (bytes.empty() ? 0 : bytes[i]));
  }
  for (const int peer : from)
    transfers_.receive(peer, MessageKind::handshake, channels.greeting_from(peer), kGreetingBytes);
}

void PeerChannels::Handshake::finish() {
  for (size_t i = 0; i < from_.size(); ++i) {
    transfers_.wait(told_ + i);
    Greeting theirs;
    std::memcpy(&theirs, channels_.greeting_from(from_[i]), sizeof(theirs));
    channels_.peer_states_.make(from_[i]).heard.store(theirs.number, std::memory_order_relaxed);
    if (theirs.hash == channels_.hash_ && theirs.number == channels_.number_) continue;
    transfers_.settle(timing::kSettle);
    std::vector<int> heard(from_.begin(), from_.end());
    for (const int silent : transfers_.pending()) std::erase(heard, silent);
    channels_.disagree(heard);
  }
  transfers_.wait_all();
}

void PeerChannels::disagree(std::span<const int> peers) {
  std::map<int, Greeting> all{{rank(), {number_, hash_, what_}}};
  for (const int peer : peers) std::memcpy(&all[peer], greeting_from(peer), sizeof(Greeting));
  const auto one = all.begin();
  const auto other = std::ranges::find_if(all, [&](const auto& entry) {
    return entry.second.hash != one->second.hash || entry.second.number != one->second.number;
  });
  const std::string one_name = liveness_.name(one->first),
                    other_name = liveness_.name(other->first);
  std::string difference;
  if (!list_.empty() && are_lists(one->second.what, other->second.what)) {
    show_list();
    const auto ones = list_of(one->first, one->second),
               others = list_of(other->first, other->second);
    if (!ones.empty() && !others.empty())
      difference = first_difference(one_name, ones, other_name, others);
  }
  liveness_.fail(-1, ErrorCode::invalid_argument,
                 disagreement(number_, one_name, one->second.what, other_name, other->second.what,
                              difference));
}

void PeerChannels::show_list() {
  const std::vector<ListedTensor> list = listed(list_, kMostListed);
  for (size_t at = 0; at < list.size(); at += kListedAtOnce)
    tell_all({.group = group_.id,
              .kind = ControlPlane::Notice::Kind::list,
              .text = {reinterpret_cast<const char*>(list.data() + at),
                       std::min(kListedAtOnce, list.size() - at) * sizeof(ListedTensor)}});
}

// The list of a peer; empty if it does not come in time.
std::vector<ListedTensor> PeerChannels::list_of(int peer, const Greeting& greeting) {
  if (greeting.hash == hash_) return listed(list_, kMostListed);  // the same as this rank's
  for (const auto until = Clock::now() + timing::kSettle; Clock::now() < until;) {
    {
      std::lock_guard lock(mutex_);
      if (lists_[peer].size() >= std::min<size_t>(greeting.what.tensors, kMostListed))
        return lists_[peer];
    }
    transport_.sleep(nullptr, timing::kShortPoll);
    control_->pump();
    liveness_.check();
  }
  return {};
}

}  // namespace tutti::group
