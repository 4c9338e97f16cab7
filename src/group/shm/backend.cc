// SPDX-License-Identifier: Apache-2.0
#include "group/shm/backend.h"

namespace tutti::group {

// The memory of some of the ranks.
class WindowBackend::Subset : public PeerMemory {
 public:
  Subset(std::shared_ptr<PeerMemory> all, std::vector<int> ranks)
      : all_(std::move(all)), ranks_(std::move(ranks)) {}

  uint64_t position(const void* data, size_t bytes) const override {
    return all_->position(data, bytes);
  }
  void* find(int rank, uint64_t position) const override {
    return all_->find(ranks_[size_t(rank)], position);
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return all_->allocate(bytes); }
  std::shared_ptr<void> allocate_zeroed(size_t bytes) override {
    return all_->allocate_zeroed(bytes);
  }
  void abandon() const override { all_->abandon(); }

 private:
  const std::shared_ptr<PeerMemory> all_;
  const std::vector<int> ranks_;
};

WindowBackend::WindowBackend(const char* name, HostPeers host_peers, std::vector<int> ranks,
                             int rank, Blocks blocks)
    : name_(name),
      host_peers_(std::move(host_peers)),
      ranks_(std::move(ranks)),
      subset_(std::make_unique<Subset>(host_peers_.memory, ranks_)),
      window_(rank, blocks,
              std::make_shared<GroupMonitor>(host_peers_.monitor,
                                             std::make_shared<const std::vector<int>>(ranks_))),
      algorithms_(window_, *subset_, host_peers_.costs) {}

WindowBackend::~WindowBackend() = default;

std::unique_ptr<Backend> WindowBackend::split(std::span<const int> ranks, Timeouts timeouts) {
  const int first = ranks[0], size = int(ranks.size());
  uint64_t position = 0;
  if (window_.rank() == first)
    position = subset_->position(host_peers_.blocks->make(*subset_, size).begin(), 1);
  std::vector<uint64_t> positions(ranks_.size());
  const Description what{.kind = Collective::split};
  algorithms_.run(what,
                  {Collective::split,
                   {&position, 1, DType::uint64},
                   {positions.data(), int64_t(positions.size()), DType::uint64}},
                  timeouts);
  const Blocks blocks(subset_->find(first, positions[size_t(first)]), size);
  window_.next_phase();  // the first rank may leave then
  std::vector<int> outer;
  int rank = 0;
  for (const int r : ranks) {
    if (r == window_.rank()) rank = int(outer.size());
    outer.push_back(ranks_[size_t(r)]);
  }
  return std::make_unique<WindowBackend>(name_, host_peers_, std::move(outer), rank, blocks);
}

}  // namespace tutti::group
