// SPDX-License-Identifier: Apache-2.0
#include "group/shm/processes.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bitset>
#include <filesystem>
#include <fstream>
#include <utility>

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
  explicit Processes(const HostProcesses& processes) : peers_(processes) {
    const std::string& here = processes.hellos[size_t(processes.rank)].host;
    Cores cores;
    for (size_t r = 0; r < processes.hellos.size(); ++r) {
      const ShmHello& hello = processes.hellos[r];
      if (hello.host != here)
        throw UnimplementedError(fmt::format(
            "group: {} and {} cannot reach each other's memory: they are on different hosts, or in "
            "containers that do not share their process ids",
            name(size_t(processes.rank)), name(r)));
      for (const int core : hello.cores) cores.set(size_t(core));
      Process& process = processes_.emplace_back();
      if (int(r) == processes.rank) continue;
      process.pid = hello.pid;
      process.arena =
          std::make_unique<PeerArena>(PeerArena::Origin{.name = name(r),
                                                        .pid = hello.pid,
                                                        .fd = hello.fd,
                                                        .inode = hello.inode,
                                                        .first_segment = hello.first_segment,
                                                        .user = hello.user,
                                                        .dumpable = hello.dumpable});
      process.pidfd = int(syscall(SYS_pidfd_open, process.pid, 0));
      if (process.pidfd < 0 && base::out_of_descriptors(errno))
        throw ResourceExhaustedError(fmt::format("group: cannot watch {}: {}", name(r),
                                                 base::describe_out_of_descriptors(errno)));
      if (process.pidfd < 0)
        throw UnavailableError(
            fmt::format("group: {} is lost: its process {} has ended", name(r), process.pid));
    }
    crowded_ = processes_.size() > cores.count();
  }

  uint64_t position(const void* data, size_t bytes) const override {
    return Arena::mine().position_of(data, bytes);
  }
  void* find(int rank, uint64_t position) const override {
    if (rank == peers_.rank) return Arena::mine().at(position);
    return processes_[size_t(rank)].arena->at(position);
  }
  std::shared_ptr<void> allocate(size_t bytes) override { return Arena::mine().allocate(bytes); }
  std::shared_ptr<void> allocate_zeroed(size_t bytes) override {
    return Arena::mine().allocate_zeroed(bytes);
  }

  std::string address(int rank) const override { return peers_.addresses[size_t(rank)]; }
  int job_rank(int rank) const override { return peers_.ranks[size_t(rank)]; }
  std::string loss(int rank) const override {
    const Process& process = processes_[size_t(rank)];
    pollfd ended{process.pidfd, POLLIN, 0};
    if (process.pidfd < 0 || poll(&ended, 1, 0) <= 0) return {};
    return fmt::format("is lost: its process {} has ended", process.pid);
  }
  std::optional<cluster::Failure> failure() const override {
    return peers_.alarm->load(std::memory_order_acquire) ? peers_.failure() : std::nullopt;
  }
  const std::atomic<bool>* alarm() const override { return peers_.alarm; }
  void abandon() const override { Arena::mine().abandon(); }
  bool crowded() const override { return crowded_; }
  bool separate_processes() const override { return true; }

 private:
  struct Process {
    ~Process() {
      if (pidfd >= 0) close(pidfd);
    }
    Process() = default;
    Process(Process&& other) noexcept
        : pid(other.pid), pidfd(std::exchange(other.pidfd, -1)), arena(std::move(other.arena)) {}

    pid_t pid = 0;
    int pidfd = -1;
    std::unique_ptr<PeerArena> arena;  // none of this process
  };

  std::string name(size_t index) const {
    return rank_name(peers_.ranks[index], peers_.addresses[index]);
  }

  const HostProcesses peers_;
  std::vector<Process> processes_;
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
