// SPDX-License-Identifier: Apache-2.0
// Which algorithm suits a set of devices. Pure, over a description of the machine.
#pragma once

#include <string>
#include <vector>

namespace tutti::cross_device {

struct Choice {
  std::string algorithm;  // "reduction_to_one_device", "hierarchical_copy" or "nccl"
  int num_packs;
  friend bool operator==(const Choice&, const Choice&) = default;
};

// For each GPU of the machine, the GPUs it has a direct link to.
using LinkTable = std::vector<std::vector<int>>;

// `types` are those of the devices that take part. GPUs in two fully linked quads, each GPU linked
// to its counterpart in the other one, copy hierarchically; other GPUs use NCCL; all else meets on
// one device.
Choice choose(const std::vector<std::string>& types, const LinkTable& links);

}  // namespace tutti::cross_device
