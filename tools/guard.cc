// SPDX-License-Identifier: Apache-2.0
#include "guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

namespace tutti::tools {

namespace {

using namespace std::chrono_literals;

// After the launcher's death a worker has time to report that the coordination is gone, is then
// asked to end, and is killed 1.5 s after the death.
constexpr auto kReporting = 1000ms;   // to SIGTERM
constexpr auto kTermination = 500ms;  // from SIGTERM to SIGKILL
constexpr auto kKilling = 10s;        // the most that it takes to find the last process
constexpr auto kAgain = 20ms;         // from one search to the next

// Empty if the process is gone, or another user's.
std::string environment_of(const std::filesystem::path& process) {
  std::ifstream file(process / "environ", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool holds(const std::string& environment, const std::string& mark) {
  for (size_t at = environment.find(mark); at != environment.npos;
       at = environment.find(mark, at + 1)) {
    const char before = at ? environment[at - 1] : '\0', after = environment[at + mark.size()];
    if (before == '\0' && (after == '\0' || after == '/')) return true;
  }
  return false;
}

// Returns whether there is such a process.
bool signal_marked(const std::string& mark, int signal) {
  bool found = false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    // Opened first, so that the signal goes to the process that was looked at.
    const Fd process(int(syscall(SYS_pidfd_open, pid, 0)));
    if (!process || !holds(environment_of(entry.path()), mark)) continue;
    found |= syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0;
  }
  return found;
}

// Forgets groups that are empty: the number may become that of another group.
bool signal_all(std::set<pid_t>& groups, const std::string& mark, int signal) {
  std::erase_if(groups, [&](pid_t group) { return kill(-group, signal) != 0 && errno == ESRCH; });
  return signal_marked(mark, signal);
}

void end_all(std::set<pid_t>& groups, const std::string& mark) {
  std::this_thread::sleep_for(kReporting);
  signal_all(groups, mark, SIGTERM);
  signal_all(groups, mark, SIGCONT);  // a suspended process gets no other signal
  std::this_thread::sleep_for(kTermination);
  // Repeats until none is left: one may have been started meanwhile.
  const auto until = std::chrono::steady_clock::now() + kKilling;
  while (signal_all(groups, mark, SIGKILL) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kAgain);
}

}  // namespace

Guard::Guard(const std::string& mark) {
  Pipe pipe = make_pipe();
  pid_ = checked(fork(), "fork");
  if (pid_ == 0) {
    pipe.write.close();  // or the guard would wait for itself
    stand_by(pipe.read.get(), mark);
  }
  pipe_ = std::move(pipe.write);
}

Guard::~Guard() {
  tell(kEnd);
  pipe_.close();
  waitpid(pid_, nullptr, 0);
}

void Guard::tell(pid_t message) {
  // A guard that was killed is not worth failing a job for.
  while (write(pipe_.get(), &message, sizeof(message)) < 0 && errno == EINTR) {
  }
}

void Guard::stand_by(int launcher, const std::string& mark) {
  // A session of its own, so that neither the terminal nor a signal to the launcher's group ends
  // it. No descriptor but the pipe: readers of the launcher's output wait for its end.
  setsid();
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_IGN);
  prctl(PR_SET_NAME, "tutti-guard");
  if (chdir("/") != 0) _exit(1);
  constexpr int kPipe = STDERR_FILENO + 1;
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  dup2(launcher, kPipe);
  syscall(SYS_close_range, unsigned(kPipe + 1), ~0u, 0u);

  std::set<pid_t> groups;
  pid_t message = 0;
  while (true) {
    const ssize_t count = ::read(kPipe, &message, sizeof(message));
    if (count < 0 && errno == EINTR) continue;
    if (count != ssize_t(sizeof(message))) break;
    if (message == kEnd) _exit(0);
    if (message == kForget)
      groups.clear();
    else
      groups.insert(message);
  }
  end_all(groups, mark);
  _exit(0);
}

}  // namespace tutti::tools
