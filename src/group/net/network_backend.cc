#include "group/net/network_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

namespace tutti::group {

namespace {

size_t staging_bytes() { return 2 * kBlocks * kArea; }

std::vector<std::string> hosts_of(const Surroundings& surroundings, const std::vector<int>& ranks) {
  std::vector<std::string> hosts;
  for (const int r : ranks) hosts.push_back(surroundings.hosts[size_t(r)]);
  return hosts;
}

int place_of(const std::vector<int>& ranks, int rank) {
  return int(std::ranges::find(ranks, rank) - ranks.begin());
}

// The place of a rank of the job among those on this host.
int place_on_host(const Surroundings& surroundings, int rank) {
  int place = 0;
  for (int r = 0; r < rank; ++r)
    place += surroundings.hosts[size_t(r)] == surroundings.hosts[size_t(surroundings.rank)];
  return place;
}

}  // namespace

// All ranks of a group.
class NetworkBackend::Everybody : public Members {
 public:
  Everybody(std::shared_ptr<const Surroundings> surroundings, std::vector<int> ranks)
      : surroundings_(std::move(surroundings)), ranks_(std::move(ranks)) {}

  std::string address(int rank) const override {
    const int outer = ranks_[size_t(rank)];
    const std::string& address = surroundings_->addresses[size_t(outer)];
    return outer == rank ? address : fmt::format("rank {} of the job, {}", outer, address);
  }
  std::string loss(int) const override { return {}; }
  std::optional<cluster::Failure> failure() const override {
    if (!surroundings_->alarm->load(std::memory_order_acquire)) return {};
    std::optional<cluster::Failure> failure = surroundings_->failure();
    // A rank that is lost is no loss to a group that it is not in.
    if (failure && failure->rank >= 0 && std::ranges::find(ranks_, failure->rank) == ranks_.end())
      return {};
    return failure;
  }
  const std::atomic<bool>* alarm() const override { return surroundings_->alarm; }
  std::string isolation() const override { return surroundings_->isolation(); }
  void abandon_memory() const override {}
  bool crowded() const override { return surroundings_->crowded; }
  bool separate_processes() const override { return true; }

 protected:
  const std::shared_ptr<const Surroundings> surroundings_;
  const std::vector<int> ranks_;
};

// Those that meet in this host's window.
class NetworkBackend::OnThisHost : public Everybody {
 public:
  OnThisHost(std::shared_ptr<const Surroundings> surroundings, std::vector<int> ranks,
             std::vector<int> here)
      : Everybody(std::move(surroundings), std::move(ranks)), here_(std::move(here)) {}

  std::string address(int rank) const override { return Everybody::address(number(rank)); }
  int number(int rank) const override { return here_[size_t(rank)]; }
  std::string loss(int rank) const override {
    return surroundings_->neighbourhood.members->loss(
        place_on_host(*surroundings_, ranks_[size_t(number(rank))]));
  }
  std::optional<cluster::Failure> failure() const override {
    // Who sleeps here hears the other hosts, too: what they say poisons the window.
    surroundings_->network->transport().progress();
    surroundings_->network->listen();
    return Everybody::failure();
  }
  void abandon_memory() const override { surroundings_->neighbourhood.members->abandon_memory(); }

