#include "group/shm/window_backend.h"

#include <algorithm>

namespace tutti::group {

// The reach and the names of some of the ranks.
class WindowBackend::Subset : public Reach, public Members {
 public:
  Subset(Neighbourhood all, std::vector<int> ranks)
      : all_(std::move(all)), ranks_(std::move(ranks)) {}

  uint64_t place(const void* data, size_t bytes) const override {
    return all_.reach->place(data, bytes);
  }
  void* find(int rank, uint64_t place) const override {
    return all_.reach->find(ranks_[size_t(rank)], place);
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return all_.reach->allocate(bytes); }
  std::shared_ptr<void> allocate_zeroed(size_t bytes) override {
    return all_.reach->allocate_zeroed(bytes);
  }

  std::string address(int rank) const override {
    const int outer = ranks_[size_t(rank)];
    const std::string address = all_.members->address(outer);
    if (address.empty() || outer == rank) return address;
    return "rank " + std::to_string(outer) + " of the job, " + address;
  }
  std::string loss(int rank) const override { return all_.members->loss(ranks_[size_t(rank)]); }
  std::optional<cluster::Failure> failure() const override {
    std::optional<cluster::Failure> failure = all_.members->failure();
    // A rank that is lost is no loss to a group that it is not in.
    if (failure && failure->rank >= 0 && std::ranges::find(ranks_, failure->rank) == ranks_.end())
      return {};
    return failure;
  }
  const std::atomic<bool>* alarm() const override { return all_.members->alarm(); }
  void abandon_memory() const override { all_.members->abandon_memory(); }
  bool crowded() const override { return all_.members->crowded(); }
  bool separate_processes() const override { return all_.members->separate_processes(); }

 private:
  const Neighbourhood all_;
  const std::vector<int> ranks_;
};

WindowBackend::WindowBackend(const char* name, Neighbourhood neighbourhood, std::vector<int> ranks,
                             int rank, std::vector<Block*> blocks)
    : name_(name),
      neighbourhood_(std::move(neighbourhood)),
      ranks_(std::move(ranks)),
      subset_(std::make_shared<Subset>(neighbourhood_, ranks_)),
      window_(rank, std::move(blocks), subset_),
      algorithms_(window_, *subset_) {}

std::unique_ptr<Backend> WindowBackend::split(std::span<const int> ranks, Patience patience) {
  Block* const mine = neighbourhood_.blocks->make(*subset_, int(ranks.size()));
  uint64_t place = subset_->place(mine, Block::bytes(int(ranks.size())));
  std::vector<uint64_t> places(ranks_.size());
  const Description what{.kind = Collective::split};
  algorithms_.run(what,
                  {Collective::split,
                   {&place, 1, DType::uint64},
                   {places.data(), int64_t(places.size()), DType::uint64}},
                  patience);
  std::vector<int> outer;
  std::vector<Block*> blocks;
  int rank = 0;
  for (const int r : ranks) {
    if (r == window_.rank()) rank = int(outer.size());
    outer.push_back(ranks_[size_t(r)]);
    blocks.push_back(static_cast<Block*>(subset_->find(r, places[size_t(r)])));
  }
  return std::make_unique<WindowBackend>(name_, neighbourhood_, std::move(outer), rank,
                                         std::move(blocks));
}

}  // namespace tutti::group
