// SPDX-License-Identifier: Apache-2.0
#include "sim/timing.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "group/group_impl.h"
#include "sim/host_memory.h"

namespace tutti::sim {

using detail::GroupCall;
using detail::GroupImpl;
using detail::Memory;
using group::Collective;

namespace {

// Calls that are timed after the first; fewer if a call sends many messages.
constexpr size_t kCalls = 3, kCallsWithJitter = 31;
constexpr uint64_t kManyMessages = 1'000'000, kTooManyMessages = 8'000'000;

World::Options world_options(const TimedJob::Options& options) {
  return {.seed = options.seed, .costs = options.costs, .moves_data = false};
}

// How many elements a rank's buffers have.
struct Counts {
  int64_t in, out;
};

Counts counts_of(Collective kind, size_t bytes, int ranks) {
  const int64_t count = std::max<int64_t>(1, int64_t(bytes / sizeof(float)));
  const int64_t part = std::max<int64_t>(1, count / ranks), parts = part * ranks;
  switch (kind) {
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::broadcast: return {0, count};  // in place
    case Collective::all_gather:
    case Collective::gather: return {part, parts};
    case Collective::reduce_scatter:
    case Collective::scatter: return {parts, part};
    case Collective::all_to_all: return {parts, parts};
    case Collective::barrier:
    case Collective::send:
    case Collective::recv:
    case Collective::split: break;
  }
  return {0, 0};
}

}  // namespace

// The buffers of all ranks: addresses without memory.
struct TimedJob::Buffers {
  Buffers(Counts per_rank, int ranks) : counts(per_rank), bytes(stride() * size_t(ranks) + 1) {
    void* const reserved =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
      throw ResourceExhaustedError(
          fmt::format("simulate: the system has no {} bytes of addresses for the buffers of {} "
                      "ranks; choose smaller sizes",
                      bytes, ranks));
    data = static_cast<std::byte*>(reserved);
  }
  ~Buffers() { munmap(data, bytes); }
  Buffers(const Buffers&) = delete;

  size_t stride() const { return size_t(counts.in + counts.out) * sizeof(float); }
  GroupCall call(Collective kind, int rank) const {
    std::byte* const in = data + stride() * size_t(rank);
    const Memory out{in + size_t(counts.in) * sizeof(float), counts.out, DType::float32};
    return {kind, counts.in ? Memory{in, counts.in, DType::float32} : out, out, ReduceOp::SUM, 0};
  }

