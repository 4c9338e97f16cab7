// SPDX-License-Identifier: Apache-2.0
#include "job/host_board.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <tutti/error.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <new>
#include <sstream>

#include "base/running_time.h"
#include "group/liveness/timing.h"
#include "group/shm/processes.h"

namespace tutti::group {

// In the memory of each rank. The table is a length and a text for each rank.
struct HostBoard::Head {
  std::atomic<uint32_t> tables;  // how many have been shown; a futex
  uint32_t ranks;
  uint64_t table;  // the position of the last
  uint64_t pulse;  // and of the pulse
};

namespace {

constexpr uint64_t kNoTable = UINT64_MAX;  // in place of its position

// Ranks with another network reach the coordination service, or do not, by themselves; and those
// with another clock do not understand each other's heartbeats.
std::string this_host_and_its_namespaces() {
  std::error_code ignored;
  std::string text = this_host();
  for (const char* space : {"net", "time"})
    text += " " +
            std::filesystem::read_symlink(std::string("/proc/self/ns/") + space, ignored).string();
  return text;
}

}  // namespace

HostBoard::HostBoard()
    : memory_(Arena::mine().allocate(sizeof(Head))),
      head_(*new(memory_.get()) Head{}),
      sharing_{this_host_and_its_namespaces(),
               fmt::format("{} {} {} {} {}", getpid(), Arena::mine().fd(),
                           inode_of(Arena::mine().fd()), Arena::mine().first_segment(),
                           Arena::mine().position_of(&head_, sizeof(Head)))} {}

// Others may still look at what it has shown.
HostBoard::~HostBoard() {
  if (shown_) Arena::mine().abandon();
}

void HostBoard::show(const std::vector<std::string>& values) {
  try {
    put(values);
  } catch (const std::exception&) {  // no room: the others ask the service themselves
    head_.table = kNoTable;
  }
  head_.tables.store(++tables_);
  syscall(SYS_futex, &head_.tables, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

void HostBoard::put(const std::vector<std::string>& values) {
  size_t bytes = 0;
  for (const std::string& value : values) bytes += sizeof(uint32_t) + value.size();
  const std::shared_ptr<void> table = Arena::mine().allocate(bytes);
  auto* at = static_cast<std::byte*>(table.get());
  for (const std::string& value : values) {
    const auto size = uint32_t(value.size());
    std::memcpy(at, &size, sizeof(size));
    std::memcpy(at + sizeof(size), value.data(), size);
    at += sizeof(size) + size;
  }
  if (!pulse_) {
    ranks_ = int(values.size());
    pulse_ = Arena::mine().allocate_zeroed(cluster::HostPulse::bytes(ranks_));
    head_.pulse = Arena::mine().position_of(pulse_.get(), cluster::HostPulse::bytes(ranks_));
  }
  head_.ranks = uint32_t(values.size());
  head_.table = Arena::mine().position_of(table.get(), bytes);
  shown_ = table;
}

std::optional<std::vector<std::string>> HostBoard::read(const std::string& place,
                                                        std::chrono::nanoseconds timeout,
                                                        const std::function<void()>& check) {
  PeerArena::Origin origin{
      .name = "the first rank of this host", .user = geteuid(), .dumpable = true};
  uint64_t position = 0;
  std::istringstream(place) >> origin.pid >> origin.fd >> origin.inode >> origin.first_segment >>
      position;
  if (!holder_) try {
      auto holder = std::make_shared<PeerArena>(origin);
      holder->hold();  // it may have left when this rank comes to read
      holder_ = std::move(holder);
    } catch (const UnavailableError&) {
      return {};
    }
  Head& head = *static_cast<Head*>(holder_->at(position));
  ++tables_;
  base::RunningTime waited;
  for (uint32_t now; (now = head.tables.load()) < tables_;) {
    constexpr timespec kNap{0, timing::kConnectPoll.count()};
    syscall(SYS_futex, &head.tables, FUTEX_WAIT, now, &kNap, nullptr, 0);
    check();
    if (waited.elapsed() > timeout)
      throw DeadlineExceededError(
          "join: the first rank of this host does not share what the coordination service told it");
  }
  if (head.table == kNoTable) return {};
  std::vector<std::string> values(head.ranks);
  const auto* at = static_cast<const std::byte*>(holder_->at(head.table));
  for (std::string& value : values) {
    uint32_t size = 0;
    std::memcpy(&size, at, sizeof(size));
    value.assign(reinterpret_cast<const char*>(at + sizeof(size)), size);
    at += sizeof(size) + size;
  }
  if (!pulse_) {
    ranks_ = int(values.size());
    pulse_ = {holder_, holder_->at(head.pulse)};
  }
  return values;
}

std::shared_ptr<cluster::HostPulse> HostBoard::pulse(int rank) const {
  if (!pulse_) return nullptr;
  return std::make_shared<cluster::HostPulse>(pulse_, ranks_, rank, !holder_);
}

}  // namespace tutti::group
