// SPDX-License-Identifier: Apache-2.0
// What the coordination service knows of its job: which ranks are there, what they wait for, and
// what went wrong. It decides; the caller moves messages and keeps time. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/session.h"

namespace tutti::cluster {

// Workers that were turned away, for one line of text: each host and reason once, and not too many.
class Refusals {
 public:
  void add(const std::string& refused);
  bool empty() const { return refused_.empty(); }
  std::string text() const;

 private:
  std::vector<std::string> refused_;
  int more_ = 0;
};

class JobState {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The way to the ranks that are here. Called from within the methods below.
  class Outlet {
   public:
    virtual ~Outlet() = default;
    virtual void send(int rank, FromService message) = 0;
    virtual void drop(int rank) = 0;  // end its stream: it is lost
  };

  // `address` is the service's own.
  JobState(const Job& job, const std::string& address, Outlet& outlet, Time now);

  // Takes a rank in, or throws the error that says why not. `welcome` must be called once the
  // outlet reaches it.
  void admit(const Hello& hello, Time now);
  void welcome(int rank);
  void refused(const std::string& refused) { refusals_.add(refused); }  // for the texts of errors

  void handle(int rank, const ToService& message, Time now);
  void closed(int rank);  // its stream ended: it is lost, unless it has said goodbye

  // Heartbeats, both ways, and whatever is overdue.
  void tick(Time now);
  Time next_tick() const;

  // The first failure that a rank reported, or that failed the job. If it blames a rank that missed
  // a deadline itself, the failure that that rank reported.
  std::optional<Failure> first_failure() const;

  bool empty() const;  // all ranks that came have left or are lost
  // When all ranks that are here will have been silent for longer than heartbeats are apart.
  Time quiet_at() const;

 private:
  enum class Presence { absent, here, left, lost };
  struct Member {
    Presence presence = Presence::absent;
    Time last_heard = {};
    bool is_speaker = false;     // of other ranks on its host
    bool is_spoken_for = false;  // by the speaker, which hears heartbeats for it
    // Of the last exchange, if another rank on its host got the values: it may not reach them
    // there.
    std::string shared_name = {};
    std::shared_ptr<const std::vector<std::string>> shared = {};
  };
  // A call that waits for its reply.
  struct Waiter {
    int rank;
    uint64_t id;
    std::chrono::nanoseconds timeout;
    Time deadline;
  };
  struct OpenExchange {
    std::map<int, std::string> values;
    std::map<int, Sharing> sharing;
    std::vector<Waiter> waiters;
    Time deadline = Time::max();  // the earliest of the waiters
    size_t bytes = 0;
  };

  void exchange(const Waiter& waiter, const Exchange& call);
  void leave(int rank);
  void depart(int rank, Presence presence);

  void close_exchange(const std::string& name, std::optional<Failure> error);
  void reply_values(const std::string& name, const OpenExchange& exchange);
  void fail_what_needs(int rank);     // that has left
  void fail(const Failure& failure);  // the job
  void send_heartbeats(Time now);
  void take_heartbeat(int rank, const Heartbeat& heartbeat, Time now);
  void lose_the_silent(Time now);
  void hear(int rank, Time now);
  // The ranks or this process were suspended for `time`, which counts against no rank.
  void forgive(Time now, std::chrono::nanoseconds time);
  // Whether no rank on another host is heard, and there are two such hosts or more.
  bool is_cut_off(Time now) const;
  void fail_what_is_overdue(Time now);

  void reply(const Waiter& waiter, Reply reply);
  void reply_error(const Waiter& waiter, const Failure& error);
  void broadcast(const FromService& message);

  std::string name(int rank) const;  // "rank 2 (worker-2:5000)"
  int first_missing(const OpenExchange& exchange) const;
  std::string names_of_missing(const OpenExchange& exchange) const;

  const Job job_;
  const std::string host_;  // of the service
  Outlet& outlet_;
  std::vector<Member> members_;
  std::vector<int> left_;  // those that have left
  std::optional<Failure> failure_, first_failure_;
  std::map<int, Failure> reported_;  // the first of each rank
  std::map<std::string, OpenExchange> open_;
  // Exchanges whose names are used up. A rank that comes late gets the error of one that failed.
  std::map<std::string, std::optional<Failure>> closed_;
  Refusals refusals_;
  Time next_heartbeat_;
  Time last_heard_;  // from any rank
};

}  // namespace tutti::cluster