  const Counts counts;
  const size_t bytes;
  std::byte* data;
};

TimedJob::TimedJob(const Options& options)
    : options_(options),
      world_(world_options(options)),
      introductions_(size_t(size())),
      groups_(size_t(size())) {
  std::vector<int> processes;
  std::vector<std::string> hosts, addresses;
  for (int r = 0; r < size(); ++r) {
    const int host = r / options_.ranks_per_host;
    processes.push_back(world_.add_process(host));
    hosts.push_back(fmt::format("host{}", host));
    addresses.push_back(fmt::format("{}:{}", hosts.back(), 5000 + r));
  }
  ranks_ = std::make_shared<const group::JobRanks>(group::JobRanks{addresses, hosts, hosts});
  for (int host = 0; host < options_.hosts; ++host) {
    group::HostProcesses here{
        .rank = 0, .ranks = {}, .addresses = {}, .hellos = {}, .alarm = &alarm_, .failure = [] {
          return std::nullopt;
        }};
    for (int r = host * options_.ranks_per_host; r < (host + 1) * options_.ranks_per_host; ++r) {
      here.ranks.push_back(r);
      here.addresses.push_back(ranks_->addresses[size_t(r)]);
      here.hellos.push_back({.pid = processes[size_t(r)]});
    }
    const auto neighbours =
        std::make_shared<Neighbours>(world_, std::make_shared<HostMemory>(world_), here);
    host_peers_.push_back(
        {neighbours, std::make_shared<group::BlockPool>(), neighbours, options_.expected});
  }
  fabric_ = std::make_unique<Fabric>(world_, processes);
  for (int r = 0; r < size(); ++r) world_.start(processes[size_t(r)], [this, r] { run_rank(r); });
  await_ranks(fmt::format("connecting {} ranks", size()));
}

TimedJob::~TimedJob() { world_.unwind(); }

void TimedJob::run_rank(int rank) {
  try {
    const auto impl = GroupImpl::make(connect(rank), 0);
    groups_[size_t(rank)] = impl.get();
    while (true) {
      ++done_;
      last_done_ = std::max(last_done_, world_.now());
      world_.wait(&operation_, World::Time::max());
      operation_(rank);
      world_.wait(nullptr, world_.now());  // until its messages have left it
    }
  } catch (const Error&) {
    error_ = std::current_exception();
  }
}

std::unique_ptr<group::Backend> TimedJob::connect(int rank) {
  const group::HostPeers& host_peers = host_peers_[size_t(rank / options_.ranks_per_host)];
  group::Introduction& mine = introductions_[size_t(rank)];
  if (options_.hosts == 1) {
    if (rank == 0)
      mine.blocks =
          reinterpret_cast<uint64_t>(host_peers.blocks->make(*host_peers.memory, size()).begin());
    meet();
    const group::Blocks blocks(reinterpret_cast<void*>(introductions_[0].blocks), size());
    return std::make_unique<group::WindowBackend>("simulated", host_peers, ranks_->all->ranks, rank,
                                                  blocks);
  }
  // Ranks are never lost here, so none asks the other hosts whether they still answer.
  auto control = std::make_shared<group::ControlPlane>(fabric_->open(rank), rank, size(),
                                                       [](int) { return false; });
  const group::NetworkBackend::Plan plan(
      std::make_shared<const group::JobTopology>(group::JobTopology{
          .rank = rank,
          .ranks = ranks_,
          .control = std::move(control),
          .host_peers = options_.ranks_per_host > 1 ? host_peers : group::HostPeers{},
          .crowded = false,
          .alarm = &alarm_,
          .failure = [] { return std::nullopt; },
          .isolation = [] { return std::string(); },
          .costs = options_.expected}));
  mine = plan.introduction();
  meet();
  return plan.finish(introductions_);
}

void TimedJob::meet() {
  if (++done_ < size()) return world_.wait(&done_, World::Time::max());
  done_ = 0;
  world_.wake(&done_);
}

void TimedJob::await_ranks(const std::string& what) {
  uint64_t events = 0;
  world_.run([&] {
    if (options_.progress && ++events % (1 << 14) == 0) options_.progress(what);
    return done_ == size() || error_;
  });
  if (error_) std::rethrow_exception(error_);
  if (done_ < size())
    throw InternalError(fmt::format("simulate: {} of {} ranks wait for each other during {}",
                                    size() - done_, size(), what));
}

nanoseconds TimedJob::call(const std::string& what) {
  done_ = 0;
  const World::Time begin = last_done_;
  world_.at(begin, [this] { world_.wake(&operation_); });
  await_ranks(what);
  return options_.as_bench ? on_rank_0_ : last_done_ - begin;
}

Timing TimedJob::time(Collective kind, size_t bytes) {
  const Buffers buffers(counts_of(kind, bytes, size()), size());
  CommunicationOptions options;
  options.timeout = nanoseconds(0);  // a slow network is no failure
  operation_ = [&](int rank) {
    if (options_.as_bench) groups_[size_t(rank)]->run({Collective::barrier, {}, {}}, options);
    const World::Time begin = world_.now();
    groups_[size_t(rank)]->run(buffers.call(kind, rank), options);
    if (rank == 0) on_rank_0_ = world_.now() - begin;
  };
  for (int r = 0; r < size() && options_.hosts > 1; ++r) fabric_->count_connections(r);

  const int64_t larger = std::max(buffers.counts.in, buffers.counts.out);
  world_.set_working_set(double(larger) * sizeof(float) * size());
  std::vector<World::Traffic> before, sent;
  const auto run = [&](const std::string& what) {
    before.clear();
    sent.clear();
    for (int host = 0; host < options_.hosts; ++host) before.push_back(world_.sent_by(host));
    const nanoseconds took = call(what);
    for (size_t host = 0; host < before.size(); ++host) {
      const World::Traffic& now = world_.sent_by(int(host));
      sent.push_back({now.messages - before[host].messages, now.bytes - before[host].bytes});
    }
    return took;
  };
  std::vector<nanoseconds> times{run("the first call")};
  uint64_t messages = 0;
  for (const World::Traffic& of_host : sent) messages += of_host.messages;
  const size_t calls = messages > kTooManyMessages     ? 0
                       : messages > kManyMessages      ? 1
                       : options_.costs.jitter.count() ? kCallsWithJitter
                                                       : kCalls;
  if (calls) times.clear();
  while (times.size() < calls)
    times.push_back(run(fmt::format("call {} of {}", times.size() + 2, calls + 1)));
  std::ranges::sort(times);

  Timing timing{.bytes = size_t(larger) * sizeof(float),
                .calls = int(times.size()),
                .time = times[times.size() / 2],
                .messages = {},
                .sent = {},
                .connections = 0,
                .reserved = 0};
  for (const World::Traffic& of_host : sent) {
    timing.messages.mean += double(of_host.messages) / options_.hosts;
    timing.messages.most = std::max(timing.messages.most, double(of_host.messages));
    timing.sent.mean += double(of_host.bytes) / options_.hosts;
    timing.sent.most = std::max(timing.sent.most, double(of_host.bytes));
  }
  for (int r = 0; r < size(); ++r) {
    if (options_.hosts > 1)
      timing.connections = std::max(timing.connections, fabric_->count_connections(r));
    timing.reserved = std::max(timing.reserved, groups_[size_t(r)]->backend().reserved());
  }
  return timing;
}

}  // namespace tutti::sim
