// SPDX-License-Identifier: Apache-2.0
// What the groups of one process share on the way to other hosts: the transport, the numbers that
// groups are known by, and the notices that go beside all operations.
#pragma once

#include <tutti/error.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/world.h"
#include "group/liveness/peer_monitor.h"
#include "group/net/transport.h"

namespace tutti::group {

// Messages with different tags do not wait for each other.
enum class MessageKind : uint32_t { handshake, data, results, header, message, notice };

// Safe to use from any thread.
class ControlPlane final : public Pump {
 public:
  // To all ranks of a group: it has failed, or the sender leaves it, is about to give up on
  // another rank, or shows the list that the others disagree with. A probe is of no group; the
  // control plane of its receiver replies. A rank that leaves no group leaves the job.
  struct Notice {
    // Notices from `waiting` on soon become outdated, so they are not kept for a group that is made
    // later.
    enum class Kind : uint32_t { failure, leaving, waiting, probe, reply, list };
    uint32_t group = 0;
    Kind kind = Kind::failure;
    ErrorCode code = ErrorCode::internal;
    // A rank of the job: of a failure the one at fault, of `waiting` the one waited for. -1: none,
    // or several.
    int32_t culprit = -1;
    std::string text = {};
  };
  class Listener {
   public:
    virtual void hear(int from, const Notice& notice) = 0;  // `from` is a rank of the job
    virtual std::span<const int> members() const = 0;       // of the group; ranks of the job

   protected:
    ~Listener() = default;
  };

  // `is_remote`: whether a rank is on another host.
  ControlPlane(std::unique_ptr<Transport> transport, int rank, int size,
               std::function<bool(int rank)> is_remote);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;

  Transport& transport() { return *transport_; }

  static uint32_t tag(uint32_t group, MessageKind kind) { return group << 3 | uint32_t(kind); }
  // A number that no other process of the job hands out.
  uint32_t new_group_id();

  // `listener` hears the notices of a group from now on, and those that came before.
  void add(uint32_t group, Listener* listener);
  void remove(uint32_t group);

  // Sends a notice and returns. Those of `ranks` that are connected get it at once. A failure also
  // goes to ranks at distances 1, 2, 4, ... in the list, connected or not, and every receiver
  // passes it on. The other ranks get a failure, or that this rank leaves, when they connect.
  void tell(std::span<const int> ranks, const Notice& notice);
  // Whether the transport has, or had, a connection to this rank.
  bool is_connected(int rank) const;
  // Hands out the notices that have come.
  void dispatch();
  // Drives the transport, and hands out notices.
  void pump() override {
    transport_->progress();
    dispatch();
  }
  // Asks ranks on other hosts for a reply, at most every timing::kProbeEvery.
  void probe();
  // Whether any rank on another host replied within timing::kHeard. True before the first probe.
  bool hears_other_hosts() const;
  // Whether an operation failed because a rank was lost or late. A wait for all ranks may then be
  // in vain.
  bool misses_a_rank() const { return misses_a_rank_.load(); }
  size_t reserved() const;  // as that of Backend
  // Tells the ranks that are connected that this one leaves the job, and with it every group.
  void leave();
  std::optional<base::Clock::time_point> left_at(int rank) const;
  // Whether a probe of this rank may be answered: it is connected, or may still be.
  bool may_reply(int rank) const;
  // Logs what other programs tried at this rank's port, at most once a second.
  void warn_of_strangers();
  // Receives no notices from now on.
  void close();

 private:
  struct Frame;
  using Clock = base::Clock;
  struct Receiver;
  void take_connections();
  void add_peer(int rank);
  void post_receiver(int rank, Receiver& receiver);
  void take(int rank, Receiver& receiver);
  void hand_out(int from, Listener& listener, const Notice& notice);
  void note(const Notice& notice);
  void send(int rank, const Notice& notice);
  void send_to_all(std::span<const int> ranks, const Notice& notice);

  const std::unique_ptr<Transport> transport_;
  const int rank_, size_;
  const std::function<bool(int)> is_remote_;
  mutable std::mutex mutex_;
  std::atomic<bool> misses_a_rank_{false};
  uint64_t ids_ = 0;
  std::map<uint32_t, Listener*> listeners_;
  std::map<int, Receiver> receivers_;  // by rank: those that are connected
  std::list<std::pair<Transport::Message*, std::unique_ptr<Frame>>> outgoing_;
  std::optional<Clock::time_point> probing_since_, probed_;  // first of a row of probes; last probe
  Clock::time_point heard_{};                                // last reply from another host
  // Notices of groups that are not known here, or not yet.
  std::deque<std::pair<int, Notice>> early_;
  struct Kept {
    Notice notice;
    std::vector<int> ranks;  // that it is for; empty: all
  };
  std::deque<Kept> kept_;       // for ranks that connect later
  std::set<int> called_;        // ranks that were probed before they were connected
  std::set<uint32_t> failed_;   // groups whose failure was told, or passed on
  Clock::time_point warned_{};  // of refused connections
};

}  // namespace tutti::group
