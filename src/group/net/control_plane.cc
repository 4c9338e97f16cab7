// SPDX-License-Identifier: Apache-2.0
#include "group/net/control_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/fork.h"
#include "base/log.h"
#include "group/liveness/timing.h"

namespace tutti::group {

namespace {

// Notices that are kept: of groups that are not known here, and for ranks that connect later.
constexpr size_t kEarly = 1024, kKept = 512;
constexpr uint32_t kIds = 1u << 29;

// Whether the rank at one place sends to the rank at the other, connected or not. It does so at
// distances of 1, 2, 4, ... in both directions, so that what every rank passes on reaches all ranks
// in a logarithmic number of steps.
bool tells(size_t from, size_t to, size_t size) {
  const size_t ahead = (to + size - from) % size;
  return std::has_single_bit(ahead) || std::has_single_bit(size - ahead);
}

// Drops the first notice that a rank has left, since a failure matters more; else the first notice.
template <class Queue, class KindOf>
void drop_one(Queue& queue, KindOf kind_of) {
  const auto left = std::ranges::find(queue, ControlPlane::Notice::Kind::leaving, kind_of);
  queue.erase(left == queue.end() ? queue.begin() : left);
}

}  // namespace

// A notice as it travels. Only `length` bytes of the text are sent.
struct ControlPlane::Frame {
  uint32_t group;
  Notice::Kind kind;
  ErrorCode code;
  int32_t culprit;
  uint32_t length;
  char text[4072];

  size_t bytes() const { return offsetof(Frame, text) + length; }
};

struct ControlPlane::Receiver {
  Transport::Message* message = nullptr;
  bool open = false;                           // whether notices may still come from this rank
  std::optional<Clock::time_point> left = {};  // when the rank left the job
  std::unique_ptr<Frame> frame = std::make_unique_for_overwrite<Frame>();
};

ControlPlane::ControlPlane(std::unique_ptr<Transport> transport, int rank, int size,
                           std::function<bool(int)> is_remote)
    : transport_(std::move(transport)), rank_(rank), size_(size), is_remote_(std::move(is_remote)) {
  if (const int port = transport_->port()) base::close_port_in_children(port);
  for (int r = 0; r < size_ && !transport_->connects_on_demand(); ++r)
    if (r != rank_) add_peer(r);
}

void ControlPlane::close() {
  std::lock_guard lock(mutex_);
  for (auto& [rank, receiver] : receivers_) {
    // The memory of a receive that cannot be cancelled is written to after this.
    if (receiver.message && !transport_->cancel(receiver.message))
      static_cast<void>(receiver.frame.release());
    receiver.message = nullptr;
    receiver.open = false;
  }
}

ControlPlane::~ControlPlane() {
  close();
  for (auto& [message, frame] : outgoing_)
    if (message && transport_->test(message) == Transport::State::under_way) frame.release();
}

void ControlPlane::add_peer(int rank) {
  Receiver& receiver = receivers_[rank];
  receiver.open = true;
  post_receiver(rank, receiver);
}

void ControlPlane::take_connections() {
  for (const Transport::Connection& made : transport_->new_connections()) {
    base::close_in_children({&made.socket, 1});
    if (made.is_bulk) continue;
    add_peer(made.rank);
    for (const Kept& kept : kept_)
      if (kept.ranks.empty() || std::ranges::find(kept.ranks, made.rank) != kept.ranks.end())
        send(made.rank, kept.notice);
  }
}

bool ControlPlane::is_connected(int rank) const {
  std::lock_guard lock(mutex_);
  return receivers_.contains(rank);
}

void ControlPlane::post_receiver(int rank, Receiver& receiver) {
  receiver.message =
      transport_->receive(rank, tag(0, MessageKind::notice), receiver.frame.get(), sizeof(Frame));
}

size_t ControlPlane::reserved() const {
  std::lock_guard lock(mutex_);
  return receivers_.size() * sizeof(Frame);
}

uint32_t ControlPlane::new_group_id() {
  std::lock_guard lock(mutex_);
  const uint64_t id = ++ids_ * uint64_t(size_) + uint64_t(rank_);  // 0 is no group's
  if (id >= kIds)
    throw ResourceExhaustedError("group: this job has made too many groups; keep those it has");
  return uint32_t(id);
}

void ControlPlane::add(uint32_t group, Listener* listener) {
  std::lock_guard lock(mutex_);
  listeners_[group] = listener;
  for (const auto& [from, notice] : early_)
    if (notice.group == group) hand_out(from, *listener, notice);
  std::erase_if(early_, [&](const auto& entry) { return entry.second.group == group; });
}

void ControlPlane::remove(uint32_t group) {
  std::lock_guard lock(mutex_);
  listeners_.erase(group);
}

void ControlPlane::note(const Notice& notice) {
  if (notice.kind == Notice::Kind::failure &&
      (notice.code == ErrorCode::unavailable || notice.code == ErrorCode::deadline_exceeded))
    misses_a_rank_.store(true);
}

void ControlPlane::tell(std::span<const int> ranks, const Notice& notice) {
  note(notice);
  std::lock_guard lock(mutex_);
  take_connections();
  send_to_all(ranks, notice);
}

void ControlPlane::send_to_all(std::span<const int> ranks, const Notice& notice) {
  using Kind = Notice::Kind;
  const bool failed = notice.kind == Kind::failure;
  if (failed) failed_.insert(notice.group);
  const size_t here = size_t(std::ranges::find(ranks, rank_) - ranks.begin());
  for (size_t i = 0; i < ranks.size(); ++i)
    if (i != here && (receivers_.contains(ranks[i]) || (failed && tells(here, i, ranks.size()))))
      send(ranks[i], notice);
  if (!transport_->connects_on_demand() || notice.kind >= Kind::waiting) return;
  std::vector<int> later;
  for (const int rank : ranks)
    if (rank != rank_ && !receivers_.contains(rank)) later.push_back(rank);
  if (later.empty()) return;
  kept_.push_back({notice, std::move(later)});
  if (kept_.size() > kKept) drop_one(kept_, [](const Kept& kept) { return kept.notice.kind; });
}

void ControlPlane::leave() {
  std::lock_guard lock(mutex_);
  take_connections();
  const Notice notice{.kind = Notice::Kind::leaving};
  for (const auto& [rank, receiver] : receivers_) send(rank, notice);
  if (transport_->connects_on_demand()) kept_.push_back({notice, {}});
}

std::optional<base::Clock::time_point> ControlPlane::left_at(int rank) const {
  std::lock_guard lock(mutex_);
  const auto found = receivers_.find(rank);
  return found == receivers_.end() ? std::nullopt : found->second.left;
}

bool ControlPlane::may_reply(int rank) const {
  std::lock_guard lock(mutex_);
  const auto found = receivers_.find(rank);
  const bool is_known = found == receivers_.end() ? called_.contains(rank) : !found->second.left;
  return is_known && transport_->loss(rank).empty();
}

void ControlPlane::probe() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (probed_ && now - *probed_ < timing::kProbeEvery) return;
  if (!probed_ || now - *probed_ > timing::kHeard) probing_since_ = now;
  probed_ = now;
  take_connections();
  const auto is_asked = [&](int rank) {
    return receivers_.contains(rank) || tells(size_t(rank_), size_t(rank), size_t(size_));
  };
  for (int rank = 0; rank < size_; ++rank)
    // The first probe of a rank that is not connected yet is still under way.
    if (is_asked(rank) && is_remote_(rank) &&
        (receivers_.contains(rank) || called_.insert(rank).second))
      send(rank, {.kind = Notice::Kind::probe});
}

