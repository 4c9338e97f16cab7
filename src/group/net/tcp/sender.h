// SPDX-License-Identifier: Apache-2.0
// Writes the bytes of large messages on a thread of its own, while the threads of the transport
// read and sum: two cores move them faster than one.
#pragma once

#include <poll.h>
#include <sched.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "group/net/tcp/sockets.h"

namespace tutti::group::tcp {

// Bytes to one peer go in the order in which they were added. Safe to use from any thread.
class Sender {
 public:
  // The thread may run on these cores, whatever the calling thread is bound to.
  explicit Sender(const cpu_set_t& cores);
  ~Sender();
  Sender(const Sender&) = delete;

  // The bytes belong to the sender until take_done() or drop() has returned their message.
  // `socket`, which takes nothing else from this peer on, stays open until drop().
  void add(int peer, int socket, Transport::Message* message, const void* data, size_t bytes);

  struct Broken {
    int peer;
    int error;  // why its socket takes nothing any more
  };
  struct Done {
    std::vector<Transport::Message*> written;
    std::vector<Broken> broken;
  };
  // What has happened since this was asked last. `events()` is readable if anything has.
  Done take_done();
  int events() const { return done_event_.get(); }
  // Gives up all messages to a peer, and returns them. Soon, if the socket is shut down.
  std::vector<Transport::Message*> drop(int peer);

 private:
  using Clock = std::chrono::steady_clock;
  struct Part {
    Transport::Message* message;
    const std::byte* data;
    size_t bytes;
  };
  // What goes to one peer.
  struct Lane {
    int socket = -1;
    std::deque<Part> parts = {};
    bool is_busy = false;    // the thread writes the first
    bool is_full = false;    // the socket takes nothing now
    bool is_broken = false;  // or ever
  };

  void run();
  // Writes a piece to each peer that takes one. Returns whether any did.
  bool write_all(std::unique_lock<std::mutex>& lock);
  void write_next(int peer, Lane& lane, std::unique_lock<std::mutex>& lock);
  void wait(std::unique_lock<std::mutex>& lock, Clock::time_point looks_until);

  const File event_, done_event_;
  std::mutex mutex_;
  std::map<int, Lane> lanes_;  // by peer; one that was made stays
  Done done_;
  std::vector<pollfd> files_;  // of wait()
  bool is_waiting_ = false, is_closing_ = false;
  std::thread thread_;
};

}  // namespace tutti::group::tcp
