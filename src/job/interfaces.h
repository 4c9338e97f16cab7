// The network interfaces of this machine.
#pragma once

#include <string>

namespace tutti::group {

// The interface that has the host of "HOST:PORT": "eth0". Empty where none of this machine's does,
// or there is no such host.
std::string interface_of(const std::string& address);

// The host of "HOST:PORT" in figures, as that interface has it: "10.0.0.5". Empty likewise.
std::string own_address(const std::string& address);

// The interface, and the RDMA devices that belong to it: "ib0,mlx5_0:1".
std::string devices_of(const std::string& interface);

// An address by which other hosts reach this one, without a port: of one of `interfaces` ("eth0,
// eth1"), or of the first that is up and no loopback. Empty where there is none.
std::string outside_address(const std::string& interfaces);

}  // namespace tutti::group