 private:
  const std::vector<int> here_;  // ranks of the group
};

NetworkBackend::Plan::Plan(std::shared_ptr<const Surroundings> surroundings, std::vector<int> ranks)
    : surroundings_(std::move(surroundings)),
      ranks_(std::move(ranks)),
      layout_(hosts_of(*surroundings_, ranks_), place_of(ranks_, surroundings_->rank)) {
  const Neighbourhood& neighbourhood = surroundings_->neighbourhood;
  introduction_ = {0, surroundings_->network->new_id()};
  const int here = int(layout_.neighbours().size());
  if (here == 1) return;
  const size_t extra = layout_.leads() ? staging_bytes() : 0;
  Block* const block = neighbourhood.blocks->make(*neighbourhood.reach, here, extra);
  introduction_.block = neighbourhood.reach->place(block, Block::bytes(here) + extra);
}

std::unique_ptr<Backend> NetworkBackend::Plan::finish(std::span<const Introduction> all) const {
  std::vector<Block*> blocks;
  if (layout_.neighbours().size() > 1)
    for (const int r : layout_.neighbours())
      blocks.push_back(static_cast<Block*>(surroundings_->neighbourhood.reach->find(
          place_on_host(*surroundings_, ranks_[size_t(r)]), all[size_t(r)].block)));
  return std::unique_ptr<Backend>(
      new NetworkBackend(*this, uint32_t(all[0].id), std::move(blocks)));
}

NetworkBackend::NetworkBackend(const Plan& plan, uint32_t id, std::vector<Block*> blocks)
    : surroundings_(plan.surroundings_),
      ranks_(plan.ranks_),
      layout_(plan.layout_),
      wire_({ranks_, layout_.rank, id}, surroundings_->network,
            std::make_shared<Everybody>(surroundings_, ranks_),
            blocks.empty() ? nullptr
                           : &window_.emplace(place_of(layout_.neighbours(), layout_.rank), blocks,
                                              std::make_shared<OnThisHost>(surroundings_, ranks_,
                                                                           layout_.neighbours()))),
      algorithms_(wire_, layout_, window_ ? &*window_ : nullptr, [&]() -> Staging {
        if (blocks.empty()) return {};
        auto* const memory =
            reinterpret_cast<std::byte*>(blocks[0]) + Block::bytes(int(blocks.size()));
        return {memory, memory + kBlocks * kArea};
      }()) {}

const char* NetworkBackend::name() const { return surroundings_->network->transport().name(); }

// An error on this host is one for the others.
template <class F>
void NetworkBackend::heard_by_all(const F& operation) {
  try {
    operation();
  } catch (const Error& error) {
    wire_.poison(error.code(), error.what());
    throw;
  }
}

void NetworkBackend::run(const Description& what, const detail::GroupCall& call, Patience patience,
                         std::span<const Piece> list) {
  heard_by_all([&] { algorithms_.run(what, call, patience, list); });
}

void NetworkBackend::all_reduce(const Description& what, const LeafReduction& reduction,
                                Patience patience) {
  heard_by_all([&] { algorithms_.all_reduce(what, reduction, patience); });
}

void NetworkBackend::all_gather_uneven(const Description& what, const detail::Memory& in,
                                       const detail::Memory& out, std::span<const int64_t> counts,
                                       Patience patience) {
  heard_by_all([&] { algorithms_.all_gather_uneven(what, in, out, counts, patience); });
}

std::unique_ptr<Backend> NetworkBackend::split(std::span<const int> ranks, Patience patience) {
  std::vector<int> outer;
  for (const int r : ranks) outer.push_back(ranks_[size_t(r)]);
  const Plan plan(surroundings_, outer);
  Introduction mine = plan.introduction();
  std::vector<Introduction> all(ranks_.size());
  const Description what{.kind = Collective::split};
  constexpr int64_t kWords = sizeof(Introduction) / sizeof(uint64_t);
  run(what,
      {Collective::split,
       {&mine, kWords, DType::uint64},
       {all.data(), kWords * int64_t(all.size()), DType::uint64}},
      patience);
  std::vector<Introduction> chosen;
  for (const int r : ranks) chosen.push_back(all[size_t(r)]);
  return plan.finish(chosen);
}

std::shared_ptr<void> NetworkBackend::allocate(size_t bytes) {
  if (surroundings_->neighbourhood.reach)
    return surroundings_->neighbourhood.reach->allocate(bytes);
  void* const memory = ::operator new(bytes, std::align_val_t(kLine), std::nothrow);
  if (!memory)
    throw ResourceExhaustedError(fmt::format("group: the system has no {} bytes", bytes));
  return {memory, [](void* data) { ::operator delete(data, std::align_val_t(kLine)); }};
}

}  // namespace tutti::group
