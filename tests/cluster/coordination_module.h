// SPDX-License-Identifier: Apache-2.0
// The module "cluster" and jobs to try it with, for tests and their worker processes.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/module.h"
#include "cluster/coordination.h"

namespace tutti::testing {

// Loaded by its path: the test is linked with the code beside it, not with libtutti.so.
inline const cluster::ClusterModule& cluster_module() {
  static const auto* const module = [] {
    void* const library = dlopen(TUTTI_CLUSTER_MODULE, RTLD_NOW | RTLD_LOCAL);
    void* const entry = library ? dlsym(library, "tutti_module") : nullptr;
    if (!entry) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
    const base::Module* const found = reinterpret_cast<const base::Module* (*)()>(entry)();
    return static_cast<const cluster::ClusterModule*>(found->interface);
  }();
  return *module;
}

// The addresses are names only: nothing listens there.
inline cluster::Job job_of(int ranks) {
  cluster::Job job;
  for (int rank = 0; rank < ranks; ++rank)
    job.addresses.push_back("127.0.0.1:" + std::to_string(5000 + rank));
  job.token = "sesame";
  job.version = "1.2.3";
  return job;
}

}  // namespace tutti::testing
