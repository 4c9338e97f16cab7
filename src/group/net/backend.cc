// SPDX-License-Identifier: Apache-2.0
#include "group/net/backend.h"

#include <algorithm>

namespace tutti::group {

namespace {

size_t staging_bytes(size_t hosts) { return 2 * kBlocks * staging_slot(hosts); }

// The staging lies after the blocks.
Staging staging_in(const Blocks& blocks, size_t hosts) {
  if (blocks.size() == 0) return {};
  return {blocks.end(), blocks.end() + kBlocks * staging_slot(hosts)};
}

int index_of(const std::vector<int>& ranks, int rank) {
  return int(std::ranges::find(ranks, rank) - ranks.begin());
}

// Watches all ranks of the job.
class JobMonitor : public PeerMonitor {
 public:
  explicit JobMonitor(std::shared_ptr<const JobTopology> job) : job_(std::move(job)) {}

  std::string address(int rank) const override { return job_->ranks->addresses[size_t(rank)]; }
  int job_rank(int rank) const override { return rank; }
  std::string loss(int rank) const override {
    const GroupHosts& all = *job_->ranks->all;
    const bool is_local = all.host_of[size_t(rank)] == all.host_of[size_t(job_->rank)];
    return is_local && rank != job_->rank
               ? job_->host_peers.monitor->loss(int(all.local_index(rank)))
               : "";
  }
  std::optional<cluster::Failure> failure() const override {
    return job_->alarm->load(std::memory_order_acquire) ? job_->failure() : std::nullopt;
  }
  const std::atomic<bool>* alarm() const override { return job_->alarm; }
  std::string isolation() const override { return job_->isolation(); }
  bool crowded() const override { return job_->crowded; }
  bool separate_processes() const override { return true; }

 private:
  const std::shared_ptr<const JobTopology> job_;
};

}  // namespace

NetworkBackend::Plan::Plan(std::shared_ptr<const JobTopology> job) : Plan(job, job->ranks->all) {}

NetworkBackend::Plan::Plan(std::shared_ptr<const JobTopology> job, std::vector<int> ranks)
    : Plan(job, std::make_shared<const GroupHosts>(std::move(ranks), job->ranks->hosts)) {}

NetworkBackend::Plan::Plan(std::shared_ptr<const JobTopology> job,
                           std::shared_ptr<const GroupHosts> hosts)
    : job_(std::move(job)), topology_(hosts, index_of(hosts->ranks, job_->rank)) {
  const HostPeers& host_peers = job_->host_peers;
  introduction_ = {0, job_->control->new_group_id()};
  const int here = int(topology_.local_ranks().size());
  if (here == 1 || !topology_.leads()) return;
  const Blocks blocks =
      host_peers.blocks->make(*host_peers.memory, here, staging_bytes(topology_.hosts.size()));
  introduction_.blocks = host_peers.memory->position(blocks.begin(), 1);
}

std::unique_ptr<Backend> NetworkBackend::Plan::finish(std::span<const Introduction> all) const {
  Blocks blocks;
  const std::vector<int>& local = topology_.local_ranks();
  if (local.size() > 1)
    blocks = {job_->host_peers.memory->find(
                  int(job_->ranks->all->local_index(topology_.shared->ranks[size_t(local[0])])),
                  all[size_t(local[0])].blocks),
              int(local.size())};
  return std::unique_ptr<Backend>(new NetworkBackend(*this, uint32_t(all[0].id), blocks));
}

NetworkBackend::NetworkBackend(const Plan& plan, uint32_t id, const Blocks& blocks)
    : job_(plan.job_),
      topology_(plan.topology_),
      latch_(connect_host(blocks)),
      channels_({ranks(), topology_.rank, id, topology_.host_of}, job_->control,
                std::make_shared<GroupMonitor>(std::make_shared<JobMonitor>(job_), shared_ranks()),
                window_ ? &*window_ : nullptr, latch_),
      algorithms_(channels_, topology_, window_ ? &*window_ : nullptr,
                  staging_in(blocks, topology_.hosts.size()), job_->costs) {}

FailureLatch& NetworkBackend::connect_host(const Blocks& blocks) {
  if (blocks.size() == 0) {
    own_failure_ = std::make_unique<SharedFailure>();
    return own_latch_.emplace(*own_failure_);
  }
  const std::vector<int>& local = topology_.local_ranks();
  const auto monitor =
      std::make_shared<GroupMonitor>(std::make_shared<JobMonitor>(job_), shared_ranks(), local);
  return window_.emplace(index_of(local, topology_.rank), blocks, monitor, job_->control.get())
      .latch();
}

const char* NetworkBackend::name() const { return job_->control->transport().name(); }

template <class F>
void NetworkBackend::telling_all(const F& operation) {
  try {
    operation();
  } catch (const Error& error) {
    channels_.fail_all(error.code(), error.what());
    throw;
  }
}

void NetworkBackend::run(const Description& what, const detail::GroupCall& call, Timeouts timeouts,
                         std::span<const Piece> list) {
  telling_all([&] { algorithms_.run(what, call, timeouts, list); });
}

void NetworkBackend::all_reduce(const Description& what, const LeafReduction& reduction,
                                Timeouts timeouts) {
  telling_all([&] { algorithms_.all_reduce(what, reduction, timeouts); });
}

void NetworkBackend::all_gather_uneven(const Description& what, const detail::Memory& in,
                                       const detail::Memory& out, std::span<const int64_t> counts,
                                       Timeouts timeouts) {
  telling_all([&] { algorithms_.all_gather_uneven(what, in, out, counts, timeouts); });
}

std::unique_ptr<Backend> NetworkBackend::split(std::span<const int> ranks, Timeouts timeouts) {
  std::vector<int> outer;
  for (const int r : ranks) outer.push_back(this->ranks()[size_t(r)]);
  const Plan plan(job_, outer);
  Introduction mine = plan.introduction();
  std::vector<Introduction> all(this->ranks().size());
  const Description what{.kind = Collective::split};
  constexpr int64_t kWords = sizeof(Introduction) / sizeof(uint64_t);
  run(what,
      {Collective::split,
       {&mine, kWords, DType::uint64},
       {all.data(), kWords * int64_t(all.size()), DType::uint64}},
      timeouts);
  std::vector<Introduction> chosen;
  for (const int r : ranks) chosen.push_back(all[size_t(r)]);
  std::unique_ptr<Backend> group;
  telling_all([&] {
    group = plan.finish(chosen);
    if (window_) window_->next_phase();  // afterwards the first rank of a host may leave
  });
  return group;
}

size_t NetworkBackend::reserved() const {
  size_t block = 0;
  if (window_)
    block = Blocks::bytes(window_->size()) / size_t(window_->size()) +
            (topology_.leads() ? staging_bytes(topology_.hosts.size()) : 0);
  return block + job_->control->reserved() + channels_.reserved() + algorithms_.reserved();
}

std::shared_ptr<void> NetworkBackend::allocate(size_t bytes) {
  const std::shared_ptr<PeerMemory>& shared = job_->host_peers.memory;
  return shared ? shared->allocate(bytes) : allocate_private(bytes);
}

}  // namespace tutti::group
