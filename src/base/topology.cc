// SPDX-License-Identifier: Apache-2.0
#include "base/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <thread>

namespace tutti::base {

namespace {

Topology discover() {
  // What follows is for a machine that hwloc cannot read.
  Topology result{int(std::max(1u, std::thread::hardware_concurrency())), size_t(8) << 20};
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) return result;
  if (hwloc_topology_load(topology) == 0) {
    hwloc_cpuset_t mine = hwloc_bitmap_alloc();
    if (hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_PROCESS) == 0) {
      hwloc_bitmap_and(mine, mine, hwloc_topology_get_allowed_cpuset(topology));
      // Processing units of one core share its load and store units: a second thread there adds
      // little.
      const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, mine, HWLOC_OBJ_CORE);
      const int units = hwloc_bitmap_weight(mine);
      if (units > 0) result.cores = cores > 0 ? cores : units;
    }
    hwloc_bitmap_free(mine);
    for (const hwloc_obj_type_t type : {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE})
      if (const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0))
        result.last_level_cache = cache->attr->cache.size;
  }
  hwloc_topology_destroy(topology);
  return result;
}

}  // namespace

const Topology& topology() {
  static const Topology instance = discover();
  return instance;
}

}  // namespace tutti::base
