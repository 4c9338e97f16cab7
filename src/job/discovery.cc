// SPDX-License-Identifier: Apache-2.0
#include "job/discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/settings.h"
#include "job/interfaces.h"

namespace tutti::group {

namespace {

// The ranks on the machine of one of them, and the cores that any of these may use.
struct MachineOfRank {
  MachineOfRank(const std::vector<Hello>& hellos, int rank) {
    for (const Hello& hello : hellos) {
      if (hello.memory.machine != hellos[size_t(rank)].memory.machine) continue;
      ++ranks;
      cores.insert(hello.memory.cores.begin(), hello.memory.cores.end());
    }
  }
  size_t ranks = 0;
  std::set<int> cores;
};

}  // namespace

Placement place_ranks(const std::vector<Hello>& hellos, int rank) {
  Placement placement;
  const Hello& mine = hellos[size_t(rank)];
  for (size_t r = 0; r < hellos.size(); ++r) {
    const ShmHello& memory = hellos[r].memory;
    placement.hosts.push_back(memory.host);
    placement.machines.push_back(hellos[r].local);
    const bool here = memory.host == mine.memory.host;
    if (here || mine.backend == "shm") placement.local.push_back(int(r));
  }
  const MachineOfRank machine(hellos, rank);
  placement.crowded = machine.ranks > machine.cores.size();
  return placement;
}

bool have_two_cores(const std::vector<Hello>& hellos, int rank) {
  const MachineOfRank machine(hellos, rank);
  return machine.cores.size() >= 2 * machine.ranks && hellos[size_t(rank)].memory.cores.size() >= 2;
}

TransportOptions transport_options(const Bootstrap& boot) {
  const std::string& interfaces = base::settings().interfaces;
  // Named interfaces do not depend on how this rank's address resolves.
  const OwnInterface own = interfaces.empty() ? own_interface(boot.address()) : OwnInterface{};
  TransportOptions options{.rank = boot.membership.rank,
                           .address = boot.address(),
                           .interfaces = interfaces,
                           .interface = own.name,
                           .devices = own.name.empty() ? "" : devices_of(own.name),
                           .host = interfaces.empty() ? own.address : outside_address(interfaces),
                           .timeout = join_timeout()};
  if (interfaces.empty() && options.host.empty()) {
    // The others may know an address that this host does not, as behind a translation.
    options.host = outside_address("");
    if (options.host.empty()) options.host = "127.0.0.1";
  }
  return options;
}

const RegisteredTransport* preferred_transport(Bootstrap& boot, const TransportOptions& options) {
  const std::string& backend = base::settings().backend;
  if (backend == "shm" || find_transport(backend)) return nullptr;
  for (const RegisteredTransport& transport : transports()) try {
      if (!transport.kind.is_preferred || !transport.kind.is_preferred(options)) continue;
      load_transport(transport, boot);
      return &transport;
    } catch (const Error&) {  // then it is another
    }
  return nullptr;
}

const RegisteredTransport& choose_transport(const std::vector<Hello>& hellos) {
  const std::string &backend = hellos[0].backend, &preferred = hellos[0].preferred;
  bool all_prefer_it = true;
  for (size_t r = 0; r < hellos.size(); ++r) {
    if (const std::string& other = hellos[r].backend; other != backend)
      throw InvalidArgumentError(
          fmt::format("TUTTI_BACKEND is \"{}\" on rank 0 and \"{}\" on rank {}: set it to the same "
                      "on all workers",
                      backend, other, r));
    all_prefer_it = all_prefer_it && hellos[r].preferred == preferred;
  }
  if (const RegisteredTransport* const named = find_transport(backend)) return *named;
  const RegisteredTransport* const chosen = all_prefer_it ? find_transport(preferred) : nullptr;
  return chosen ? *chosen : transports()[0];
}

std::unique_ptr<Transport> connect(const RegisteredTransport& transport, Bootstrap& boot,
                                   const TransportOptions& options, Link& link) {
  const TransportModule& module = load_transport(transport, boot);
  const TransportKind& kind = transport.kind;
  expect_descriptors(kind.descriptors + kind.files_for(boot.size() - 1), boot);
  const std::unique_ptr<Endpoint> endpoint = module.open(options);
  const std::vector<std::string> addresses =
      link.exchange(std::string(transport.name), endpoint->address());
  return endpoint->connect(addresses, boot.membership.rank, [&] {
    if (const auto failure = link.get()->failure()) throw_error(failure->code, failure->text);
  });
}

}  // namespace tutti::group
