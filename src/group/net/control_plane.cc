// SPDX-License-Identifier: Apache-2.0
#include "group/net/control_plane.h"

#include <algorithm>
#include <cstring>

#include "group/liveness/timing.h"

namespace tutti::group {

namespace {

constexpr size_t kEarly = 1024;  // notices that are kept
constexpr uint32_t kIds = 1u << 29;

}  // namespace

// A notice as it travels; no more of it than there is.
struct ControlPlane::Frame {
  uint32_t group;
  Notice::Kind kind;
  ErrorCode code;
  int32_t culprit;
  uint32_t length;
  char text[4072];

  size_t bytes() const { return offsetof(Frame, text) + length; }
};

ControlPlane::ControlPlane(std::unique_ptr<Transport> transport, int rank, int size,
                           std::vector<int> remote)
    : transport_(std::move(transport)),
      rank_(rank),
      size_(size),
      remote_(std::move(remote)),
      receivers_(size_t(size)),
      frames_(std::make_unique_for_overwrite<Frame[]>(size_t(size))) {
  for (size_t r = 0; r < receivers_.size(); ++r)
    if (int(r) != rank_) post_receiver(r);
}

void ControlPlane::close() {
  std::lock_guard lock(mutex_);
  bool lost = false;
  for (Receiver& receiver : receivers_) {
    if (receiver.message && !transport_->cancel(receiver.message)) lost = true;
    receiver = {};
  }
  // The memory of a receive that cannot be cancelled is written to after this.
  if (lost) static_cast<void>(frames_.release());
}

ControlPlane::~ControlPlane() {
  close();
  for (auto& [message, frame] : outgoing_)
    if (message && transport_->test(message) == Transport::State::under_way) frame.release();
}

void ControlPlane::post_receiver(size_t rank) {
  Receiver& receiver = receivers_[rank];
  receiver.open = true;
  receiver.message =
      transport_->receive(int(rank), tag(0, MessageKind::notice), &frames_[rank], sizeof(Frame));
}

size_t ControlPlane::reserved() const { return receivers_.size() * sizeof(Frame); }

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
    if (notice.group == group) listener->hear(from, notice);
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

void ControlPlane::tell(int rank, const Notice& notice) {
  note(notice);
  std::lock_guard lock(mutex_);
  send(rank, notice);
}

void ControlPlane::leave() {
  std::lock_guard lock(mutex_);
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_) send(rank, {.kind = Notice::Kind::leaving});
}

bool ControlPlane::has_left(int rank) const {
  std::lock_guard lock(mutex_);
  return receivers_[size_t(rank)].left;
}

void ControlPlane::probe() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (probed_ && now - *probed_ < timing::kProbeEvery) return;
  if (!probed_ || now - *probed_ > timing::kHeard) probing_since_ = now;
  probed_ = now;
  for (const int rank : remote_) send(rank, {.kind = Notice::Kind::probe});
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

void ControlPlane::take(size_t rank, const Frame& frame) {
  const Notice notice{.group = frame.group,
                      .kind = frame.kind,
                      .code = frame.code,
                      .culprit = frame.culprit,
                      .text = {frame.text, std::min<size_t>(frame.length, sizeof(frame.text))}};
  note(notice);
  if (std::ranges::find(remote_, int(rank)) != remote_.end()) heard_ = Clock::now();
  if (notice.kind == Notice::Kind::probe) {
    send(int(rank), {.kind = Notice::Kind::reply});
  } else if (notice.kind == Notice::Kind::leaving && notice.group == 0) {
    receivers_[rank].left = true;
  } else if (const auto found = listeners_.find(notice.group); found != listeners_.end()) {
    found->second->hear(int(rank), notice);
  } else if (notice.kind < Notice::Kind::waiting) {
    early_.emplace_back(int(rank), notice);
    if (early_.size() > kEarly) early_.pop_front();
  }
}

void ControlPlane::dispatch() {
  std::lock_guard lock(mutex_);
  std::erase_if(outgoing_, [&](const auto& entry) {
    return transport_->test(entry.first) != Transport::State::under_way;
  });
  for (size_t r = 0; r < receivers_.size(); ++r) {
    Receiver& receiver = receivers_[r];
    while (receiver.open) {
      const Transport::State state =
          receiver.message ? transport_->test(receiver.message) : Transport::State::over;
      if (state == Transport::State::under_way) break;
      receiver.message = nullptr;
      if (state != Transport::State::over) {
        receiver.open = false;
        break;
      }
      take(r, frames_[r]);
      post_receiver(r);
    }
  }
}

}  // namespace tutti::group
