// SPDX-License-Identifier: Apache-2.0
// What messages and phases take in the job at hand.
#pragma once

#include <tutti/group.h>

#include "base/costs.h"
#include "group/net/topology.h"

namespace tutti::tools {

// A collective over all ranks of the job; those of rank 0 count. What is not measured keeps its
// default: what a byte takes that is summed.
base::Costs measure_costs(const Group& job, const group::GroupTopology& topology);

}  // namespace tutti::tools
