// SPDX-License-Identifier: Apache-2.0
// The memory that the processes of a simulated host share.
#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <tutti/error.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "group/shm/processes.h"
#include "sim/world.h"

namespace tutti::sim {

// The memory that the processes of one host allocate to share it. Other memory is their own. Memory
// that a process frees is gone for all; what it has when it ends stays, since others may use it.
class HostMemory {
 public:
  explicit HostMemory(World& world) : world_(world) {}
  ~HostMemory() {
    for (const auto& [data, bytes] : state_->kept) munmap(data, bytes);
  }

  std::shared_ptr<void> allocate(size_t bytes) {
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw ResourceExhaustedError("simulate: the system has no memory for another rank");
    const auto* const begin = static_cast<const std::byte*>(data);
    state_->shared[begin] = begin + bytes;
    return {data, [bytes, state = state_, &world = world_](void* p) {
              state->shared.erase(static_cast<const std::byte*>(p));
              if (world.is_over() || world.current() < 0 || !world.job() ||
                  state->abandoned.contains(world.current()))
                state->kept.emplace_back(p, bytes);
              else
                munmap(p, bytes);
            }};
  }
  // Keeps all memory that this process frees from now on.
  void abandon() { state_->abandoned.insert(world_.current()); }
  size_t allocations() const { return state_->shared.size(); }
  bool is_shared(const void* data, size_t bytes) const {
    const auto* const begin = static_cast<const std::byte*>(data);
    const auto after = state_->shared.upper_bound(begin);
    return after != state_->shared.begin() && begin + bytes <= std::prev(after)->second;
  }

 private:
  struct State {
    std::map<const std::byte*, const std::byte*> shared;
    std::vector<std::pair<void*, size_t>> kept;
    std::set<int> abandoned;  // processes
  };

  World& world_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// One process's way to the memory of those on its host.
class Neighbours final : public group::PeerMemory, public group::PeerMonitor {
 public:
  Neighbours(World& world, std::shared_ptr<HostMemory> memory,
             const group::HostProcesses& processes)
      : world_(world), memory_(std::move(memory)), processes_(processes) {}

  uint64_t position(const void* data, size_t bytes) const override {
    return memory_->is_shared(data, bytes) ? reinterpret_cast<uint64_t>(data) : kUnreachable;
  }
  void* find(int, uint64_t position) const override { return reinterpret_cast<void*>(position); }
  std::shared_ptr<void> allocate(size_t bytes) override { return memory_->allocate(bytes); }
  std::shared_ptr<void> allocate_zeroed(size_t bytes) override { return memory_->allocate(bytes); }
  void abandon() const override { memory_->abandon(); }

  std::string address(int rank) const override { return processes_.addresses[size_t(rank)]; }
  int job_rank(int rank) const override { return processes_.ranks[size_t(rank)]; }
  std::string loss(int rank) const override {
    const int process = int(processes_.hellos[size_t(rank)].pid);
    return world_.is_alive(process) ? "" : fmt::format("has died (process {} is gone)", process);
  }
  std::optional<cluster::Failure> failure() const override {
    return processes_.alarm->load(std::memory_order_acquire) ? processes_.failure() : std::nullopt;
  }
  const std::atomic<bool>* alarm() const override { return processes_.alarm; }
  bool crowded() const override { return false; }
  bool separate_processes() const override { return true; }

 private:
  World& world_;
  const std::shared_ptr<HostMemory> memory_;
  const group::HostProcesses processes_;
};

}  // namespace tutti::sim
