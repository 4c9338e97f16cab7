// SPDX-License-Identifier: Apache-2.0
// The connections of a rank while they are being made: it calls peers, and answers those that call.
// A connection counts once both sides have proved that they know the secret of the called rank:
//
//   caller to called   Opening     which rank calls which, what for, and a random number
//   called to caller   Challenge   another random number, and a keyed hash of what was said
//   caller to called   Answer      another keyed hash of it
//   called to caller   Reply
//
// Two ranks have one connection for their messages: if both call at once, the call of the higher
// one counts. Each may have another, which it calls for, for the bytes of large messages that it
// sends. Any other program that connects is a stranger: it gets little time, and strangers get few
// descriptors.
#pragma once

#include <chrono>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "group/net/tcp/sockets.h"

namespace tutti::group::tcp {

// Never blocks. Not thread-safe.
class Connector {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Purpose : uint32_t { messages, bulk };
  struct Made {
    int rank;
    File file;
    Purpose purpose;
    bool called;  // by this rank
  };
  struct Failed {
    int rank;
    std::string why;  // "at 10.0.0.3:4711: Connection refused"
  };

  // `epoll` reports the files of this connector, with numbers that it owns.
  Connector(Place place, int epoll);
  ~Connector();

  // Connects to a peer, unless that has begun. A call for bulk fails silently.
  void call(int peer, Purpose purpose = Purpose::messages);
  // Whether the system of that peer has taken the call, or a connection to it was made.
  bool is_reached(int peer) const;

  static bool owns(uint64_t event) { return event >> 63; }
  void handle(uint64_t event);
  // Whether check_deadlines() has something to do, soon or now.
  bool has_deadlines() const { return !calls_.empty() || !pending_.empty() || !listens_; }
  void check_deadlines();

  std::vector<Made> take_made() { return std::exchange(made_, {}); }
  std::vector<Failed> take_failed() { return std::exchange(failed_, {}); }
  // As that of Transport.
  std::string take_refused();

  int port() const;
  const PeerAddress& address(int rank) const { return place_.ranks[size_t(rank)]; }

 private:
  using Nonce = std::array<unsigned char, 16>;
  using Digest = std::array<unsigned char, 32>;
  struct Opening {
    uint32_t mark = kMark;
    uint32_t to = 0, from = 0;
    Purpose purpose = {};
    Nonce nonce{};
  };
  struct Challenge {
    Nonce nonce{};
    Digest proof{};
  };
  enum class Reply : uint32_t { welcome = 1, wait_for_mine, second, lost };
  enum class Stage { connecting, opening, challenge, answer, reply };  // what is awaited
  // A connection that is being made: to a peer that is called, or from a program that has called.
  struct Pending {
    uint64_t event;
    File file;
    Stage stage;
    Clock::time_point deadline;
    std::string host = {};  // of the caller; empty if this rank calls
    Opening opening = {};
    Challenge challenge = {};
    Digest answer = {};
    Reply reply = {};
    size_t got = 0;  // of what is awaited
  };
  using PendingList = std::list<Pending>;  // the oldest first
  struct Call {
    PendingList::iterator pending;                       // the end: there is none at the moment
    Clock::time_point again = Clock::time_point::max();  // when the next one begins
    std::optional<Clock::time_point> failing_since = {};
  };
  using CallKey = std::pair<int, Purpose>;  // of the peer
  enum class Side { caller, called };

  static CallKey key_of(const Pending& own) { return {int(own.opening.to), own.opening.purpose}; }
  Digest proof_of(Side side, const Pending& about) const;
  PendingList::iterator begin(File file, Stage stage, uint32_t interest);
  void end(PendingList::iterator pending);
  void listen(bool on);
  void accept_all();
  void make_room();
  void leave_out_suspensions();
  void dial(CallKey key, Call& call);
  // Calls again later, unless the error is final or calls have failed for long.
  void call_failed(CallKey key, int error);
  // Reads what is awaited. Returns whether all of it is there; throws an errno, 0 for the end.
  bool receive(Pending& pending);
  void advance(PendingList::iterator pending);
  void answer_caller(PendingList::iterator pending);
  void refuse(PendingList::iterator pending, const char* why);
  void has_connection(PendingList::iterator pending, bool called);

  Place place_;
  const int epoll_;
  const size_t most_strangers_;
  bool listens_ = false;
  Clock::time_point listens_again_{}, looks_again_{}, looked_{};
  uint64_t events_ = 0;
  PendingList pending_;
  std::map<CallKey, Call> calls_;
  std::vector<bool> connected_, given_up_;  // by rank: it has, or had, a connection; it gets none
  std::vector<bool> bulk_called_, bulk_taken_;  // by rank: it was called for bulk, or has called
  std::vector<Made> made_;
  std::vector<Failed> failed_;
  bool lacks_files_ = false;
  int refused_ = 0;
  std::string last_refused_;
};

}  // namespace tutti::group::tcp
