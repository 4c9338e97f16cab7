// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads but live like processes: they reach only what the group has allocated, by
// positions that mean something to the right rank only. What goes through the window goes there
// here.
#pragma once

#include <tutti/group.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "group/group_impl.h"
#include "group/shm/backend.h"

namespace tutti::testing {

struct Seclusion {
  bool reaches_all = false;                      // all memory, as threads do
  std::function<void(int rank)> before_find{};   // `rank` is about to look at another's memory
  std::function<void(int rank)> before_block{};  // `rank` is about to make a block for a group
  std::function<std::string(int rank)> loss{};   // why a rank is lost; empty while it is not
};

// What all ranks share: the memory that was allocated, kept to the end as if it were mapped.
class Commons : public group::PeerMonitor {
 public:
  explicit Commons(Seclusion options) : options_(std::move(options)) {}

  const Seclusion& options() const { return options_; }
  std::shared_ptr<void> allocate(size_t bytes) {
    const auto memory = std::shared_ptr<std::byte>(
        static_cast<std::byte*>(::operator new(bytes, std::align_val_t(4096))),
        [](std::byte* p) { ::operator delete(p, std::align_val_t(4096)); });
    std::memset(memory.get(), 0, bytes);
    std::lock_guard lock(mutex_);
    allocated_[memory.get()] = {memory, bytes};
    return memory;
  }
  bool holds(const void* data, size_t bytes) const {
    std::lock_guard lock(mutex_);
    auto it = allocated_.upper_bound(static_cast<const std::byte*>(data));
    if (it == allocated_.begin()) return false;
    --it;
    return static_cast<const std::byte*>(data) + bytes <= it->first + it->second.second;
  }

  std::string address(int rank) const override { return "host:" + std::to_string(5000 + rank); }
  int job_rank(int rank) const override { return rank; }
  std::string loss(int rank) const override { return options_.loss ? options_.loss(rank) : ""; }
  std::optional<cluster::Failure> failure() const override { return {}; }
  const std::atomic<bool>* alarm() const override { return nullptr; }
  bool crowded() const override { return true; }
  bool separate_processes() const override { return false; }

 private:
  const Seclusion options_;
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::pair<std::shared_ptr<std::byte>, size_t>> allocated_;
};

// One rank's way to the memory of the others. Addresses have 48 bits; the rest says whose it is.
class SecludedMemory : public group::PeerMemory {
 public:
  SecludedMemory(std::shared_ptr<Commons> commons, int rank)
      : commons_(std::move(commons)), rank_(rank) {}

  uint64_t position(const void* data, size_t bytes) const override {
    if (!commons_->options().reaches_all && !commons_->holds(data, bytes)) return kUnreachable;
    return reinterpret_cast<uint64_t>(data) | uint64_t(rank_ + 1) << 48;
  }
  void* find(int rank, uint64_t position) const override {
    if (position == 0) return nullptr;  // of a tensor without elements
    if (int(position >> 48) != rank + 1) throw InternalError("found a position of another rank");
    if (commons_->options().before_find) commons_->options().before_find(rank_);
    return reinterpret_cast<void*>(position << 16 >> 16);
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return commons_->allocate(bytes); }
  std::shared_ptr<void> allocate_zeroed(size_t bytes) override {
    if (commons_->options().before_block) commons_->options().before_block(rank_);
    return commons_->allocate(bytes);
  }

 private:
  const std::shared_ptr<Commons> commons_;
  const int rank_;
};

inline std::vector<Group> secluded(int n, Seclusion options = {}) {
  const auto commons = std::make_shared<Commons>(std::move(options));
  std::vector<group::HostPeers> host_peers;
  std::vector<int> ranks;
  for (int r = 0; r < n; ++r) {
    host_peers.push_back({std::make_shared<SecludedMemory>(commons, r),
                          std::make_shared<group::BlockPool>(), commons});
    ranks.push_back(r);
  }
  const group::Blocks blocks = host_peers[0].blocks->make(*host_peers[0].memory, n);
  std::vector<Group> groups;
  for (int r = 0; r < n; ++r)
    groups.push_back(detail::GroupAccess::make(
        std::make_shared<detail::GroupImpl>(std::make_unique<group::WindowBackend>(
            "secluded", host_peers[size_t(r)], ranks, r, blocks))));
  return groups;
}

}  // namespace tutti::testing
