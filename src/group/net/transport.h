// Moves messages between the processes of a job. The implementations are modules ("tcp", "ucx",
// "mpi"); tests put another in their place.
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
  class Message;  // one that is under way; null: it is over already
  enum class State { under_way, over, failed, too_long };  // the last: for what receives it

  virtual ~Transport() = default;
  virtual const char* name() const = 0;

  // The memory belongs to the message until it is over. Messages from one rank to another with the
  // same tag arrive in the order they were sent. A message must not be longer than what receives
  // it. Only the lower 32 bits of a tag count.
  virtual Message* send(int to, uint64_t tag, const void* data, size_t bytes) = 0;
  virtual Message* receive(int from, uint64_t tag, void* data, size_t bytes) = 0;
  // Whether it is over; if so, or if it failed, it is gone after this.
  virtual State test(Message* message) = 0;
  virtual bool is_under_way(const Message* message) = 0;
  // Its memory is not touched any more once this returns, and it is gone; to get there, the
  // connection may have to be cut. False where that cannot be had: then its memory is lost.
  virtual bool cancel(Message* message) = 0;

  virtual void progress() = 0;
  // Tests it, and makes progress so many times at most until it is over.
  virtual State advance(Message* message, int times) {
    State state = test(message);
    for (int i = 0; i < times && state == State::under_way; ++i) {
      progress();
      state = test(message);
    }
    return state;
  }
  // Waits for what was sent to be on its way, so long at most.
  virtual void flush(std::chrono::nanoseconds at_most) = 0;
  // Returns when something may have happened, or after so long; at once where the message is over.
  // Null: for whatever comes.
  virtual void sleep(const Message* message, std::chrono::nanoseconds at_most) = 0;

  // Why nothing more can come from a rank; empty while it may.
  virtual std::string loss(int rank) const = 0;

  // Its connections, if it knows their descriptors.
  virtual std::vector<int> sockets() { return {}; }
};

// One process before it knows the others.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // What the others need to reach this process.
  virtual std::string address() const = 0;
  // All addresses, by rank. `check` throws where the job has failed meanwhile.
  virtual std::unique_ptr<Transport> connect(const std::vector<std::string>& addresses, int rank,
                                             const std::function<void()>& check) = 0;
};

// What the module "tcp" hands out.
struct TcpModule {
  // `host`: whose address to listen on. `patience`: with others that do not connect.
  std::unique_ptr<Endpoint> (*open)(const std::string& host, std::chrono::nanoseconds patience);
};

// What the module "ucx" hands out.
struct UcxModule {
  // `devices`: the network interfaces to use; empty leaves it to UCX.
  std::unique_ptr<Endpoint> (*open)(const std::string& devices);
  const char* (*version)();
};

// What a module for MPI hands out. MPI is initialised when it is first asked, if the program has
// not done that.
struct MpiModule {
  int (*rank)();
  int (*size)();
  // Everybody's text, by rank; a collective.
  std::vector<std::string> (*all_gather)(const std::string& mine);
  std::unique_ptr<Transport> (*transport)();
  void (*finalize)();  // if it was not the program that initialised it
  const char* (*version)();
};

}  // namespace tutti::group
