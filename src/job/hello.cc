// SPDX-License-Identifier: Apache-2.0
#include "job/hello.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/settings.h"
#include "group/net/registry.h"

namespace tutti::group {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ShmHello, host, machine, cores, pid, fd, inode, first_segment,
                                   user, dumpable)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TimelineHello, enabled, epoch, run, clock)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, memory, local, hostname, host_is_named, stragglers, costs,
                                   backend, preferred, timeline)

std::string machine_name() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

Hello own_hello(int rank) {
  const base::Settings& settings = base::settings();
  const std::string local = settings.host_id.empty() ? this_host() : settings.host_id;
  const bool alone = find_transport(settings.backend) != nullptr;
  return {.memory = shm_hello(alone ? fmt::format("{} rank {}", local, rank) : local),
          .local = local,
          .hostname = machine_name(),
          .host_is_named = !settings.host_id.empty(),
          .stragglers = settings.stragglers,
          .costs = base::to_string(settings.costs),
          .backend = settings.backend};
}

std::string to_json(const Hello& hello) {
  // A host name may be any bytes.
  return nlohmann::json(hello).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Hello from_json(const std::string& text) { return nlohmann::json::parse(text).get<Hello>(); }

}  // namespace tutti::group
