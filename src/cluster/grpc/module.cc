// SPDX-License-Identifier: Apache-2.0
#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include <cstdlib>

#include "base/module.h"
#include "cluster/grpc/grpc_cluster.h"

namespace tutti::cluster {

namespace {

// gRPC writes a line to stderr for every refused connection; Tutti throws an error instead.
// GRPC_VERBOSITY brings the lines back, and a program that uses gRPC itself keeps what it has set.
void silence_grpc() {
  if (!std::getenv("GRPC_VERBOSITY") && !grpc_is_initialized())
    gpr_set_log_verbosity(static_cast<gpr_log_severity>(GPR_LOG_SEVERITY_ERROR + 1));
}

constexpr ClusterModule kInterface{serve, join};
constexpr base::Module kModule{TUTTI_VERSION, &kInterface};

}  // namespace

}  // namespace tutti::cluster

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  tutti::cluster::silence_grpc();
  return &tutti::cluster::kModule;
}
