// SPDX-License-Identifier: Apache-2.0
#include "group/net/tcp/sender.h"

#include <sys/eventfd.h>
#include <tutti/error.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/spin.h"

namespace tutti::group::tcp {

namespace {

// The thread writes this much at once.
constexpr size_t kPiece = 512 << 10;
// After a write the thread looks for more for this long before it sleeps, unless a socket is full.
constexpr std::chrono::microseconds kLook{100};
constexpr int kPauses = 20;  // between two looks

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

Sender::Sender(const cpu_set_t& cores)
    : event_(new_event()), done_event_(new_event()), thread_([this, cores] {
        sched_setaffinity(0, sizeof(cores), &cores);
        run();
      }) {}

Sender::~Sender() {
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
    signal(event_);
  }
  thread_.join();
}

void Sender::add(int peer, int socket, Transport::Message* message, const void* data,
                 size_t bytes) {
  std::lock_guard lock(mutex_);
  Lane& lane = lanes_[peer];
  lane.socket = socket;
  lane.parts.push_back({message, static_cast<const std::byte*>(data), bytes});
  if (std::exchange(is_waiting_, false)) signal(event_);
}

Sender::Done Sender::take_done() {
  std::lock_guard lock(mutex_);
  if (done_.written.empty() && done_.broken.empty()) return {};
  clear(done_event_);
  return std::exchange(done_, {});
}

std::vector<Transport::Message*> Sender::drop(int peer) {
  std::unique_lock lock(mutex_);
  Lane& lane = lanes_[peer];
  while (lane.is_busy) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  std::vector<Transport::Message*> all;
  for (const Part& part : lane.parts) all.push_back(part.message);
  lane = {};
  return all;
}

void Sender::run() {
  std::unique_lock lock(mutex_);
  Clock::time_point wrote{};
  while (!is_closing_) {
    if (write_all(lock))
      wrote = Clock::now();
    else
      wait(lock, wrote + kLook);
  }
}

bool Sender::write_all(std::unique_lock<std::mutex>& lock) {
  bool wrote = false;
  for (auto& [peer, lane] : lanes_) {
    if (lane.parts.empty() || lane.is_full || lane.is_broken) continue;
    write_next(peer, lane, lock);
    wrote |= !lane.is_full;
  }
  return wrote;
}

void Sender::write_next(int peer, Lane& lane, std::unique_lock<std::mutex>& lock) {
  Part& part = lane.parts.front();
  lane.is_busy = true;
  const int socket = lane.socket;
  lock.unlock();
  const ssize_t wrote =
      went(send(socket, part.data, std::min(part.bytes, kPiece), MSG_NOSIGNAL | MSG_DONTWAIT));
  const int error = errno;
  lock.lock();
  lane.is_busy = false;
  lane.is_broken = wrote < 0;
  lane.is_full = wrote == 0;
  if (wrote > 0) {
    part.data += wrote;
    part.bytes -= size_t(wrote);
    if (part.bytes) return;
  }
  if (lane.is_full) return;
  if (done_.written.empty() && done_.broken.empty()) signal(done_event_);
  if (lane.is_broken) return done_.broken.push_back({peer, error});
  done_.written.push_back(part.message);
  lane.parts.pop_front();
}

// Until something is added, or a socket that is full takes more.
void Sender::wait(std::unique_lock<std::mutex>& lock, Clock::time_point looks_until) {
  files_.assign(1, {event_.get(), POLLIN, 0});
  for (auto& [peer, lane] : lanes_) {
    if (lane.parts.empty() || lane.is_broken) continue;
    if (!lane.is_full) return;  // added while another was written
    files_.push_back({lane.socket, POLLOUT, 0});
  }
  if (files_.size() == 1 && Clock::now() < looks_until) {
    lock.unlock();
    for (int i = 0; i < kPauses; ++i) base::pause();
    lock.lock();
    return;
  }
  is_waiting_ = true;
  lock.unlock();
  poll(files_.data(), files_.size(), -1);
  lock.lock();
  is_waiting_ = false;
  if (files_[0].revents) clear(event_);
  for (auto& [peer, lane] : lanes_) {
    const auto takes = [&](const pollfd& file) { return file.fd == lane.socket && file.revents; };
    if (std::ranges::any_of(files_, takes)) lane.is_full = false;
  }
}

}  // namespace tutti::group::tcp
