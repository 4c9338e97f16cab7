#include "group/job.h"

#include <fmt/format.h>
#include <tutti/version.h>

#include <cstdlib>
#include <mutex>

#include "base/log.h"
#include "base/module.h"
#include "base/settings.h"
#include "cluster/coordination.h"
#include "cluster/membership.h"
#include "group/backends/shm.h"

namespace tutti::group {

namespace {

using cluster::ClusterModule;
using cluster::Coordination;
using cluster::Failure;
using cluster::Membership;
using cluster::Service;

// How long the chief stays for those who are not done yet, where it runs the service.
constexpr std::chrono::seconds kLinger{5};

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("localhost:") ||
         address.starts_with("[::1]");
}

// Settings say "for ever" as 0.
std::chrono::nanoseconds join_timeout() {
  const std::chrono::nanoseconds timeout = base::settings().join_timeout;
  return timeout.count() ? timeout : std::chrono::nanoseconds::max();
}

class Job {
 public:
  explicit Job(const Membership& membership) : membership_(membership) {
    const base::Settings& settings = base::settings();
    const cluster::Job job{.addresses = membership.addresses,
                           .token = settings.token,
                           .version = std::string(version()),
                           .certificate = settings.tls_certificate,
                           .key = settings.tls_key,
                           .authority = settings.tls_authority,
                           .heartbeat_timeout = settings.heartbeat_timeout,
                           .chief_serves = settings.coordinator.empty()};
    if (job.token.empty() && !is_loopback(membership.service))
      base::log_once(base::LogLevel::warning,
                     fmt::format("anybody who reaches {} can join this job: set TUTTI_TOKEN to the "
                                 "same secret on all workers",
                                 membership.service));
    const auto& module = *static_cast<const ClusterModule*>(base::load_module("cluster").interface);
    if (membership.serves) service_ = module.serve(job, membership.service);
    link_ = module.join(job, membership.service, membership.rank, join_timeout());
    link_->on_failure([this](const Failure&) { alarm_.store(true, std::memory_order_release); });
    neighbourhood_ =
        shm_neighbourhood({.rank = membership.rank,
                           .addresses = membership.addresses,
                           .hellos = link_->exchange("processes", shm_hello(), join_timeout()),
                           .alarm = &alarm_,
                           .failure = [this] { return link_ ? link_->failure() : std::nullopt; }});
  }

  std::unique_ptr<Backend> new_group() {
    const int ranks = int(membership_.addresses.size());
    Block* const mine = neighbourhood_.blocks->make(*neighbourhood_.reach, ranks);
    const uint64_t place = neighbourhood_.reach->place(mine, Block::bytes(ranks));
    const std::vector<std::string> places =
        link_->exchange(fmt::format("group {}", groups_++), std::to_string(place), join_timeout());
    std::vector<int> everybody;
    std::vector<Block*> blocks;
    for (int r = 0; r < ranks; ++r) {
      everybody.push_back(r);
      blocks.push_back(
          static_cast<Block*>(neighbourhood_.reach->find(r, std::stoull(places[size_t(r)]))));
    }
    return std::make_unique<WindowBackend>("shm", neighbourhood_, everybody, membership_.rank,
                                           blocks);
  }

  // Says goodbye, and stays for the others where they need the service.
  void leave() {
    link_.reset();
    if (service_) service_->wait_until_empty(kLinger);
    service_.reset();
  }

 private:
  Membership membership_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Coordination> link_;
  std::atomic<bool> alarm_{false};
  Neighbourhood neighbourhood_;
  int groups_ = 0;
};

}  // namespace

std::unique_ptr<Backend> backend_from_environment() {
  static std::mutex mutex;
  // Never destroyed: groups in static variables may outlive any order of destruction.
  static Job* job = nullptr;
  std::lock_guard lock(mutex);
  if (!job) {
    const std::optional<Membership> membership = cluster::membership_from_environment();
    if (!membership) return std::move(make_in_process(1)[0]);
    auto joined = std::make_unique<Job>(*membership);
    // Registered after the module was loaded, so before its own statics are destroyed.
    job = joined.release();
    std::atexit([] { job->leave(); });
  }
  return job->new_group();
}

}  // namespace tutti::group
