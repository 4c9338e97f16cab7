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
#include <iterator>

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
    const std::string stat(std::istreambuf_iterator<char>(file), {});
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

// What posix_spawn is told, freed with its owner.
struct SpawnOptions {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  SpawnOptions() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    // We block what we forward and ignore SIGPIPE; the worker shall not.
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

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::string Ending::to_string() const {
  const std::string who = fmt::format("rank {} (pid {})", rank, pid);
  return signal ? fmt::format("{} was killed by signal {} ({})", who, signal, strsignal(signal))
                : fmt::format("{} exited with {}", who, code);
}

void become_launcher() {
  // A pipe of ours must not become somebody's stdout.
  while (true) {
    const int fd = checked(open("/dev/null", O_RDWR), "cannot open /dev/null");
    if (fd > STDERR_FILENO) {
      close(fd);
      break;
    }
  }
  not_ours = children();
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, nobody can be waited for
  checked(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER");
}

Workers::Workers(Sink& out, Sink& err)
    : out_(out),
      err_(err),
      null_(checked(open("/dev/null", O_RDONLY | O_CLOEXEC), "cannot open /dev/null")),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")) {}

Workers::~Workers() { end(); }

void Workers::start(const std::vector<std::string>& command,
                    const std::vector<std::string>& environment, int input) {
  const int rank = int(workers_.size());
  Pipe out = make_pipe(), err = make_pipe();
  make_nonblocking(out.read);
  make_nonblocking(err.read);

  SpawnOptions options;
  posix_spawn_file_actions_adddup2(&options.files, rank == 0 ? input : null_.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&options.files, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&options.files, err.write.get(), STDERR_FILENO);
  pid_t pid = 0;
  if (const int error = posix_spawnp(&pid, command[0].c_str(), &options.files, &options.attributes,
                                     pointers(command).data(), pointers(environment).data()))
    throw std::system_error(error, std::generic_category(),
                            fmt::format("cannot start {}", command[0]));

  workers_.push_back({pid, Fd()});
  Worker& worker = workers_.back();
  worker.pidfd = Fd(int(checked(syscall(SYS_pidfd_open, pid, 0), "pidfd_open")));
  epoll_event event{EPOLLIN, {.u32 = uint32_t(rank)}};
  checked(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, worker.pidfd.get(), &event), "epoll_ctl");
  ++running_;
  streams_.push_back({std::move(out.read), Lines(rank, out_)});
  streams_.push_back({std::move(err.read), Lines(rank, err_)});
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
    --running_;
    const bool exited = info.si_code == CLD_EXITED;
    result.push_back({rank, worker.pid, exited ? info.si_status : 0, exited ? 0 : info.si_status});
  }
  return result;
}

void Workers::signal(int signal) {
  for (const Worker& worker : workers_) kill(-worker.pid, signal);
}

void Workers::reap_adopted() {
  for (const pid_t child : children())
    if (std::ranges::find(workers_, child, &Worker::pid) == workers_.end())
      waitpid(child, nullptr, WNOHANG);
}

void Workers::end() {
  signal(SIGKILL);
  // When a child dies we adopt its children, those that left its process group among them.
  for (auto rest = children(); !rest.empty(); rest = children()) {
    for (const pid_t child : rest) kill(child, SIGKILL);
    for (const pid_t child : rest) waitpid(child, nullptr, 0);
  }
  workers_.clear();
  running_ = 0;
}

}  // namespace tutti::tools
