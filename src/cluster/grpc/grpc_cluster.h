// SPDX-License-Identifier: Apache-2.0
// The two halves of the module "cluster"; coordination.h says what they do.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <memory>
#include <string>

#include "cluster/coordination.h"

namespace tutti::cluster {

std::unique_ptr<Service> serve(const Job& job, const std::string& address);
std::unique_ptr<Coordination> join(const Job& job, const std::string& service, int rank,
                                   std::chrono::nanoseconds timeout);

// Throws the errors that both can find in a job before they use the network.
void check(const Job& job);

// True also for an incomplete configuration: such a job must not run in the clear.
bool uses_tls(const Job& job);

// TLS with certificates on both sides if the job has them. NotFoundError, InvalidArgumentError: a
// file is missing or cannot be read.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const Job& job);
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Job& job);

}  // namespace tutti::cluster
