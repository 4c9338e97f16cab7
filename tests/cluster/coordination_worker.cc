// SPDX-License-Identifier: Apache-2.0
// A process that joins a job or runs its service, so that a test can kill or stop it.
//   coordination_worker join SERVICE RANK RANKS SECONDS
//   coordination_worker serve RANKS
// It says "joined" or the service's address, then obeys the lines of its input: "abort" tells the
// job of a failure, "failure" waits for one and says it, "die" ends the process without a goodbye,
// "refused" says how many strangers came; the end of the input is the end.
#include <unistd.h>

#include <future>
#include <iostream>

#include "cluster/coordination_module.h"

namespace {

using namespace tutti;
using namespace tutti::testing;

void obey(const std::function<void(const std::string&)>& command) {
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "die") _exit(1);
    command(line);
  }
}

void run_worker(const std::string& service, int rank, int ranks, int seconds) {
  const auto connection =
      cluster_module().join(job_of(ranks), service, rank, std::chrono::seconds(seconds));
  std::promise<std::string> failure;
  connection->on_failure([&](const cluster::Failure& heard) { failure.set_value(heard.text); });
  std::cout << "joined" << std::endl;
  obey([&](const std::string& command) {
    if (command == "abort") connection->abort({rank, ErrorCode::data_loss, "the worker says so"});
    if (command == "failure") std::cout << failure.get_future().get() << std::endl;
  });
}

void run_service(int ranks) {
  const auto service = cluster_module().serve(job_of(ranks), "127.0.0.1:0");
  std::cout << service->address() << std::endl;
  obey([&](const std::string&) { std::cout << service->refused() << std::endl; });
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string role = argc > 1 ? argv[1] : "";
    if (role == "join" && argc == 6)
      run_worker(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), std::atoi(argv[5]));
    else if (role == "serve" && argc == 3)
      run_service(std::atoi(argv[2]));
    else
      return 2;
  } catch (const std::exception& error) {
    std::cout << error.what() << std::endl;
    return 1;
  }
}
