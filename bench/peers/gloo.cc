// SPDX-License-Identifier: Apache-2.0
// gloo::allreduce over TCP on the loopback device, or on that of the address GLOO_HOST:
// gloo RANK RANKS FOLDER [options of measure.h], one process per rank; they connect by files in
// FOLDER, which must be empty.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>

#include "measure.h"

namespace {

class Gloo {
 public:
  Gloo(int rank, int ranks, const std::string& folder)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, ranks)) {
    gloo::transport::tcp::attr where;
    const char* const host = std::getenv("GLOO_HOST");
    where.hostname = host ? host : "127.0.0.1";
    where.ai_family = AF_UNSPEC;
    gloo::rendezvous::FileStore store(folder);
    auto device = gloo::transport::tcp::CreateDevice(where);
    context_->connectFullMesh(store, device);
  }

  std::string name() const {
    return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) +
           "." + std::to_string(GLOO_VERSION_PATCH);
  }
  int rank() const { return context_->rank; }
  int ranks() const { return context_->size; }
  void barrier() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }
  void all_reduce(float* data, size_t count) { reduce(data, count); }
  int64_t sum(int64_t value) {
    reduce(&value, 1);
    return value;
  }
  int64_t from_rank_0(int64_t value) { return sum(rank() == 0 ? value : 0); }

 private:
  template <typename T>
  void reduce(T* data, size_t count) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(data, count);
    options.setReduceFunction(
        [](void* to, const void* a, const void* b, size_t n) { gloo::sum<T>(to, a, b, n); });
    gloo::allreduce(options);
  }

  std::shared_ptr<gloo::rendezvous::Context> context_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: gloo RANK RANKS FOLDER [options]\n");
    return 2;
  }
  const peers::Options options = peers::parse(argc, argv);
  const int rank = std::atoi(argv[1]);
  if (options.pin) peers::pin(rank);
  Gloo gloo(rank, std::atoi(argv[2]), argv[3]);
  peers::measure(gloo, options);
  gloo.barrier();  // a rank that leaves early closes its connections
}