bool ControlPlane::hears_other_hosts() const {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  return !probing_since_ || now - *probing_since_ < timing::kHeard || now - heard_ < timing::kHeard;
}

void ControlPlane::send(int rank, const Notice& notice) {
  auto frame = std::make_unique<Frame>();
  *frame = {.group = notice.group,
            .kind = notice.kind,
            .code = notice.code,
            .culprit = notice.culprit,
            .length = uint32_t(std::min(notice.text.size(), sizeof(Frame::text)))};
  std::memcpy(frame->text, notice.text.data(), frame->length);
  if (Transport::Message* message =
          transport_->send(rank, tag(0, MessageKind::notice), frame.get(), frame->bytes()))
    outgoing_.emplace_back(message, std::move(frame));
}

void ControlPlane::hand_out(int from, Listener& listener, const Notice& notice) {
  if (notice.kind == Notice::Kind::failure && !failed_.contains(notice.group))
    send_to_all(listener.members(), notice);
  listener.hear(from, notice);
}

void ControlPlane::take(int rank, Receiver& receiver) {
  const Frame& frame = *receiver.frame;
  const Notice notice{.group = frame.group,
                      .kind = frame.kind,
                      .code = frame.code,
                      .culprit = frame.culprit,
                      .text = {frame.text, std::min<size_t>(frame.length, sizeof(frame.text))}};
  note(notice);
  // Only a reply shows that the other rank receives what this rank sends.
  if (notice.kind == Notice::Kind::reply && is_remote_(rank)) heard_ = Clock::now();
  if (notice.kind == Notice::Kind::probe) {
    send(rank, {.kind = Notice::Kind::reply});
  } else if (notice.kind == Notice::Kind::leaving && notice.group == 0) {
    receiver.left = Clock::now();
  } else if (const auto found = listeners_.find(notice.group); found != listeners_.end()) {
    hand_out(rank, *found->second, notice);
  } else if (notice.kind < Notice::Kind::waiting) {
    early_.emplace_back(rank, notice);
    if (early_.size() > kEarly)
      drop_one(early_, [](const auto& entry) { return entry.second.kind; });
  }
}

void ControlPlane::dispatch() {
  std::lock_guard lock(mutex_);
  take_connections();
  std::erase_if(outgoing_, [&](const auto& entry) {
    return transport_->test(entry.first) != Transport::State::under_way;
  });
  for (auto& [rank, receiver] : receivers_)
    while (receiver.open) {
      const Transport::State state =
          receiver.message ? transport_->test(receiver.message) : Transport::State::over;
      if (state == Transport::State::under_way) break;
      receiver.message = nullptr;
      if (state != Transport::State::over) {
        receiver.open = false;
        break;
      }
      take(rank, receiver);
      post_receiver(rank, receiver);
    }
}

void ControlPlane::warn_of_strangers() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now - warned_ < timing::kWarnEvery) return;
  const std::string refused = transport_->refused();
  if (refused.empty()) return;
  warned_ = now;
  base::log(base::LogLevel::warning, fmt::format("rank {}: {}", rank_, refused));
}

}  // namespace tutti::group
