#include "group/net/network.h"

#include <algorithm>
#include <cstring>

namespace tutti::group {

namespace {

constexpr size_t kEarly = 1024;  // notices that are kept
constexpr uint32_t kIds = 1u << 29;
constexpr std::chrono::milliseconds kProbe{100};  // between two
constexpr std::chrono::seconds kHeard{1};         // for this long a reply counts

}  // namespace

// A notice as it travels; no more of it than there is.
struct Network::Letter {
  uint32_t group;
  Notice::Kind kind;
  ErrorCode code;
  int32_t culprit;
  uint32_t length;
  char text[4072];

  size_t bytes() const { return offsetof(Letter, text) + length; }
};

Network::Network(std::unique_ptr<Transport> transport, int rank, int size, std::vector<int> remote)
    : transport_(std::move(transport)),
      rank_(rank),
      size_(size),
      remote_(std::move(remote)),
      ears_(size_t(size)) {
  for (size_t r = 0; r < ears_.size(); ++r)
    if (int(r) != rank_) post_ear(r);
}

void Network::close() {
  std::lock_guard lock(mutex_);
  for (Ear& ear : ears_) {
    // What cannot be cancelled is written to after this.
    if (ear.message && !transport_->cancel(ear.message)) ear.letter.release();
    ear.message = nullptr;
    ear.letter.reset();
  }
}

Network::~Network() {
  close();
  for (auto& [message, letter] : outgoing_)
    if (message && transport_->test(message) == Transport::State::under_way) letter.release();
}

void Network::post_ear(size_t rank) {
  Ear& ear = ears_[rank];
  if (!ear.letter) ear.letter = std::make_unique<Letter>();
  *ear.letter = {};
  ear.message =
      transport_->receive(int(rank), tag(0, Lane::notice), ear.letter.get(), sizeof(Letter));
}

uint32_t Network::new_id() {
  std::lock_guard lock(mutex_);
  const uint64_t id = ++ids_ * uint64_t(size_) + uint64_t(rank_);  // 0 is nobody's
  if (id >= kIds)
    throw ResourceExhaustedError("group: this job has made too many groups; keep those it has");
  return uint32_t(id);
}

void Network::add(uint32_t group, Listener* listener) {
  std::lock_guard lock(mutex_);
  listeners_[group] = listener;
  for (const auto& [from, notice] : early_)
    if (notice.group == group) listener->hear(from, notice);
  std::erase_if(early_, [&](const auto& entry) { return entry.second.group == group; });
}

void Network::remove(uint32_t group) {
  std::lock_guard lock(mutex_);
  listeners_.erase(group);
}

void Network::note(const Notice& notice) {
  if (notice.kind == Notice::Kind::failure &&
      (notice.code == ErrorCode::unavailable || notice.code == ErrorCode::deadline_exceeded))
    misses_somebody_.store(true);
}

void Network::tell(int rank, const Notice& notice) {
  note(notice);
  std::lock_guard lock(mutex_);
  send(rank, notice);
}

void Network::probe() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (probed_ && now - *probed_ < kProbe) return;
  if (!probed_ || now - *probed_ > kHeard) probing_since_ = now;
  probed_ = now;
  for (const int rank : remote_) send(rank, {.kind = Notice::Kind::probe});
}

bool Network::hears_other_hosts() const {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  return !probing_since_ || now - *probing_since_ < kHeard || now - heard_ < kHeard;
}

void Network::send(int rank, const Notice& notice) {
  auto letter = std::make_unique<Letter>();
  *letter = {.group = notice.group,
             .kind = notice.kind,
             .code = notice.code,
             .culprit = notice.culprit,
             .length = uint32_t(std::min(notice.text.size(), sizeof(Letter::text)))};
  std::memcpy(letter->text, notice.text.data(), letter->length);
  if (Transport::Message* message =
          transport_->send(rank, tag(0, Lane::notice), letter.get(), letter->bytes()))
    outgoing_.emplace_back(message, std::move(letter));
}

void Network::listen() {
  std::lock_guard lock(mutex_);
  std::erase_if(outgoing_, [&](const auto& entry) {
    return transport_->test(entry.first) != Transport::State::under_way;
  });
  for (size_t r = 0; r < ears_.size(); ++r) {
    while (int(r) != rank_ && ears_[r].letter) {
      const Transport::State state =
          ears_[r].message ? transport_->test(ears_[r].message) : Transport::State::over;
      if (state == Transport::State::under_way) break;
      ears_[r].message = nullptr;
      if (state != Transport::State::over) {
        ears_[r].letter.reset();  // nothing more comes from there
        break;
      }
      const Letter& letter = *ears_[r].letter;
      const Notice notice{
          .group = letter.group,
          .kind = letter.kind,
          .code = letter.code,
          .culprit = letter.culprit,
          .text = {letter.text, std::min<size_t>(letter.length, sizeof(letter.text))}};
      note(notice);
      if (std::ranges::find(remote_, int(r)) != remote_.end()) heard_ = Clock::now();
      if (notice.kind == Notice::Kind::probe) {
        send(int(r), {.kind = Notice::Kind::reply});
      } else if (const auto found = listeners_.find(notice.group); found != listeners_.end()) {
        found->second->hear(int(r), notice);
      } else if (notice.kind < Notice::Kind::waiting) {  // the others are not true for long
        early_.emplace_back(int(r), notice);
        if (early_.size() > kEarly) early_.pop_front();
      }
      post_ear(r);
    }
  }
}

}  // namespace tutti::group
