// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "group/net/registry.h"
#include "group/net/ucx/devices.h"

namespace tutti::group::ucx {

namespace {

bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value && *value;
}

// Whether there is something faster than TCP, or UCX was told what to use.
bool is_preferred(const TransportOptions& options) {
  return is_set("UCX_TLS") || is_set("UCX_NET_DEVICES") ||
         devices(options).find(':') != std::string::npos;
}

// UCX reads these when it is loaded. Without them it would catch signals, and log to stdout what
// becomes our errors.
void before_load() {
  setenv("UCX_ERROR_SIGNALS", "", 0);
  setenv("UCX_LOG_LEVEL", "fatal", 0);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
  // What UCX reads from TCP at once. With its default of 64k, a message of 64k comes in two reads.
  setenv("UCX_TCP_RX_SEG_SIZE", "72k", 0);
}

constexpr TransportKind::Module kModules[] = {
    {.name = "ucx",
     .ranks = "ranks on several hosts, over InfiniBand, RoCE or TCP",
     .purpose = "transport between hosts, by RDMA",
     .library = "libucx0",
     .headers = "libucx-dev"}};

}  // namespace

extern const TransportKind kKind{.modules = kModules,
                                 .descriptors = 24,
                                 .is_preferred = is_preferred,
                                 .before_load = before_load};

}  // namespace tutti::group::ucx
