// SPDX-License-Identifier: Apache-2.0
#include "group/shm/processes.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <bitset>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>

#include "base/descriptors.h"
#include "group/shm/arena.h"

namespace tutti::group {

namespace {

std::string boot_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

using Cores = std::bitset<CPU_SETSIZE>;

Cores my_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  Cores cores;
  for (size_t i = 0; i < CPU_SETSIZE; ++i) cores[i] = CPU_ISSET(i, &set);
  return cores;
}

class Processes : public PeerMemory, public PeerMonitor {
 public:
  explicit Processes(const HostProcesses& processes)
      : peers_(processes), arenas_(processes.hellos.size()) {
    const size_t mine = size_t(processes.rank), ranks = processes.hellos.size();
    Cores cores;
    for (size_t r = 0; r < ranks; ++r) {
      const ShmHello& hello = processes.hellos[r];
      if (hello.host != processes.hellos[mine].host)
        throw UnimplementedError(fmt::format(
            "group: {} and {} cannot reach each other's memory: they are on different hosts, or in "
            "containers that do not share their process ids",
            name(mine), name(r)));
      for (const int core : hello.cores) cores.set(size_t(core));
    }
    crowded_ = ranks > cores.count();
    // The first rank makes the blocks of the job's groups, and may leave before others look at
    // them. If each rank can open the next one's memory, all can open all.
    if (mine != 0) arena(0).hold();
    if (const size_t next = (mine + 1) % ranks; next != mine) arena(next).check();
  }
  ~Processes() override {
    for (const std::atomic<PeerArena*>& arena : arenas_) delete arena.load();
  }

  uint64_t position(const void* data, size_t bytes) const override {
    return Arena::mine().position_of(data, bytes);
  }
  void* find(int rank, uint64_t position) const override {
    if (rank == peers_.rank) return Arena::mine().at(position);
    return arena(size_t(rank)).at(position);
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return Arena::mine().allocate(bytes); }
  std::shared_ptr<void> allocate_zeroed(size_t bytes) override {
    return Arena::mine().allocate_zeroed(bytes);
  }

  std::string address(int rank) const override { return peers_.addresses[size_t(rank)]; }
  int job_rank(int rank) const override { return peers_.ranks[size_t(rank)]; }
  // If another process has the id already, the coordination service tells of the loss.
  std::string loss(int rank) const override {
    const pid_t pid = peers_.hellos[size_t(rank)].pid;
    const base::Descriptor process(int(syscall(SYS_pidfd_open, pid, 0)));
    pollfd ended{process.get(), POLLIN, 0};
    if (process.get() < 0 ? errno != ESRCH : poll(&ended, 1, 0) <= 0) return {};
    return fmt::format("is lost: its process {} has ended", pid);
  }
  std::optional<cluster::Failure> failure() const override {
    return peers_.alarm->load(std::memory_order_acquire) ? peers_.failure() : std::nullopt;
  }
  const std::atomic<bool>* alarm() const override { return peers_.alarm; }
  void abandon() const override { Arena::mine().abandon(); }
  bool crowded() const override { return crowded_; }
  bool separate_processes() const override { return true; }

 private:
  std::string name(size_t index) const {
    return rank_name(peers_.ranks[index], peers_.addresses[index]);
  }

  // Made when it is first looked at: of many ranks most never are.
  PeerArena& arena(size_t rank) const {
    if (PeerArena* const known = arenas_[rank].load(std::memory_order_acquire)) return *known;
    const ShmHello& hello = peers_.hellos[rank];
    auto made = std::make_unique<PeerArena>(PeerArena::Origin{.name = name(rank),
                                                              .pid = hello.pid,
                                                              .fd = hello.fd,
                                                              .inode = hello.inode,
                                                              .first_segment = hello.first_segment,
                                                              .user = hello.user,
                                                              .dumpable = hello.dumpable});
    PeerArena* other = nullptr;  // of a thread that was faster
    return arenas_[rank].compare_exchange_strong(other, made.get()) ? *made.release() : *other;
  }

  const HostProcesses peers_;
  mutable std::vector<std::atomic<PeerArena*>> arenas_;
  bool crowded_ = false;
};

}  // namespace

std::string this_host() {
  std::error_code ignored;
  return boot_id() + " " + std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
}

ShmHello shm_hello(const std::string& host) {
  const Arena& arena = Arena::mine();
  std::vector<int> cores;
  const Cores mine = my_cores();
  for (size_t i = 0; i < mine.size(); ++i)
    if (mine[i]) cores.push_back(int(i));
  return {.host = host,
          .machine = boot_id(),
          .cores = std::move(cores),
          .pid = getpid(),
          .fd = arena.fd(),
          .inode = inode_of(arena.fd()),
          .first_segment = arena.first_segment(),
          .user = geteuid(),
          .dumpable = prctl(PR_GET_DUMPABLE) == 1};
}

HostPeers connect_processes(const HostProcesses& processes) {
  const auto peers = std::make_shared<Processes>(processes);
  return {peers, std::make_shared<BlockPool>(), peers};
}

}  // namespace tutti::group
