// What the groups of one process share on the way to other hosts: the transport, the numbers that
// groups are known by, and the notices that go beside all operations.
#pragma once

#include <tutti/error.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "group/net/transport.h"

namespace tutti::group {

// Messages of different lanes do not wait for each other.
enum class Lane : uint32_t { greeting, data, results, head, message, notice };

class Network {
 public:
  // A word to all of a group: it has failed, or the sender leaves it, is about to give up on
  // another rank, or shows the list that the others disagree with. A probe is of no group; the
  // network of its receiver replies.
  struct Notice {
    enum class Kind : uint32_t { failure, farewell, waiting, probe, reply, list };
    uint32_t group = 0;
    Kind kind = Kind::failure;
    ErrorCode code = ErrorCode::internal;
    int32_t culprit = -1;  // a rank of the job; of who waits, whom it waits for, if for one only
    std::string text = {};
  };
  class Listener {
   public:
    virtual void hear(int from, const Notice& notice) = 0;  // `from` is a rank of the job

   protected:
    ~Listener() = default;
  };

  // `remote`: the ranks on other hosts.
  Network(std::unique_ptr<Transport> transport, int rank, int size, std::vector<int> remote);
  ~Network();
  Network(const Network&) = delete;

  Transport& transport() { return *transport_; }
  int rank() const { return rank_; }

  static uint32_t tag(uint32_t group, Lane lane) { return group << 3 | uint32_t(lane); }
  // A number that no other process of the job hands out.
  uint32_t new_id();

  // From now on, and what came before.
  void add(uint32_t group, Listener* listener);
  void remove(uint32_t group);

  // One way.
  void tell(int rank, const Notice& notice);
  // Hands out what has come.
  void listen();
  // Asks the ranks on other hosts for a reply, at most every 100 ms.
  void probe();
  // Whether any of them was heard within the last second. True before the first probe.
  bool hears_other_hosts() const;
  // Whether an operation failed since somebody did not answer: who waits for all may wait in vain.
  bool misses_somebody() const { return misses_somebody_.load(); }
  // Hears nothing from now on.
  void close();

 private:
  struct Letter;
  using Clock = std::chrono::steady_clock;
  void post_ear(size_t rank);
  void note(const Notice& notice);
  void send(int rank, const Notice& notice);

  const std::unique_ptr<Transport> transport_;
  const int rank_, size_;
  const std::vector<int> remote_;
  mutable std::mutex mutex_;
  std::atomic<bool> misses_somebody_{false};
  uint64_t ids_ = 0;
  std::map<uint32_t, Listener*> listeners_;
  struct Ear {
    Transport::Message* message = nullptr;
    std::unique_ptr<Letter> letter;
  };
  std::vector<Ear> ears_;  // by rank
  std::list<std::pair<Transport::Message*, std::unique_ptr<Letter>>> outgoing_;
  std::optional<Clock::time_point> probing_since_, probed_;  // while it is asked to; and last
  Clock::time_point heard_{};                                // a rank on another host
  // Notices of groups that are not known here, or not yet.
  std::deque<std::pair<int, Notice>> early_;
};

}  // namespace tutti::group
