// SPDX-License-Identifier: Apache-2.0
// Runs the command `tutti` and talks to it while it runs.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace tutti::testing {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

inline std::vector<std::string> sorted(std::vector<std::string> lines) {
  std::ranges::sort(lines);
  return lines;
}

// Whether a state of affairs comes about, given time.
template <typename Condition>
bool eventually(Condition condition) {
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

inline bool alive(pid_t pid) { return kill(pid, 0) == 0; }

// A folder for one test.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "tutti_run_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

inline std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// 'R', 'S', 'T' ...
inline char state(pid_t process) {
  const std::string status = content("/proc/" + std::to_string(process) + "/status");
  const size_t at = status.find("State:\t");
  return at == std::string::npos ? 0 : status[at + 7];
}

// The process ids that workers have printed as "pid 4711".
inline std::vector<pid_t> printed_pids(const std::string& text) {
  std::vector<pid_t> pids;
  for (size_t at = text.find("pid "); at != std::string::npos; at = text.find("pid ", at + 1))
    pids.push_back(std::atoi(text.c_str() + at + 4));
  return pids;
}

inline void expect_all_gone(const std::string& text, size_t count) {
  const std::vector<pid_t> pids = printed_pids(text);
  EXPECT_EQ(pids.size(), count) << text;
  for (const pid_t pid : pids) EXPECT_FALSE(alive(pid)) << "process " << pid << " is left";
}

// A program that runs, with our ends of its standard streams.
class Process {
 public:
  Process(const std::vector<std::string>& command, const std::vector<std::string>& environment) {
    std::array<int, 2> in{}, out{}, err{};
    if (pipe2(in.data(), O_CLOEXEC) || pipe2(out.data(), O_CLOEXEC) || pipe2(err.data(), O_CLOEXEC))
      throw std::runtime_error("pipe2");
    in_ = in[1];
    streams_ = {{{out[0], {}}, {err[0], {}}}};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, in[0], 0);
    posix_spawn_file_actions_adddup2(&files, out[1], 1);
    posix_spawn_file_actions_adddup2(&files, err[1], 2);
    std::vector<char*> argv, env;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    for (char** entry = environ; *entry; ++entry)
      if (!std::string_view(*entry).starts_with("TUTTI_")) env.push_back(*entry);
    for (const std::string& entry : environment) env.push_back(const_cast<char*>(entry.c_str()));
    argv.push_back(nullptr);
    env.push_back(nullptr);
    if (posix_spawnp(&pid_, argv[0], &files, nullptr, argv.data(), env.data()) != 0)
      throw std::runtime_error("cannot start " + command[0]);
    posix_spawn_file_actions_destroy(&files);
    for (const int theirs : {in[0], out[1], err[1]}) close(theirs);
  }
  ~Process() {
    if (pid_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close_input();
    for (Stream& stream : streams_)
      if (stream.fd >= 0) close(stream.fd);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& out() const { return streams_[0].text; }
  const std::string& err() const { return streams_[1].text; }

  void signal(int number) { kill(pid_, number); }
  void write(const std::string& text) {
    EXPECT_EQ(::write(in_, text.data(), text.size()), text.size());
  }
  void close_input() {
    if (in_ >= 0) close(std::exchange(in_, -1));
  }
  void close_output() { close(std::exchange(streams_[0].fd, -1)); }

  // Reads until `text` has come on stdout `count` times.
  ::testing::AssertionResult wait_for(const std::string& text, int count = 1) {
    while (true) {
      int found = 0;
      for (size_t at = out().find(text); at != std::string::npos; at = out().find(text, at + 1))
        ++found;
      if (found >= count) return ::testing::AssertionSuccess();
      if (!read_some())
        return ::testing::AssertionFailure() << "no \"" << text << "\" in:\n" << out() << err();
    }
  }

  // The exit code, as the shell has it, once it has ended.
  int finish() {
    close_input();
    while (read_some()) {
    }
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  struct Stream {
    int fd = -1;
    std::string text;
  };

  bool read_some() {
    std::array<pollfd, 2> polled{{{streams_[0].fd, POLLIN, 0}, {streams_[1].fd, POLLIN, 0}}};
    if (streams_[0].fd < 0 && streams_[1].fd < 0) return false;
    if (poll(polled.data(), polled.size(), 30'000) <= 0) {
      ADD_FAILURE() << "nothing happened for 30 s; so far:\n" << out() << err();
      kill(pid_, SIGKILL);
      return false;
    }
    for (size_t i = 0; i < 2; ++i) {
      if (!polled[i].revents) continue;
      std::array<char, 65536> buffer;
      const ssize_t count = read(streams_[i].fd, buffer.data(), buffer.size());
      if (count > 0)
        streams_[i].text.append(buffer.data(), size_t(count));
      else
        close(std::exchange(streams_[i].fd, -1));
    }
    return true;
  }

  pid_t pid_ = 0;
  int in_ = -1;
  std::array<Stream, 2> streams_;
};

// `tutti` with these arguments; workers find their rank in $r.
class Tool : public Process {
 public:
  explicit Tool(std::vector<std::string> arguments, std::vector<std::string> environment = {})
      : Process(with_tool(std::move(arguments)), with_modules(std::move(environment))) {}

  // `tutti run` with n workers, each a shell that runs `script`.
  static std::vector<std::string> shells(int n, const std::string& script) {
    return {"run", "-n", std::to_string(n), "--", "sh", "-c", worker(script)};
  }
  static std::string worker(const std::string& script) {
    return "r=${TF_CONFIG##*index\\\":}; r=${r%%[!0-9]*}; " + script;
  }

 private:
  static std::vector<std::string> with_tool(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), TUTTI_TOOL);
    return arguments;
  }
  static std::vector<std::string> with_modules(std::vector<std::string> environment) {
    environment.push_back("TUTTI_MODULE_PATH=" TUTTI_TEST_MODULES);  // the first of a name counts
    return environment;
  }
};

}  // namespace tutti::testing
