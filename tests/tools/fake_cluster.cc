// SPDX-License-Identifier: Apache-2.0
// A coordination service that cannot be joined. It writes down what it was told and when it ended,
// in the file that TEST_SERVICE_LOG names.
#include <cstdlib>
#include <fstream>

#include "base/module.h"
#include "cluster/coordination.h"

namespace {

using tutti::cluster::Job;

void note(const std::string& text) {
  if (const char* const path = std::getenv("TEST_SERVICE_LOG"))
    std::ofstream(path, std::ios::app) << text << "\n";
}

class FakeService final : public tutti::cluster::Service {
 public:
  FakeService(const Job& job, std::string address) : address_(std::move(address)) {
    note("serve " + address_ + " " + job.token + " " + job.version);
    for (const std::string& worker : job.addresses) note("worker " + worker);
  }
  ~FakeService() override { note("end"); }
  std::string address() const override { return address_; }
  bool wait_until_empty(std::chrono::nanoseconds) override { return true; }
  bool wait_until_quiet(std::chrono::nanoseconds) override { return true; }
  std::optional<tutti::cluster::Failure> failure() const override { return {}; }
  int64_t refused() const override { return 0; }

 private:
  std::string address_;
};

std::unique_ptr<tutti::cluster::Service> serve(const Job& job, const std::string& address) {
  static int refusals =
      std::getenv("TEST_SERVICE_REFUSALS") ? std::atoi(std::getenv("TEST_SERVICE_REFUSALS")) : 0;
  if (refusals-- > 0) throw tutti::UnavailableError("cannot listen on " + address);
  return std::make_unique<FakeService>(job, address);
}

const tutti::cluster::ClusterModule interface {
  serve, nullptr
};
const tutti::base::Module module{TUTTI_VERSION, &interface};

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::base::Module* tutti_module() {
  return &module;
}
