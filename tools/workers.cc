// SPDX-License-Identifier: Apache-2.0
#include "workers.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "hosts.h"

namespace tutti::tools {

namespace {

// Children that we had before we became a launcher: a shell may `exec tutti run` with jobs of its
// own in the background.
std::vector<pid_t> not_ours;

std::vector<pid_t> children() {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    std::ifstream file(entry.path() / "stat");
    std::string stat;
    std::getline(file, stat, '\0');  // empty if the process has ended; other calls would throw
    const size_t after_name = stat.rfind(')');  // the name may hold anything
    char state = 0;
    pid_t parent = 0;
    if (after_name != std::string::npos &&
        std::sscanf(stat.c_str() + after_name + 1, " %c %d", &state, &parent) == 2 &&
        parent == getpid() && std::ranges::find(not_ours, pid) == not_ours.end())
      found.push_back(pid);
  }
  return found;
}

// The options of posix_spawn, freed with their owner.
struct SpawnOptions {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  SpawnOptions() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    // We block the signals that we forward and ignore SIGPIPE; the worker does neither.
    sigset_t none, pipe;
    sigemptyset(&none);
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &pipe);
  }
  ~SpawnOptions() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnOptions(const SpawnOptions&) = delete;
  SpawnOptions& operator=(const SpawnOptions&) = delete;
};

constexpr int kConnectionError = 255;  // ssh's own exit code

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::string Ending::to_string() const {
  if (connection) {
    const auto& [host, program, remote_pid, words] = *connection;
    const std::string there = fmt::format("rank {} on {}", rank, host);
    const std::string told = words.empty() ? "" : ": " + words;
    if (signal)
      return fmt::format("{}: {} was killed by signal {} ({})", there, program, signal,
                         strsignal(signal));
    if (!remote_pid)
      return code == kConnectionError
                 ? fmt::format("{}: {} could not connect{}", there, program, told)
                 : fmt::format("{}: {} exited with {} and no worker was started{}", there, program,
                               code, told);
    const std::string who = name();
    if (code == kConnectionError)
      return fmt::format("{} exited with {}, or {} lost the connection", who, code, program);
    // A shell reports a signal by this code only.
    if (code > 128 && code - 128 < NSIG && sigabbrev_np(code - 128))
      return fmt::format("{} exited with {}, as by signal {} ({})", who, code, code - 128,
                         strsignal(code - 128));
    return fmt::format("{} exited with {}", who, code);
  }
  return signal ? fmt::format("{} was killed by signal {} ({})", name(), signal, strsignal(signal))
                : fmt::format("{} exited with {}", name(), code);
}

std::string Ending::name() const {
  return connection ? fmt::format("rank {} on {} (pid {})", rank, connection->host, connection->pid)
                    : fmt::format("rank {} (pid {})", rank, pid);
}

void become_launcher() {
  // No pipe of ours may become the stdout of a worker.
  while (true) {
    const int fd = checked(open("/dev/null", O_RDWR), "cannot open /dev/null");
    if (fd > STDERR_FILENO) {
      close(fd);
      break;
    }
  }
  not_ours = children();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);  // if it is ignored, no child can be waited for
  checked(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER");
}

void spare(pid_t child) { not_ours.push_back(child); }

Workers::Workers(Sink& out, Sink& err, Guard& guard)
    : out_(out),
      err_(err),
      guard_(guard),
      null_(checked(open("/dev/null", O_RDONLY | O_CLOEXEC), "cannot open /dev/null")),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {}

Workers::~Workers() { end(); }

Workers::Worker& Workers::spawn(const std::vector<std::string>& command,
                                const std::vector<std::string>& environment, int input) {
  const int rank = int(workers_.size());
  Pipe out = make_pipe(), err = make_pipe();
  make_nonblocking(out.read);
  make_nonblocking(err.read);

  SpawnOptions options;
  posix_spawn_file_actions_adddup2(&options.files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&options.files, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&options.files, err.write.get(), STDERR_FILENO);
  pid_t pid = 0;
  if (const int error = posix_spawnp(&pid, command[0].c_str(), &options.files, &options.attributes,
                                     pointers(command).data(), pointers(environment).data()))
    throw std::system_error(error, std::generic_category(),
                            fmt::format("cannot start {}", command[0]));

  guard_.watch(pid);
  workers_.push_back({.pid = pid});
  Worker& worker = workers_.back();
  worker.pidfd = Fd(int(checked(syscall(SYS_pidfd_open, pid, 0), "pidfd_open")));
  epoll_event event{EPOLLIN, {.u32 = uint32_t(rank)}};
  checked(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, worker.pidfd.get(), &event), "epoll_ctl");
  ++running_;
  streams_.push_back({std::move(out.read), Lines(rank, out_, log_)});
  streams_.push_back({std::move(err.read), Lines(rank, err_, log_)});
  return worker;
}

