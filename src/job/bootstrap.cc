// SPDX-License-Identifier: Apache-2.0
#include "job/bootstrap.h"

#include <fmt/format.h>
#include <tutti/version.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/descriptors.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/module.h"
#include "base/settings.h"
#include "cluster/checks.h"
#include "job/hello.h"
#include "job/interfaces.h"
#include "job/link.h"

namespace tutti::group {

namespace {

using cluster::ClusterModule;
using cluster::Coordination;
using cluster::Membership;

const ClusterModule& cluster_module() {
  return *static_cast<const ClusterModule*>(base::load_module("cluster").interface);
}

int port_of(const std::string& address) {
  return std::atoi(address.c_str() + address.rfind(':') + 1);
}

cluster::Job description(const Membership& membership) {
  const base::Settings& settings = base::settings();
  return {.addresses = membership.addresses,
          .token = settings.token,
          .version = std::string(version()),
          .certificate = settings.tls_certificate,
          .key = settings.tls_key,
          .authority = settings.tls_authority,
          .heartbeat_timeout = settings.heartbeat_timeout,
          .chief_serves = settings.coordinator.empty(),
          .on_refused = [](const std::string& refused) {
            base::log(base::LogLevel::warning, "the coordination service refused " + refused);
          }};
}

// The transport whose library knows the ranks that this launcher started; null: there is none.
const RegisteredTransport* transport_of(const std::string& launcher) {
  for (const RegisteredTransport& transport : transports())
    for (const TransportKind::Module& module : transport.kind.modules)
      if (*module.launcher && module.launcher == launcher) return &transport;
  return nullptr;
}

// Without a module for MPI, ranks of one host still find the first.
void meet_on_this_host(Bootstrap& boot, const std::string& missing) {
  Membership& membership = boot.membership;
  if (membership.host_job.empty())
    throw UnavailableError(fmt::format(
        "{} started ranks on several hosts, which cannot find each other: {}; or set "
        "TUTTI_COORDINATOR=HOST:PORT for all ranks, to an address of rank 0's host that the "
        "others reach",
        membership.source, missing));
  constexpr const char* kHost = "127.0.0.1";
  if (membership.serves) {
    boot.service = cluster_module().serve(description(membership), cluster::address_of(kHost, 0));
    membership.service = boot.service->address();
    boot.announcement =
        std::make_unique<Announcement>(membership.host_job, port_of(membership.service));
  } else {
    membership.service =
        cluster::address_of(kHost, find_announced(membership.host_job, join_timeout()));
  }
}

// Rank 0's address for the service, which it then runs.
std::string serve_under_mpirun(Bootstrap& boot, const std::vector<std::string>& hosts) {
  const bool one_host = std::set(hosts.begin(), hosts.end()).size() == 1;
  const std::string host = one_host ? "127.0.0.1" : outside_address(base::settings().interfaces);
  if (host.empty())
    throw UnavailableError(
        "no network interface is up for the coordination service; TUTTI_INTERFACES names "
        "those to use");
  boot.service = cluster_module().serve(description(boot.membership), cluster::address_of(host, 0));
  return boot.service->address();
}

// The rendezvous tells all ranks where the first one serves.
void meet_by_rendezvous(Bootstrap& boot) {
  const std::vector<std::string> hosts = boot.rendezvous->all_gather(machine_name());
  boot.membership.addresses = hosts;
  std::string service, trouble;
  if (boot.membership.serves) try {
      service = serve_under_mpirun(boot, hosts);
    } catch (const Error& error) {
      trouble = error.what();  // the others wait to hear it
    }
  constexpr char kTrouble = '!';
  const std::string said =
      boot.rendezvous->all_gather(trouble.empty() ? service : kTrouble + trouble)[0];
  if (said.starts_with(kTrouble))
    throw UnavailableError("rank 0 cannot run the coordination service: " + said.substr(1));
  boot.membership.service = said;
}

void serve_if_needed(Bootstrap& boot, const cluster::Job& job) {
  const Membership& membership = boot.membership;
  if (membership.serves && !boot.service)
    boot.service = cluster_module().serve(job, membership.service);
  // Nothing else would serve there.
  if (transport_of(membership.source) && !membership.serves && membership.rank == 0) try {
      boot.service = cluster_module().serve(job, membership.service);
    } catch (const UnavailableError&) {  // a service runs there, or it is another host's
    }
  if (boot.service) base::close_port_in_children(port_of(boot.service->address()));
}

}  // namespace

Bootstrap find_service(const Membership& membership) {
  Bootstrap boot{membership};
  if (!membership.service.empty()) return boot;
  const RegisteredTransport* const transport = transport_of(membership.source);
  if (!transport)
    throw InternalError(
        fmt::format("a job of {} has no address for the coordination service", membership.source));
  try {
    load_transport(*transport, boot);
  } catch (const UnavailableError& error) {
    if (base::settings().backend == transport->name) throw;
    meet_on_this_host(boot, error.what());
    return boot;
  }
  meet_by_rendezvous(boot);
  return boot;
}

std::unique_ptr<Coordination> join_service(Bootstrap& boot) {
  const Membership& membership = boot.membership;
  const cluster::Job job = description(membership);
  if (job.token.empty() && !cluster::is_loopback(membership.service))
    base::log_once(
        base::LogLevel::warning,
        fmt::format("any process that reaches {} can join this job: set TUTTI_TOKEN to the "
                    "same secret on all workers",
                    membership.service));
  serve_if_needed(boot, job);
  const int port = port_of(membership.service);
  const std::vector<int> before = base::sockets_to(port);
  auto link = cluster_module().join(job, membership.service, membership.rank, join_timeout());
  std::vector<int> sockets = base::sockets_to(port);
  std::erase_if(sockets, [&](int fd) { return std::ranges::find(before, fd) != before.end(); });
  base::close_in_children(sockets);
  return link;
}

const TransportModule& load_transport(const RegisteredTransport& transport, Bootstrap& boot) {
  const TransportKind& kind = transport.kind;
  const Membership& membership = boot.membership;
  const TransportKind::Module* const found = module_for(kind, membership.source);
  if (!found)
    throw FailedPreconditionError(
        fmt::format("TUTTI_BACKEND={}: {}", transport.name, kind.elsewhere));
  const TransportModule& module = load(kind, *found);
  if (const Rendezvous* const rendezvous = module.rendezvous) {
    if (rendezvous->size() != boot.size() || rendezvous->rank() != membership.rank)
      throw FailedPreconditionError(fmt::format(
          "{} started {} ranks, but the MPI library that was found ({}) sees {}: they are of "
          "different kinds; use the mpirun that belongs to it",
          membership.source, boot.size(), rendezvous->library(), rendezvous->size()));
    boot.rendezvous = rendezvous;
  }
  return module;
}

void expect_descriptors(int more, const Bootstrap& boot) {
  base::expect_descriptors(more, fmt::format("this job of {} ranks", boot.size()));
}

}  // namespace tutti::group
