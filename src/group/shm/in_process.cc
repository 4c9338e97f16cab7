// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: every rank reaches all memory as it is.
#include <sys/mman.h>

#include "base/topology.h"
#include "group/shm/backend.h"
#include "kernels/reduce.h"

namespace tutti::group {

namespace {

class Threads : public PeerMemory, public PeerMonitor {
 public:
  explicit Threads(int n) : n_(n) {}

  uint64_t position(const void* data, size_t) const override {
    return reinterpret_cast<uint64_t>(data);
  }
  void* find(int, uint64_t position) const override { return reinterpret_cast<void*>(position); }
  std::shared_ptr<void> allocate(size_t bytes) override { return allocate_private(bytes); }
  // Most of a block is never touched, so it comes from where untouched pages cost nothing.
  std::shared_ptr<void> allocate_zeroed(size_t bytes) override {
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      throw ResourceExhaustedError("group: the system has no memory for another rank");
    return {data, [bytes](void* p) { munmap(p, bytes); }};
  }

  std::string address(int) const override { return {}; }
  int job_rank(int) const override { return -1; }
  std::string loss(int) const override { return {}; }  // a thread does not die alone
  std::optional<cluster::Failure> failure() const override { return {}; }
  const std::atomic<bool>* alarm() const override { return nullptr; }
  bool crowded() const override { return n_ > base::topology().cores; }
  bool separate_processes() const override { return false; }

 private:
  const int n_;
};

}  // namespace

std::vector<std::unique_ptr<Backend>> make_in_process(int n, const base::Costs& costs) {
  const auto threads = std::make_shared<Threads>(n);
  const HostPeers host_peers{threads, std::make_shared<BlockPool>(), threads, costs};
  std::vector<int> ranks;
  for (int r = 0; r < n; ++r) ranks.push_back(r);
  const Blocks blocks = host_peers.blocks->make(*threads, n);
  std::vector<std::unique_ptr<Backend>> result;
  for (int r = 0; r < n; ++r)
    result.push_back(std::make_unique<WindowBackend>("in_process", host_peers, ranks, r, blocks));
  return result;
}

}  // namespace tutti::group