void Workers::start(const std::vector<std::string>& command,
                    const std::vector<std::string>& environment, int input) {
  spawn(command, environment, workers_.empty() ? input : null_.get());
}

void Workers::start_on(const std::string& host, const std::vector<std::string>& command,
                       const std::vector<std::string>& environment, std::string script) {
  Pipe input = make_pipe();
  make_nonblocking(input.write);
  Worker& worker = spawn(command, environment, input.read.get());
  worker.connection = std::make_shared<Connection>();
  worker.connection->host = host;
  worker.connection->program = std::filesystem::path(command[0]).filename();
  worker.input = std::move(input.write);
  worker.unsent = std::move(script);
  worker.feed();
  const auto connection = worker.connection;
  streams_.end()[-2].lines.watch([connection](const std::string& line) {
    if (connection->pid) return false;
    connection->pid = begins_worker(line);
    return connection->pid != 0;
  });
  streams_.end()[-1].lines.watch([connection](const std::string& line) {
    if (!connection->pid && !line.empty()) connection->last_words = line;
    return false;
  });
}

void Workers::Worker::feed() {
  const ssize_t count = input ? write(input.get(), unsent.data(), unsent.size()) : 0;
  if (count < 0 && errno != EAGAIN && errno != EINTR) {
    input.close();  // it is gone; take_ended() reports it
    unsent.clear();
  }
  if (count > 0) unsent.erase(0, size_t(count));
}

std::vector<int> Workers::unfed() const {
  std::vector<int> result;
  for (const Worker& worker : workers_)
    if (worker.input && !worker.unsent.empty()) result.push_back(worker.input.get());
  return result;
}

void Workers::feed() {
  for (Worker& worker : workers_)
    if (!worker.unsent.empty()) worker.feed();
}

void Workers::cut() {
  for (const Worker& worker : workers_)
    if (worker.connection) kill(-worker.pid, SIGKILL);
}

std::vector<Ending> Workers::take_ended() {
  std::vector<Ending> result;
  epoll_event events[64];
  const int count = std::max(0, epoll_wait(epoll_.get(), events, std::size(events), 0));
  for (int i = 0; i < count; ++i) {
    const int rank = int(events[i].data.u32);
    Worker& worker = workers_[size_t(rank)];
    // It stays a zombie until the end: its id, which is also its group's, must not be given to
    // another while we may still send signals there.
    siginfo_t info{};
    if (waitid(P_PID, id_t(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || !info.si_pid)
      continue;
    worker.pidfd.close();
    worker.input.close();
    worker.unsent.clear();
    --running_;
    const bool exited = info.si_code == CLD_EXITED;
    result.push_back({rank, worker.pid, exited ? info.si_status : 0, exited ? 0 : info.si_status,
                      worker.connection});
  }
  return result;
}

void Workers::signal(int signal) {
  for (Worker& worker : workers_) {
    if (!worker.connection) {
      kill(-worker.pid, signal);
    } else if (worker.input) {
      // The worker has a session of its own there, in which a SIGTSTP would not stop it.
      worker.unsent += fmt::format("{}\n", signal == SIGTSTP ? "STOP" : sigabbrev_np(signal));
      worker.feed();
    }
  }
}

void Workers::reap_adopted() {
  for (const pid_t child : children())
    if (std::ranges::find(workers_, child, &Worker::pid) == workers_.end())
      waitpid(child, nullptr, WNOHANG);
}

void Workers::end() {
  signal(SIGKILL);
  cut();
  guard_.forget();
  // When a child dies we adopt its children, those that left its process group among them.
  for (auto rest = children(); !rest.empty(); rest = children()) {
    for (const pid_t child : rest) kill(child, SIGKILL);
    for (const pid_t child : rest) waitpid(child, nullptr, 0);
  }
  workers_.clear();
  running_ = 0;
}

}  // namespace tutti::tools
