// SPDX-License-Identifier: Apache-2.0
// Every algorithm that comes with Tutti, in every configuration that might make a difference.
#pragma once

#include <tutti/cross_device_ops.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tutti::testing {

struct Algorithm {
  std::string name;
  std::function<std::unique_ptr<CrossDeviceOps>()> make;
};

inline std::vector<Algorithm> all_algorithms() {
  const auto all_reduce = [](auto... arguments) {
    return [=] { return std::make_unique<AllReduceCrossDeviceOps>(arguments...); };
  };
  std::vector<Algorithm> all{
      {"OneDevice", [] { return std::make_unique<ReductionToOneDevice>(); }},
      {"OneGivenDevice", [] { return std::make_unique<ReductionToOneDevice>("/cpu:0"); }},
      {"SmallAggregation", all_reduce("hierarchical_copy", 0, 100, 10)},
      {"Nccl", all_reduce("nccl", 1)},
      {"NcclUnpacked", all_reduce("nccl", 0)},
  };
  for (const int packs : {0, 1, 2, 8, 1000})
    all.push_back({"Hierarchical" + std::to_string(packs), all_reduce("hierarchical_copy", packs)});
  return all;
}

}  // namespace tutti::testing
