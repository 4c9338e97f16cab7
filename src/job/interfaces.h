// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this machine.
#pragma once

#include <string>

namespace tutti::group {

struct OwnInterface {
  std::string name;     // "eth0"
  std::string address;  // "10.0.0.5"
};
// The interface that has the host of "HOST:PORT". Both empty if none of this machine's has it, or
// if there is no such host.
OwnInterface own_interface(const std::string& address);

// The interface, and the RDMA devices that belong to it: "ib0,mlx5_0:1".
std::string devices_of(const std::string& interface);

// An address by which other hosts reach this one, without a port: of one of `interfaces` ("eth0,
// eth1"), or of the first that is up and no loopback. Empty if there is none.
std::string outside_address(const std::string& interfaces);

}  // namespace tutti::group
