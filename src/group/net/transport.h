// SPDX-License-Identifier: Apache-2.0
// Moves messages between the processes of a job. Each implementation has a folder here and a line
// tutti_transport() in src/CMakeLists.txt, but for those of the simulation (sim/transport.h) and of
// the tests.
#pragma once

#include <tutti/error.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::group {

// Safe to use from any thread. Ranks are those of the job.
class Transport {
 public:
  struct Message {};  // one under way; a transport derives its own. Null: it is over already
  // too_long: a receive got a message that is longer than its memory.
  enum class State { under_way, over, failed, too_long };

  virtual ~Transport() = default;
  virtual const char* name() const = 0;

  // The memory belongs to the message until it is over. Messages from one rank to another with the
  // same tag arrive in the order they were sent. A message must not be longer than what receives
  // it. Only the lower 32 bits of a tag count.
  virtual Message* send(int to, uint64_t tag, const void* data, size_t bytes) = 0;
  virtual Message* receive(int from, uint64_t tag, void* data, size_t bytes) = 0;
  // Returns the state of a message. Unless that is under_way, the message is gone afterwards.
  virtual State test(Message* message) = 0;
  virtual bool is_under_way(const Message* message) = 0;
  // Whether a receive is over, or has begun: then the rest of it comes, unless the peer is lost.
  virtual bool is_coming(const Message*) { return false; }
  // Ends a message, which is gone afterwards. Its memory is not touched once this returns; the
  // connection may be cut for that. False if that is impossible: the memory must then never be used
  // again.
  virtual bool cancel(Message* message) = 0;

  virtual void progress() = 0;
  // Polls the message, driving progress up to `times` times.
  virtual State advance(Message* message, int times) {
    State state = test(message);
    for (int i = 0; i < times && state == State::under_way; ++i) {
      progress();
      state = test(message);
    }
    return state;
  }
  // Waits up to `at_most` until what was sent is on its way.
  virtual void flush(std::chrono::nanoseconds at_most) = 0;
  // Returns when something may have happened, or after `at_most`; at once if the message is over.
  // Null: for any message.
  virtual void sleep(const Message* message, std::chrono::nanoseconds at_most) = 0;

  // Why nothing more can come from a rank; empty while it may.
  virtual std::string loss(int rank) const = 0;

  // A transport that connects on demand makes the connection to a rank when a message is sent to it
  // or awaited from it. Any other has all connections from the beginning.
  virtual bool connects_on_demand() const { return false; }
  // Connections that were made since this was asked last, by this rank or by the other; only if
  // they are made on demand.
  struct Connection {
    int rank;
    int socket;
    bool is_bulk = false;  // for large messages only, beside the one that is for all others
  };
  virtual std::vector<Connection> new_connections() { return {}; }
  // The TCP port at which this rank accepts connections; 0: it does not.
  virtual int port() const { return 0; }
  // What other programs tried at that port since this was asked last, as text; empty: nothing.
  virtual std::string refused() { return {}; }
};

// One process before it knows the others.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // What the others need to reach this process; any bytes.
  virtual std::string address() const = 0;
  // All addresses, by rank. `check` throws if the job has failed meanwhile. The transport outlives
  // the endpoint.
  virtual std::unique_ptr<Transport> connect(const std::vector<std::string>& addresses, int rank,
                                             const std::function<void()>& check) = 0;
};

// What a process knows of its network when it opens a transport.
struct TransportOptions {
  int rank = 0;
  std::string address = {};     // of this rank in the cluster: "worker-2:5000"
  std::string interfaces = {};  // TUTTI_INTERFACES, as in "eth0,eth1"
  std::string interface = {};   // which has the host of `address`: "ib0"; empty: none here has it
  std::string devices = {};     // the same with its RDMA devices: "ib0,mlx5_0:1"
  std::string host = {};  // the IP address to listen on; empty: no interface of `interfaces` is up
  std::chrono::nanoseconds timeout = std::chrono::nanoseconds::max();  // for peers to connect
  // Whether the bytes of large messages take connections of their own, to which another thread
  // writes. It pays if each rank of this machine has two cores.
  bool sends_in_bulk = false;
};

// How the processes of one launcher exchange texts before they know each other's addresses. The
// launcher's library is initialised by the first call, if the program has not done that.
struct Rendezvous {
  int (*rank)();
  int (*size)();
  // The texts of all ranks, by rank; a collective.
  std::vector<std::string> (*all_gather)(const std::string& mine);
  void (*finalize)();        // if the program did not initialise it
  const char* (*library)();  // its name and version
};

// What the module of a transport hands out (base/module.h).
struct TransportModule {
  std::unique_ptr<Endpoint> (*open)(const TransportOptions& options);
  // The network interface that `open` would use, and why, for tutti info --job.
  std::string (*interface_in_use)(const TransportOptions& options);
  const Rendezvous* rendezvous;  // null: none
};

}  // namespace tutti::group
