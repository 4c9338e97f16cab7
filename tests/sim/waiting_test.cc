// SPDX-License-Identifier: Apache-2.0
// What waits in a job waits by base/world.h: else a simulated world stands still, or takes real
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace tutti {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = fs::path(TUTTI_SOURCE_DIR) / "src";

// Code that only a real machine runs, and why.
const std::map<std::string, std::string> kExceptions = {
    {"cluster/grpc", "the module that talks to other processes by gRPC"},
    {"group/net/tcp", "a module over sockets of the system"},
    {"group/net/ucx", "a module over UCX"},
    {"group/net/mpi", "a module over MPI"},
    {"group/net/transport_parts.h", "what those modules sleep by, in a poll of their sockets"},
    {"group/shm/processes.cc", "looks at processes of the system by their descriptors"},
    {"job/announcement.cc", "looks for a socket of the first process on a machine"},
    {"job/terminate.cc", "ends a process that has thrown, and takes no lock"},
};

// What the machine's side of the seam may name: where there is no world.
const std::map<std::string, std::string> kAllowed = {
    {"group/shm/window.cc sched_yield", "only without a world: see Window::await"},
    {"group/shm/window.cc SYS_futex", "futex_wait and futex_wake, which ask for a world first"},
    {"group/net/peer_channels.cc sched_yield", "between two looks at a message, without waiting"},
    {"job/host_board.cc SYS_futex", "a simulated job has no board"},
    {"job/clocks.cc system_clock::now", "the name of a run in its timeline"},
};

bool is_exempt(const std::string& path) {
  return std::ranges::any_of(kExceptions, [&](const auto& entry) {
    return path == entry.first || path.starts_with(entry.first + "/");
  });
}

TEST(Waiting, GoesThroughTheWorld) {
  int files = 0;
  for (const char* const folder : {"group", "job", "cluster"})
    for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
      if (!entry.is_regular_file()) continue;
      const std::string path = fs::relative(entry.path(), kSource).string();
      if (is_exempt(path)) continue;
      ++files;
      std::ifstream file(entry.path());
      std::string line;
      for (int number = 1; std::getline(file, line); ++number) {
        line = line.substr(0, line.find("//"));
        if (line.find("#include") != line.npos) continue;
        for (const std::string word :
             {"this_thread::sleep", "steady_clock::now", "system_clock::now", "clock_gettime",
              "SYS_futex", "std::condition_variable", "sched_yield", "std::thread", "usleep",
              "nanosleep"})
          if (line.find(word) != line.npos && !kAllowed.contains(path + " " + word))
            ADD_FAILURE() << path << ":" << number << " names " << word
                          << ": waiting and time go through base/world.h";
      }
    }
  EXPECT_GT(files, 50);
}

TEST(Waiting, HasNoExceptionThatIsGone) {
  for (const auto& [path, why] : kExceptions) EXPECT_TRUE(fs::exists(kSource / path)) << path;
  for (const auto& [entry, why] : kAllowed) {
    const std::string path = entry.substr(0, entry.find(' ')),
                      word = entry.substr(entry.find(' ') + 1);
    std::ostringstream text;
    text << std::ifstream(kSource / path).rdbuf();
    EXPECT_NE(text.str().find(word), std::string::npos) << entry;
  }
}

}  // namespace
}  // namespace tutti
