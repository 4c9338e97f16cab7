// SPDX-License-Identifier: Apache-2.0
#include "job/job_impl.h"

#include <fmt/format.h>

#include <mutex>
#include <numeric>
#include <set>

#include "base/log.h"
#include "base/settings.h"
#include "cluster/checks.h"
#include "gpu/nccl.h"
#include "group/liveness/timing.h"
#include "group/shm/processes.h"
#include "job/clocks.h"
#include "job/shutdown.h"

namespace tutti::group {

using cluster::Coordination;
using cluster::Failure;
using cluster::Membership;

Job::Job(const Membership& membership, std::unique_ptr<Site> site)
    : given_(membership), boot_{membership}, site_(std::move(site)) {
  std::unique_ptr<Coordination> coordination = site_->join(boot_);
  link_.emplace(rank(), boot_.membership.addresses, std::move(coordination), site_->board());
  for (const std::string& text : link_->exchange("processes", to_bytes(site_->hello(rank()))))
    hellos_.push_back(from_bytes(text));
  try {
    join_peers();  // what it throws reaches all ranks
  } catch (const Error& error) {
    stop_progress();
    link_->refuse(error);
    leave_service(boot_, *link_, false);
    throw;
  }
  boot_.announcement.reset();  // all have come
}

void Job::join_peers() {
  expect_nccl_if_required();
  warn_of_other_settings();
  const Placement placement = place_ranks(hellos_, rank());
  share_memory(placement);
  if (placement.local.size() < hellos_.size()) connect_hosts(placement);
  align_timelines(hellos_, rank(), *link_, [this] { return new_group("the clocks of timelines"); });
}

// TUTTI_STRAGGLERS adds an operation now and then, on all ranks or none, and all ranks choose their
// ways by the same TUTTI_COSTS: rank 0's values count.
void Job::warn_of_other_settings() const {
  const auto compare = [](const char* name, const auto& mine, const auto& first) {
    if (mine != first)
      base::log_once(
          base::LogLevel::warning,
          fmt::format("{} is {} here and {} on rank 0, which counts", name, mine, first));
  };
  const auto text = [](const Hello& hello) {
    return hello.costs.empty() ? std::string("the default") : hello.costs;
  };
  const Hello& mine = hellos_[size_t(rank())];
  compare("TUTTI_STRAGGLERS", mine.stragglers, stragglers());
  compare("TUTTI_COSTS", text(mine), text(hellos_[0]));
}

void Job::share_memory(const Placement& placement) {
  HostProcesses processes{.rank = 0,
                          .ranks = placement.local,
                          .addresses = {},
                          .hellos = {},
                          .alarm = &link_->alarm(),
                          .failure = [this] { return failure(); }};
  for (const int r : placement.local) {
    if (r == rank()) processes.rank = int(processes.hellos.size());
    processes.addresses.push_back(boot_.membership.addresses[size_t(r)]);
    processes.hellos.push_back(hellos_[size_t(r)].memory);
  }
  if (processes.hellos.size() > 1) host_peers_ = site_->share_memory(processes, boot_);
  host_peers_.costs = costs();
}

void Job::connect_hosts(const Placement& placement) {
  auto ranks = std::make_shared<const JobRanks>(
      JobRanks{boot_.membership.addresses, placement.hosts, placement.machines});
  auto control = std::make_shared<ControlPlane>(
      site_->connect(hellos_, boot_, *link_), rank(), size(),
      [ranks, me = size_t(rank())](int r) { return ranks->hosts[size_t(r)] != ranks->hosts[me]; });
  topology_ =
      std::make_shared<const JobTopology>(JobTopology{.rank = rank(),
                                                      .ranks = std::move(ranks),
                                                      .control = std::move(control),
                                                      .host_peers = host_peers_,
                                                      .crowded = placement.crowded,
                                                      .alarm = &link_->alarm(),
                                                      .failure = [this] { return failure(); },
                                                      .isolation = [this] { return isolation(); },
                                                      .costs = costs()});
  progress_ = base::Thread([this] { make_progress(); });
}

// No other thread makes progress while the program computes, and what it has sent may still be on
// this side.
void Job::make_progress() try {
  ControlPlane& control = *topology_->control;
  std::unique_lock lock(mutex_);
  while (!leaves_.wait_for(lock, timing::kBackgroundPump, [&] { return leaving_; })) {
    lock.unlock();
    control.pump();
    control.warn_of_strangers();
    const std::shared_ptr<Coordination> link = link_->get();  // null: this rank has left it
    if (link && link->silence().count()) control.probe();
    lock.lock();
  }
} catch (const std::exception& error) {
  link_->abort(fmt::format("its thread for messages ended: {}", error.what()));
}

void Job::stop_progress() {
  if (!progress_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  leaves_.notify_all();
  progress_.join();
}

// What all ranks say of a new group.
std::vector<std::string> Job::introduce(int group, const std::string& mine,
                                        const std::string& purpose) {
  std::vector<std::string> all;
  try {
    all = link_->exchange(fmt::format("group {}", group), mine + "\n" + purpose);
  } catch (const Error&) {
    // If the service is silent, the network of this host may be the reason.
    if (const auto failure = this->failure()) throw_error(failure->code, failure->text);
    throw;
  }
  for (size_t r = 0; r < all.size(); ++r)
    if (const std::string theirs = all[r].substr(all[r].find('\n') + 1); theirs != purpose)
      throw InvalidArgumentError(fmt::format(
          "group {} of this job is for {} on rank {}, and for {} on rank {}: all workers make "
          "their strategies and groups in the same order",
          group + 1, purpose, rank(), theirs, r));
  return all;
}

std::unique_ptr<Backend> Job::new_group(const std::string& purpose) {
  const int number = groups_++;
  std::vector<int> ranks(boot_.membership.addresses.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (topology_) {
    const NetworkBackend::Plan plan(topology_);
    const Introduction& mine = plan.introduction();
    std::vector<Introduction> all;
    for (const std::string& text :
         introduce(number, fmt::format("{} {}", mine.blocks, mine.id), purpose))
      all.push_back({std::stoull(text), std::stoull(text.substr(text.find(' ') + 1))});
    return plan.finish(all);
  }
  uint64_t position = 0;
  if (rank() == 0)
    position = host_peers_.memory->position(
        host_peers_.blocks->make(*host_peers_.memory, size()).begin(), 1);
  const std::string first = introduce(number, std::to_string(position), purpose)[0];
  const Blocks blocks(host_peers_.memory->find(0, std::stoull(first)), size());
  return std::make_unique<WindowBackend>("shm", host_peers_, ranks, rank(), blocks);
}

std::optional<Failure> Job::failure() const {
  const std::shared_ptr<Coordination> link = link_->get();
  if (!link) return {};
  std::optional<Failure> failure = link->failure();
  if (failure && link->silence() == std::chrono::nanoseconds::max())
    if (const std::string why = isolation(); !why.empty())
      failure = {rank(), ErrorCode::unavailable,
                 fmt::format("rank {} ({}) {}", rank(), boot_.address(), why)};
  return failure;
}

// A rank that hears neither another host nor the service, if that is elsewhere, suspects itself
// before it accuses. With one other host alone it cannot tell which of the two is cut off.
std::string Job::isolation() const {
  const std::shared_ptr<Coordination> link = link_->get();
  const std::string& service = boot_.membership.service;
  if (!link || !topology_ || cluster::is_loopback(service) ||
      topology_->control->hears_other_hosts())
    return {};
  if (link->silence().count())
    return "hears neither the coordination service nor any other host: the network of its own "
           "host is cut off";
  const auto host_of = [](const std::string& address) {
    return address.substr(0, address.rfind(':'));
  };
  std::set<std::string> hosts;  // with ranks that could reply
  for (int r = 0; r < size(); ++r)
    if (r != rank() && topology_->control->may_reply(r))
      hosts.insert(topology_->ranks->hosts[size_t(r)]);
  hosts.erase(topology_->ranks->hosts[size_t(rank())]);
  if (host_of(boot_.address()) != host_of(service) || hosts.size() < 2) return {};
  return "hears no other host: the network of its own host is cut off";
}

JobLayout Job::layout() {
  link_->exchange(fmt::format("layout {}", layouts_++),
                  "");  // no rank leaves before all are joined
  JobLayout layout{.rank = rank(),
                   .source = boot_.membership.source,
                   .service = boot_.membership.service,
                   .costs = costs()};
  for (size_t r = 0; r < hellos_.size(); ++r)
    layout.ranks.push_back({.address = boot_.membership.addresses[r],
                            .machine = hellos_[r].hostname,
                            .host = hellos_[r].memory.host,
                            .named = hellos_[r].host_is_named});
  if (topology_) site_->describe_network(boot_, layout);
  return layout;
}

void Job::leave() {
  bool complete = !link_->alarm().load();
  if (topology_) complete = leave_network(*topology_->control, *link_);
  leave_service(boot_, *link_, complete);
  if (topology_) {
    stop_progress();  // only now: ranks that connected meanwhile heard that this one has left
    topology_->control->close();
  }
  if (boot_.rendezvous && !link_->alarm().load()) boot_.rendezvous->finalize();
}

}  // namespace tutti::group
