// Ranks on several hosts: a window on each, and a wire between them.
#pragma once

#include <functional>
#include <optional>

#include "group/core/backend.h"
#include "group/net/networked.h"
#include "group/shm/window_backend.h"

namespace tutti::group {

// One process's way to all others of its job.
struct Surroundings {
  int rank;                            // in the job
  std::vector<std::string> addresses;  // of all ranks, for errors
  std::vector<std::string> hosts;      // the name of each rank's; those with the same share memory
  std::vector<std::string> machines;   // the same, even if TUTTI_BACKEND keeps each rank alone
  std::shared_ptr<Network> network;
  // Of the ranks on this host, in their order; empty where there is no other.
  Neighbourhood neighbourhood;
  bool crowded;  // are there more ranks than cores?
  const std::atomic<bool>* alarm;
  std::function<std::optional<cluster::Failure>()> failure;
  std::function<std::string()> isolation;  // as that of Members
};

// What a rank tells the others of a new group.
struct Introduction {
  uint64_t block;  // its place, for those on the same host
  uint64_t id;     // that of the first rank counts
};

class NetworkBackend : public Backend {
 public:
  // In two steps, since the others' introductions must be known in between.
  class Plan {
   public:
    // `ranks`: of the job, by rank of the group.
    Plan(std::shared_ptr<const Surroundings> surroundings, std::vector<int> ranks);
    const Introduction& introduction() const { return introduction_; }
    // Introductions by rank of the group.
    std::unique_ptr<Backend> finish(std::span<const Introduction> all) const;

   private:
    friend class NetworkBackend;
    std::shared_ptr<const Surroundings> surroundings_;
    std::vector<int> ranks_;
    Layout layout_;
    Introduction introduction_;
  };

  const char* name() const override;
  int rank() const override { return wire_.rank(); }
  int size() const override { return wire_.size(); }
  std::string address(int rank) const override { return wire_.members().address(rank); }
  bool is_local(int rank) const override {
    const std::vector<std::string>& machines = surroundings_->machines;
    return machines[size_t(ranks_[size_t(rank)])] == machines[size_t(surroundings_->rank)];
  }
  using Backend::run;
  void run(const Description& what, const detail::GroupCall& call, Patience patience,
           std::span<const Piece> list) override;
  void all_reduce(const Description& what, const LeafReduction& reduction,
                  Patience patience) override;
  void all_gather_uneven(const Description& what, const detail::Memory& in,
                         const detail::Memory& out, std::span<const int64_t> counts,
                         Patience patience) override;
  std::unique_ptr<Backend> split(std::span<const int> ranks, Patience patience) override;
  std::shared_ptr<void> allocate(size_t bytes) override;
  void check(const std::string& during) override { wire_.check_ranks(during); }
  void poison(ErrorCode code, const std::string& text) override { wire_.poison(code, text); }

 private:
  class Everybody;
  class OnThisHost;

  NetworkBackend(const Plan& plan, uint32_t id, std::vector<Block*> blocks);
  template <class F>
  void heard_by_all(const F& operation);

  std::shared_ptr<const Surroundings> surroundings_;
  std::vector<int> ranks_;
  Layout layout_;
  std::optional<Window> window_;
  Wire wire_;
  Networked algorithms_;
};

}  // namespace tutti::group
