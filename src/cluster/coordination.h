// SPDX-License-Identifier: Apache-2.0
// The link of a process to its job: which ranks take part, what they tell each other before there
// is a group, and which are lost. The implementation is the module "cluster", over gRPC; simulated
// jobs have another (sim/coordination.h).
#pragma once

#include <tutti/error.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/host_pulse.h"

namespace tutti::cluster {

// What all processes of a job must agree on, and how its service is guarded.
struct Job {
  std::vector<std::string> addresses;  // of all ranks, by rank: "127.0.0.1:5000"
  std::string token;                   // the service refuses a rank without it; may be empty
  std::string version;                 // of Tutti; another one is refused
  // Files in PEM format, all three or none. Both sides show certificates.
  std::string certificate = {}, key = {}, authority = {};
  std::chrono::nanoseconds heartbeat_interval = std::chrono::seconds(1);
  std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(10);
  bool chief_serves = false;  // the service is in rank 0's process, and is gone when that is
  // Called with a worker that the service refuses: "10.0.0.3 (wrong token)". At once, and at most
  // once a second; on a thread of the service that does nothing else.
  std::function<void(const std::string& refused)> on_refused = {};
};

// Why a job cannot go on. The text names the rank and its address.
struct Failure {
  int rank = -1;  // at fault; -1: no single one
  ErrorCode code = ErrorCode::internal;
  std::string text;
};

// The service, run by the launcher or by the chief. Safe to use from any thread.
class Service {
 public:
  virtual ~Service() = default;             // closes all connections at once
  virtual std::string address() const = 0;  // with the chosen port if port 0 was asked for
  // Waits until all ranks that joined have left or are lost; false if that takes longer.
  virtual bool wait_until_empty(std::chrono::nanoseconds timeout) = 0;
  // The same, without ranks that have been silent for some heartbeats: a job that has failed does
  // not wait for what may be the cause.
  virtual bool wait_until_quiet(std::chrono::nanoseconds timeout) = 0;
  // The first failure that a rank reported or that the service found. Empty: none so far.
  virtual std::optional<Failure> failure() const = 0;
  // How many workers were turned away: wrong token, garbage that reached a method, a foreign
  // version.
  virtual int64_t refused() const = 0;
};

// How the ranks of a host share the values of exchanges: the first of them gets the values, and
// the others get its place, where it lets them read.
struct Sharing {
  std::string host;   // those with the same share
  std::string place;  // of this rank; the service passes it on
};

// One rank's connection to the service. Safe to use from any thread. All errors name the job's
// service or the rank that is at fault.
class Coordination {
 public:
  // Says goodbye, one way; waits at most 100 ms for a service that does not answer.
  virtual ~Coordination() = default;

  // All ranks' values, by rank, once all have called it with this name. A name is used once.
  // DeadlineExceededError naming the ranks that did not come; the failure if the job fails; at most
  // 64 MiB together, names of at most 1 KiB. A barrier is an exchange of nothing. Timeouts are from
  // now; nanoseconds::max() is no limit. `why`, if not null, becomes what the service answered
  // instead. With `sharing` the result may be empty; `sharing->place` is then where another rank of
  // the host holds the values. A rank that cannot read them there repeats the call without
  // `sharing`, before its next exchange.
  virtual std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                            std::chrono::nanoseconds timeout,
                                            Failure* why = nullptr, Sharing* sharing = nullptr) = 0;

  // Tells all ranks. The first failure of a job is the one that all get; it stays.
  virtual void abort(const Failure& failure) = 0;
  // Tells the service alone, for a launcher that looks for the cause of a job's end; the job goes
  // on. One way: never waits.
  virtual void report(const Failure& failure) = 0;
  virtual std::optional<Failure> failure() const = 0;
  // From now on the speaker of the host sends heartbeats for the ranks that share this with it.
  virtual void share_heartbeats(std::shared_ptr<HostPulse> pulse) = 0;
  // How long the service has not been heard; 0 if no more than a heartbeat or two is missing, and
  // nanoseconds::max() once the job has failed here for that reason.
  virtual std::chrono::nanoseconds silence() const = 0;
  // `heard` runs once, on a thread of the connection or at once, when the job fails. Once per
  // connection, else FailedPreconditionError. It must not block, throw or destroy the connection.
  virtual void on_failure(std::function<void(const Failure&)> heard) = 0;
};

// What the module "cluster" hands out (base/module.h).
struct ClusterModule {
  // Listens on `address` ("127.0.0.1:0": any free port). UnavailableError with the remedy if it
  // cannot: the port is in use, the address is not this machine's.
  std::unique_ptr<Service> (*serve)(const Job& job, const std::string& address);
  // Joins as `rank`, waiting up to `timeout` for the service to appear. UnauthenticatedError (wrong
  // token), FailedPreconditionError (another version; another number of ranks; a rank that has
  // joined before, living or dead), DeadlineExceededError (no service there).
  std::unique_ptr<Coordination> (*join)(const Job& job, const std::string& service, int rank,
                                        std::chrono::nanoseconds timeout);
};

}  // namespace tutti::cluster
