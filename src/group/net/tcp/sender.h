// SPDX-License-Identifier: Apache-2.0
// Writes large messages on a thread of its own, while the threads of the transport read and sum:
// two cores move them faster than one.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "base/world.h"
#include "group/net/tcp/sockets.h"

namespace tutti::group::tcp {

// The messages to one peer go in the order in which they were added. Safe to use from any thread;
// no call waits for longer than one write takes.
class Sender {
 public:
  Sender();
  ~Sender();
  Sender(const Sender&) = delete;

  // The message and its memory belong to the sender until take_sent(), withdraw() or drop() returns
  // it. `socket` stays open until drop().
  void add(TcpMessage* message, int socket);
  // Those that have been written. `events()` is readable if there are any.
  std::vector<TcpMessage*> take_sent();
  int events() const { return sent_event_.get(); }
  // Takes back a message of which nothing was written; false if that is too late.
  bool withdraw(TcpMessage* message);
  // Takes back all messages to a peer, whose socket is not used any more.
  std::vector<TcpMessage*> drop(int peer);

 private:
  // The messages to one peer.
  struct Lane {
    int socket = -1;
    std::deque<TcpMessage*> messages = {};
    bool is_busy = false;    // the thread writes the first
    bool is_full = false;    // the socket takes nothing now
    bool is_broken = false;  // or ever: a thread that reads from it learns why
  };

  void run();
  void write_next(Lane& lane, std::unique_lock<std::mutex>& lock);
  void wait(std::unique_lock<std::mutex>& lock);
  void settle(const Lane& lane, std::unique_lock<std::mutex>& lock) const;

  const File event_, sent_event_;
  std::mutex mutex_;
  std::map<int, Lane> lanes_;  // by peer; one that was made stays
  std::vector<TcpMessage*> sent_;
  bool is_waiting_ = false, is_closing_ = false;
  base::Thread thread_;
};

}  // namespace tutti::group::tcp
