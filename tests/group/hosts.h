// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads but live on several hosts: messages go through a network in memory, and
// only ranks of one host share memory. A large message is read from the sender's memory when it is
// received, as real transports do it.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "group/net/backend.h"
#include "group/secluded.h"

namespace tutti::testing {

class TestNetwork {
 public:
  using State = group::Transport::State;
  struct Message : group::Transport::Message {
    std::byte* data;
    size_t bytes;
    bool sending;
    State state = State::under_way;
  };
  struct Key {
    int from, to;
    uint64_t tag;
    auto operator<=>(const Key&) const = default;
  };

  Message* send(const Key& key, const void* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    if (lost(key.from) || lost(key.to)) return new_send(State::failed);
    Box& box = boxes_[key];
    // A small message is copied at once.
    Envelope& envelope = box.envelopes.emplace_back();
    envelope.from = static_cast<const std::byte*>(data);
    envelope.bytes = bytes;
    Message* message = nullptr;
    if (bytes <= 512) {
      envelope.copy.assign(envelope.from, envelope.from + bytes);
    } else {
      message = envelope.sender = new_send(State::under_way);
    }
    deliver(key);
    return message;
  }
  Message* receive(const Key& key, void* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    auto* const message = new Message{{}, static_cast<std::byte*>(data), bytes, false};
    boxes_[key].receivers.push_back(message);
    deliver(key);
    return message;
  }
  State test(Message* message) {
    std::lock_guard lock(mutex_);
    const State state = message->state;
    if (state != State::under_way) drop(message);
    return state;
  }
  bool is_under_way(const Message* message) {
    std::lock_guard lock(mutex_);
    return message->state == State::under_way;
  }
  void cancel(Message* message) {
    std::lock_guard lock(mutex_);
    for (auto& [key, box] : boxes_) {
      std::erase(box.receivers, message);
      std::erase_if(box.envelopes,
                    [&](const Envelope& envelope) { return envelope.sender == message; });
    }
    drop(message);
  }
  void sleep(const Message* message, std::chrono::nanoseconds at_most) {
    std::unique_lock lock(mutex_);
    if (message && message->state != State::under_way) return;
    const uint64_t before = delivered_;
    changed_.wait_for(lock, at_most, [&] { return delivered_ != before; });
  }
  // Nothing comes from this rank, or gets there, any more.
  void lose(int rank) {
    std::lock_guard lock(mutex_);
    lost_.push_back(rank);
    for (auto& [key, box] : boxes_)
      if (key.from == rank || key.to == rank)
        for (Envelope& envelope : box.envelopes)
          if (envelope.sender) std::exchange(envelope.sender, nullptr)->state = State::failed;
    ++delivered_;
    changed_.notify_all();
  }
  // Connects two ranks that connect on demand.
  void connect(int one, int other) {
    std::lock_guard lock(mutex_);
    if (!connected_.insert(std::minmax(one, other)).second) return;
    new_peers_[one].push_back({other, -1});
    new_peers_[other].push_back({one, -1});
  }
  std::vector<group::Transport::Connection> new_connections(int rank) {
    std::lock_guard lock(mutex_);
    return std::exchange(new_peers_[rank], {});
  }
  // The most sends at a time that were not tested yet.
  int most_sends() {
    std::lock_guard lock(mutex_);
    return most_sends_;
  }
  bool is_lost(int rank) {
    std::lock_guard lock(mutex_);
    return lost(rank);
  }

 private:
  struct Envelope {
    const std::byte* from;
    size_t bytes;
    std::vector<std::byte> copy;
    Message* sender = nullptr;
  };
  struct Box {
    std::list<Envelope> envelopes;
    std::deque<Message*> receivers;
  };

