// SPDX-License-Identifier: Apache-2.0
// What the backends within one host share: a window, and the algorithms over it.
#pragma once

#include "group/core/backend.h"
#include "group/shm/collectives.h"

namespace tutti::group {

// One rank's way to the memory of all others, for as long as any of its groups lives.
struct HostPeers {
  std::shared_ptr<PeerMemory> memory;  // ranks are those of the outermost group
  std::shared_ptr<BlockPool> blocks;
  std::shared_ptr<const PeerMonitor> monitor;
  Costs costs = {};
};

class WindowBackend : public Backend {
 public:
  // `ranks`: which of the outermost group's ranks take part. `blocks`: theirs.
  WindowBackend(const char* name, HostPeers host_peers, std::vector<int> ranks, int rank,
                Blocks blocks);
  ~WindowBackend() override;

  const char* name() const override { return name_; }
  int rank() const override { return window_.rank(); }
  int size() const override { return window_.size(); }
  std::string address(int rank) const override { return window_.peers().address(rank); }
  bool is_local(int) const override { return true; }
  const Way& way() const override { return algorithms_.way(); }
  using Backend::run;
  void run(const Description& what, const detail::GroupCall& call, Timeouts timeouts,
           std::span<const Piece> list) override {
    algorithms_.run(what, call, timeouts, list);
  }
  void all_reduce(const Description& what, const LeafReduction& reduction,
                  Timeouts timeouts) override {
    algorithms_.all_reduce(what, reduction, timeouts);
  }
  void all_gather_uneven(const Description& what, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts,
                         Timeouts timeouts) override {
    algorithms_.all_gather_uneven(what, in, out, counts, timeouts);
  }
  std::unique_ptr<Backend> split(std::span<const int> ranks, Timeouts timeouts) override;
  std::shared_ptr<void> allocate(size_t bytes) override {
    return host_peers_.memory->allocate(bytes);
  }
  size_t reserved() const override { return Blocks::bytes(size()) / size_t(size()); }
  void check(const std::string& during) override { window_.check_ranks(during); }
  void poison(ErrorCode code, const std::string& text) override {
    window_.latch().set({window_.peers().job_rank(rank()), code, text});
  }
  std::optional<cluster::Failure> failure() const override { return window_.latch().failure(); }

 private:
  class Subset;

  const char* name_;
  HostPeers host_peers_;
  std::vector<int> ranks_;
  std::unique_ptr<Subset> subset_;
  Window window_;
  SharedMemoryCollectives algorithms_;
};

}  // namespace tutti::group
