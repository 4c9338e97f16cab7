// SPDX-License-Identifier: Apache-2.0
// A coordination service and the ranks that have joined it, in one process.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/coordination_module.h"

namespace tutti::testing {

using namespace std::chrono_literals;
using cluster::Coordination;
using cluster::Job;
using cluster::Service;

inline constexpr auto kLong = 20s;  // for what should take no time

inline std::unique_ptr<Service> serve(const Job& job, const std::string& address = "127.0.0.1:0") {
  return cluster_module().serve(job, address);
}

inline std::unique_ptr<Coordination> join(const Job& job, const std::string& service, int rank,
                                          std::chrono::nanoseconds timeout = kLong) {
  return cluster_module().join(job, service, rank, timeout);
}

// A job with its service and the connections of its first `here` ranks.
struct Cluster {
  explicit Cluster(int ranks, int here = -1, Job the_job = {})
      : job(the_job.addresses.empty() ? job_of(ranks) : std::move(the_job)), service(serve(job)) {
    for (int rank = 0; rank < (here < 0 ? ranks : here); ++rank)
      connections.push_back(join(job, service->address(), rank));
  }
  Coordination& operator[](int rank) { return *connections[rank]; }
  int size() const { return static_cast<int>(connections.size()); }

  Job job;
  std::unique_ptr<Service> service;
  std::vector<std::unique_ptr<Coordination>> connections;
};

// Runs body(rank) on a thread per rank.
template <class Body>
void on_all(int ranks, const Body& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&body, rank] { body(rank); });
}

}  // namespace tutti::testing
