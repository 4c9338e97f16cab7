// SPDX-License-Identifier: Apache-2.0
// tutti run: starts the workers of a job on this machine or on others, and starts the job again if
// it is to; leaves nothing behind.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <tutti/error.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "attempt.h"
#include "command.h"
#include "environment.h"
#include "hosts.h"
#include "workers.h"

namespace tutti::tools {

namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

// A worker takes two descriptors for its output, one each for its pidfd, connection, input and log.
void allow_descriptors_for(const Program& program) {
  rlimit limit{};
  const int workers = program.workers;
  const rlim_t needed = rlim_t(workers) * (4 + !program.hosts.empty() + !program.logs.empty()) + 64;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed)
    throw ResourceExhaustedError(
        fmt::format("{} workers take {} open files here, and at most {} are allowed: raise the "
                    "limit (ulimit -n), or start fewer",
                    workers, needed, limit.rlim_max));
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The signals that we pass on, as a descriptor. Workers ignore those that we were told to ignore
// (nohup). Call it before any other thread starts.
Fd catch_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : kForwarded) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  checked(sigprocmask(SIG_BLOCK, &set, nullptr), "sigprocmask");
  return Fd(checked(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd"));
}

// Deals the ranks out, host by host.
void place(Program& program, const std::vector<Host>& hosts) {
  for (const Host& host : hosts)
    program.hosts.insert(program.hosts.end(), size_t(host.workers), host);
  const int sum = int(program.hosts.size());
  if (program.workers && program.workers != sum)
    throw InvalidArgumentError(
        fmt::format("-n {}, but the hosts have {} workers together", program.workers, sum));
  if (sum > kMostWorkers)
    throw InvalidArgumentError(
        fmt::format("{} workers, of which there may be {} at most", sum, kMostWorkers));
  program.workers = sum;
  if (std::ranges::all_of(program.hosts, is_this_machine)) program.hosts.clear();
}

void check_variables(const std::vector<std::string>& variables) {
  for (const std::string& entry : variables) {
    const std::string name(name_of(entry));
    if (name.size() == entry.size() || name.empty() || std::isdigit((unsigned char)name[0]) ||
        !std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
      throw InvalidArgumentError(fmt::format("--env {}: expected NAME=VALUE", entry));
    if (is_own(name))
      throw InvalidArgumentError(
          fmt::format("--env {}: tutti run sets {} itself, for each worker", entry, name));
  }
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path))
    throw InvalidArgumentError(fmt::format("--logs {}: cannot make this folder: {}", path,
                                           error ? error.message() : "it is a file"));
}

std::vector<std::string> words_of(const std::string& command) {
  std::istringstream stream(command);
  const std::vector<std::string> words(std::istream_iterator<std::string>(stream), {});
  if (words.empty()) throw InvalidArgumentError("--ssh: expected a command");
  return words;
}

}  // namespace

int run(int argc, char** argv) {
  Program program;
  int restarts = 0;
  std::string hosts, hostfile, ssh = "ssh", bind = "none";
  CommandLine app("tutti run", "[-n N] [--hosts A,B:4] [OPTIONS] [--] PROGRAM [ARGUMENTS...]",
                  "Starts a program as several workers, on this machine or on others.");
  app.add_option("-n", program.workers,
                 "how many workers, at most 4096; with hosts, it must be their total")
      ->check(CLI::Range(1, kMostWorkers))
      ->option_text("N");
  auto* const list =
      app.add_option("--hosts", hosts, "start them there, B with 4 workers, over ssh")
          ->option_text("A,B:4");
  auto* const file =
      app.add_option("--hostfile", hostfile, "hosts from a file, with lines B, B:4 or B slots=4")
          ->option_text("FILE")
          ->excludes(list);
  app.add_option("--ssh", ssh, "what connects to a host, in the place of ssh; may have options")
      ->option_text("COMMAND");
  app.add_option("--env", program.environment,
                 "a variable for all workers, also on other hosts; may be repeated")
      ->allow_extra_args(false)
      ->option_text("NAME=VALUE");
  app.add_option("--logs", program.logs,
                 "keep what each worker writes in DIR/rank0.log and so on; it is shown as well")
      ->option_text("DIR");
  app.add_option("--bind", bind,
                 "core: bind each worker on this machine to its share of the cores; none: do not")
      ->check(CLI::IsMember({"core", "none"}))
      ->option_text("core|none");
  app.add_option("--restarts", restarts, "start the job again, up to K times, when a worker fails")
      ->check(CLI::Range(0, 1'000'000))
      ->option_text("K");
  app.prefix_command();
  if (const auto code = parse(app, argc, argv)) return *code;
  program.command = app.remaining();
  const bool marked = !program.command.empty() && program.command[0] == "--";
  if (marked) program.command.erase(program.command.begin());
  std::string wrong;
  if (!program.workers && !*list && !*file)
    wrong = "-n is required, or --hosts, or --hostfile";
  else if (program.command.empty())
    wrong = "which program?";
  else if (!marked && program.command[0].starts_with('-'))
    wrong = "there is no option " + program.command[0];
  if (!wrong.empty()) {
    std::fprintf(stderr, "tutti run: %s\n%s", wrong.c_str(), app.help().c_str());
    return kUsageError;
  }
  try {
    if (*list) place(program, parse_hosts(hosts));
    if (*file) place(program, read_hostfile(hostfile));
    program.ssh = words_of(ssh);
    program.bind = bind == "core";
    check_variables(program.environment);
    if (!program.logs.empty()) make_folder(program.logs);
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti run: %s\n", error.what());
    return kUsageError;
  }

  become_launcher();
  allow_descriptors_for(program);
  Fd signals = catch_signals();
  // The mark of a launcher within a job is that of the outer launcher, with its own behind.
  const char* const outside = std::getenv("TUTTI_LAUNCHER");
  const std::string mark = fmt::format("TUTTI_LAUNCHER={}{}{}", outside ? outside : "",
                                       outside ? "/" : "", random_token());
  Guard guard(mark);
  spare(guard.pid());
  Sink out(STDOUT_FILENO), err(STDERR_FILENO);
  for (int number = 1;; ++number) {
    const Outcome outcome = attempt(program, {signals, out, err, guard, mark}, number);
    if (!outcome.again || number > restarts) return outcome.code;
    err.add("", fmt::format("tutti run: restart {} of {}", number, restarts));
  }
}

}  // namespace tutti::tools
