// SPDX-License-Identifier: Apache-2.0
// The network devices that UCX is told to use.
#pragma once

#include <cstdlib>
#include <string>

#include "group/net/transport.h"

namespace tutti::group::ucx {

// "eth0", "ib0,mlx5_0:1"; empty: UCX chooses.
inline std::string devices(const TransportOptions& options) {
  if (!options.interfaces.empty()) return options.interfaces;
  return std::getenv("UCX_NET_DEVICES") ? "" : options.devices;
}

}  // namespace tutti::group::ucx
