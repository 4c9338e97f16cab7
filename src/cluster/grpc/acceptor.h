// SPDX-License-Identifier: Apache-2.0
// The coordination service's listening socket. gRPC gets a connection only after its peer has
// proved that it belongs to the job, so that what strangers send is never parsed as HTTP/2, and
// costs neither memory nor descriptors beyond a fixed bound.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/descriptors.h"
#include "cluster/coordination.h"
#include "cluster/grpc/wire.h"

namespace tutti::cluster {

// The server that a worker of this job asks for by HTTP CONNECT before it speaks HTTP/2, which is
// what gRPC sends to a proxy. It holds a keyed hash of the token; under TLS, whose certificates
// keep strangers out, nothing that depends on the token.
std::string pass_of(const Job& job);

// The host in what gRPC calls a peer, such as "ipv4:10.0.0.3:5000" or "ipv6:%5B::1%5D:5000".
std::string host_of(std::string_view peer);

using base::Descriptor;

// Its thread accepts connections, reads their first bytes, and bounds how many have not joined and
// for how long. Thread-safe.
class Acceptor {
 public:
  // Listens on all addresses of `address`, "HOST:PORT". UnavailableError if it cannot.
  Acceptor(const Job& job, const std::string& address);
  ~Acceptor();  // closes what has not been handed over

  int port() const { return port_; }

  // `hand_over` takes the descriptor of a connection that showed the pass; `wrong_token` gets the
  // host of a worker that showed another one. Both run on the acceptor's thread. Called once.
  void start(std::function<void(int fd)> hand_over,
             std::function<void(const std::string& host)> wrong_token);

  // No connection is handed over any more.
  void stop();

  // The peer of this connection, as gRPC calls it, is a rank: it may stay.
  void joined(const std::string& peer);

 private:
  struct Visitor {
    Descriptor fd;  // after it was handed over, a duplicate to cut the connection with
    std::string host, peer;
    Clock::time_point deadline;
    std::string heard = {};
    bool handed_over = false;
  };
  enum class Verdict { undecided, pass, wrong_token, stranger };

  bool listen(const std::string& host, const std::string& port);
  void run();
  void attend();
  void release_joined();
  void take_connections(int listener);
  void evict();
  bool hears(Visitor& visitor);  // false: its connection ends
  bool hand_over(Visitor& visitor);
  Verdict judge(std::string_view heard) const;

  const std::string pass_;
  const size_t most_;  // connections that have not joined
  int port_ = 0;
  std::vector<Descriptor> listeners_;
  Descriptor wake_;
  std::vector<Visitor> visitors_;  // the oldest first
  Clock::time_point accepts_at_ = {};
  std::function<void(int)> hand_over_;
  std::function<void(const std::string&)> wrong_token_;

  std::mutex mutex_;
  std::vector<std::string> joined_;  // guarded by the mutex
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::cluster
