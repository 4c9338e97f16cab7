// SPDX-License-Identifier: Apache-2.0
// The coordination service by itself, and a stranger that tries to join it. The token is
// TUTTI_TOKEN; the module "cluster" is at TUTTI_TEST_MODULE.
//   stranger serve RANKS             says its address; then, for each line, how many were refused
//   stranger join SERVICE RANK RANKS TOKEN [VERSION]   says what became of it
#include <dlfcn.h>
#include <tutti/version.h>

#include <iostream>

#include "base/module.h"
#include "cluster/coordination.h"
#include "report.h"

using namespace tutti;

namespace {

const cluster::ClusterModule& cluster_module() {
  const char* const path = std::getenv("TUTTI_TEST_MODULE");
  void* const library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  void* const entry = library ? dlsym(library, "tutti_module") : nullptr;
  if (!entry) throw std::runtime_error(path ? dlerror() : "TUTTI_TEST_MODULE is not set");
  const auto* const module = reinterpret_cast<const base::Module* (*)()>(entry)();
  return *static_cast<const cluster::ClusterModule*>(module->interface);
}

cluster::Job job_of(int ranks, const std::string& token, const std::string& version) {
  const char* const heartbeat_timeout = std::getenv("TUTTI_HEARTBEAT_TIMEOUT");
  return {.addresses = std::vector<std::string>(size_t(ranks), "127.0.0.1:1"),
          .token = token,
          .version = version,
          .heartbeat_timeout =
              std::chrono::seconds(heartbeat_timeout ? std::atoi(heartbeat_timeout) : 10)};
}

void serve(int ranks) {
  const char* const token = std::getenv("TUTTI_TOKEN");
  const auto service = cluster_module().serve(
      job_of(ranks, token ? token : "", std::string(version())), "127.0.0.1:0");
  std::cout << service->address() << std::endl;
  for (std::string line; std::getline(std::cin, line);)
    std::cout << service->refused() << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "";
  try {
    if (role == "serve" && argc == 3) {
      serve(std::stoi(argv[2]));
    } else if (role == "join" && (argc == 6 || argc == 7)) {
      const cluster::Job job =
          job_of(std::stoi(argv[4]), argv[5], argc == 7 ? argv[6] : std::string(version()));
      const auto link =
          cluster_module().join(job, argv[2], std::stoi(argv[3]), std::chrono::seconds(10));
      std::cout << "joined" << std::endl;
    } else {
      return 2;
    }
  } catch (const Error& error) {
    std::cout << tutti::testing::class_of(error) << " " << error.what() << std::endl;
    return 3;
  }
}