  Message* new_send(State state) {
    most_sends_ = std::max(most_sends_, ++sends_);
    return new Message{{}, nullptr, 0, true, state};
  }
  void drop(Message* message) {
    sends_ -= message->sending;
    delete message;
  }
  bool lost(int rank) const { return std::ranges::find(lost_, rank) != lost_.end(); }
  void deliver(const Key& key) {
    Box& box = boxes_[key];
    while (!box.envelopes.empty() && !box.receivers.empty()) {
      Envelope& envelope = box.envelopes.front();
      Message* const receiver = box.receivers.front();
      const bool fits = envelope.bytes <= receiver->bytes;
      if (fits && envelope.bytes)
        std::memcpy(receiver->data, envelope.sender ? envelope.from : envelope.copy.data(),
                    envelope.bytes);
      receiver->state = fits ? State::over : State::too_long;
      if (envelope.sender) envelope.sender->state = State::over;
      box.envelopes.pop_front();
      box.receivers.pop_front();
    }
    if (box.envelopes.empty() && box.receivers.empty()) boxes_.erase(key);
    ++delivered_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t delivered_ = 0;
  int sends_ = 0, most_sends_ = 0;
  std::map<Key, Box> boxes_;
  std::vector<int> lost_;
  std::set<std::pair<int, int>> connected_;
  std::map<int, std::vector<group::Transport::Connection>> new_peers_;
};

class TestTransport : public group::Transport {
 public:
  TestTransport(std::shared_ptr<TestNetwork> network, int rank, bool on_demand = false)
      : network_(std::move(network)), rank_(rank), on_demand_(on_demand) {}
  const char* name() const override { return "in_memory"; }
  Message* send(int to, uint64_t tag, const void* data, size_t bytes) override {
    if (on_demand_) network_->connect(rank_, to);
    return network_->send({rank_, to, tag}, data, bytes);
  }
  Message* receive(int from, uint64_t tag, void* data, size_t bytes) override {
    if (on_demand_) network_->connect(rank_, from);
    return network_->receive({from, rank_, tag}, data, bytes);
  }
  bool connects_on_demand() const override { return on_demand_; }
  std::vector<Connection> new_connections() override { return network_->new_connections(rank_); }
  State test(Message* message) override {
    return message ? network_->test(own(message)) : State::over;
  }
  bool is_under_way(const Message* message) override {
    return network_->is_under_way(own(message));
  }
  bool cancel(Message* message) override {
    if (message) network_->cancel(own(message));
    return true;
  }
  void progress() override {}
  void flush(std::chrono::nanoseconds) override {}
  void sleep(const Message* message, std::chrono::nanoseconds at_most) override {
    network_->sleep(own(message), at_most);
  }
  std::string loss(int rank) const override {
    return network_->is_lost(rank) ? "connection reset" : "";
  }

 private:
  static TestNetwork::Message* own(Message* message) {
    return static_cast<TestNetwork::Message*>(message);
  }
  static const TestNetwork::Message* own(const Message* message) {
    return static_cast<const TestNetwork::Message*>(message);
  }

  const std::shared_ptr<TestNetwork> network_;
  const int rank_;
  const bool on_demand_;
};

// Rank r on host host_of(r).
template <class HostOf>
std::vector<Group> on_hosts(int n, const HostOf& host_of,
                            std::shared_ptr<TestNetwork> network = std::make_shared<TestNetwork>(),
                            const base::Costs& costs = {}) {
  static std::atomic<bool> alarm{false};
  std::map<int, std::shared_ptr<Commons>> commons;
  std::vector<std::string> hosts, addresses;
  for (int r = 0; r < n; ++r) {
    hosts.push_back("host" + std::to_string(host_of(r)));
    addresses.push_back(hosts.back() + ":" + std::to_string(5000 + r));
    commons.try_emplace(host_of(r), std::make_shared<Commons>(Seclusion{}));
  }
  const auto job_ranks =
      std::make_shared<const group::JobRanks>(group::JobRanks{addresses, hosts, hosts});
  std::vector<group::NetworkBackend::Plan> plans;
  std::vector<group::Introduction> introductions;
  for (int r = 0; r < n; ++r) {
    int index = 0;
    for (int other = 0; other < r; ++other) index += host_of(other) == host_of(r);
    const auto& here = commons[host_of(r)];
    group::HostPeers host_peers;
    if (std::ranges::count(hosts, hosts[size_t(r)]) > 1)
      host_peers = {std::make_shared<SecludedMemory>(here, index),
                    std::make_shared<group::BlockPool>(), here};
    const auto job = std::make_shared<const group::JobTopology>(group::JobTopology{
        .rank = r,
        .ranks = job_ranks,
        .control = std::make_shared<group::ControlPlane>(
            std::make_unique<TestTransport>(network, r), r, n, [](int) { return false; }),
        .host_peers = std::move(host_peers),
        .crowded = true,
        .alarm = &alarm,
        .failure = [] { return std::nullopt; },
        .isolation = [] { return std::string(); },
        .costs = costs});
    plans.emplace_back(job);
    introductions.push_back(plans.back().introduction());
  }
  std::vector<Group> groups;
  for (const auto& plan : plans)
    groups.push_back(
        detail::GroupAccess::make(std::make_shared<detail::GroupImpl>(plan.finish(introductions))));
  return groups;
}

}  // namespace tutti::testing
