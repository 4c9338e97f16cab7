// SPDX-License-Identifier: Apache-2.0
#include "group/net/tcp/sender.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tutti::group::tcp {

namespace {

// The thread writes this much at once. A call that takes a message back waits for that.
constexpr size_t kPiece = 256 << 10;

File new_event() {
  File event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!event)
    throw ResourceExhaustedError("tcp: no file is left to wake a thread with; raise ulimit -n");
  return event;
}

void signal(const File& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(event.get(), &one, sizeof(one));
}

void clear(const File& event) {
  uint64_t count;
  [[maybe_unused]] const ssize_t taken = read(event.get(), &count, sizeof(count));
}

}  // namespace

Sender::Sender() : event_(new_event()), sent_event_(new_event()), thread_([this] { run(); }) {}

Sender::~Sender() {
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
    signal(event_);
  }
  thread_.join();
}

void Sender::add(TcpMessage* message, int socket) {
  std::lock_guard lock(mutex_);
  Lane& lane = lanes_[message->peer];
  lane.socket = socket;
  lane.messages.push_back(message);
  if (std::exchange(is_waiting_, false)) signal(event_);
}

std::vector<TcpMessage*> Sender::take_sent() {
  std::lock_guard lock(mutex_);
  if (!sent_.empty()) clear(sent_event_);
  return std::exchange(sent_, {});
}

bool Sender::withdraw(TcpMessage* message) {
  std::unique_lock lock(mutex_);
  Lane& lane = lanes_[message->peer];
  settle(lane, lock);
  const auto found = std::ranges::find(lane.messages, message);
  if (found == lane.messages.end() || message->done > 0) return false;
  lane.messages.erase(found);
  return true;
}

std::vector<TcpMessage*> Sender::drop(int peer) {
  std::unique_lock lock(mutex_);
  Lane& lane = lanes_[peer];
  settle(lane, lock);
  std::vector<TcpMessage*> all(lane.messages.begin(), lane.messages.end());
  lane = {};
  return all;
}

void Sender::settle(const Lane& lane, std::unique_lock<std::mutex>& lock) const {
  while (lane.is_busy) {
    lock.unlock();
    base::yield();
    lock.lock();
  }
}

void Sender::run() {
  std::unique_lock lock(mutex_);
  while (!is_closing_) {
    bool wrote = false;
    for (auto& [peer, lane] : lanes_) {  // a piece of each in turn
      if (lane.messages.empty() || lane.is_full || lane.is_broken) continue;
      write_next(lane, lock);
      wrote = true;
    }
    if (!wrote) wait(lock);
  }
}

void Sender::write_next(Lane& lane, std::unique_lock<std::mutex>& lock) {
  TcpMessage& message = *lane.messages.front();
  lane.is_busy = true;
  lock.unlock();
  const ssize_t wrote = send_from(lane.socket, message, kPiece);
  lock.lock();
  lane.is_busy = false;
  lane.is_broken = wrote < 0;
  lane.is_full = wrote == 0;
  if (wrote <= 0) return;
  message.done += size_t(wrote);
  if (!message.is_written()) return;
  lane.messages.pop_front();
  sent_.push_back(&message);
  if (sent_.size() == 1) signal(sent_event_);
}

// Until a message is added, or a socket that is full takes more.
void Sender::wait(std::unique_lock<std::mutex>& lock) {
  std::vector<pollfd> files{{event_.get(), POLLIN, 0}};
  std::vector<Lane*> full;
  for (auto& [peer, lane] : lanes_) {
    if (!lane.is_full || lane.messages.empty()) continue;
    files.push_back({lane.socket, POLLOUT, 0});
    full.push_back(&lane);
  }
  is_waiting_ = true;
  lock.unlock();
  poll(files.data(), files.size(), -1);
  lock.lock();
  is_waiting_ = false;
  if (files[0].revents) clear(event_);
  for (size_t i = 0; i < full.size(); ++i)
    if (files[i + 1].revents) full[i]->is_full = false;
}

}  // namespace tutti::group::tcp
