// tutti run: starts the workers of a job on this machine or on others, hosts their coordination
// service, passes on what they write and the signals we get, and leaves nothing behind.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <tutti/version.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/module.h"
#include "base/settings.h"
#include "cluster/checks.h"
#include "cluster/coordination.h"
#include "command.h"
#include "group/interfaces.h"
#include "hosts.h"
#include "workers.h"

extern char** environ;

namespace tutti::tools {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kGrace = 2s;        // for the others to say themselves what is wrong
constexpr auto kTerminate = 3s;    // from SIGTERM to SIGKILL
constexpr auto kInterrupt = 5s;    // from Ctrl-C to SIGKILL
constexpr auto kFarewell = 2s;     // from SIGKILL on other hosts to the end of the connection
constexpr int kCannotStart = 127;  // as the shell has it
constexpr int kInterrupted = 128 + SIGINT;

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

// A program that is to be started several times over.
struct Program {
  int workers = 0;
  std::vector<Host> hosts;       // by rank; empty: all are started here, as on a host of their own
  std::vector<std::string> ssh;  // what connects to a host
  std::vector<std::string> command;
};

struct Outcome {
  int code = 0;
  bool again = false;  // whether a restart may help
};

std::string random_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != ssize_t(sizeof(bytes)))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

// Addresses on this host that were free a moment ago.
std::vector<std::string> free_addresses(const std::string& host, int count) {
  std::vector<std::string> result;
  std::vector<Fd> held;  // so that none is found twice
  for (int i = 0; i < count; ++i) {
    held.emplace_back(checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, host.c_str(), &address.sin_addr);
    socklen_t size = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    checked(bind(held.back().get(), generic, size), "cannot find a free port");
    checked(getsockname(held.back().get(), generic, &size), "getsockname");
    result.push_back(cluster::address_of(host, ntohs(address.sin_port)));
  }
  return result;
}

// The address of ours from which the way to a host begins; empty where the name means nothing to
// us, but perhaps to ssh.
std::string address_towards(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;  // so that connecting sends nothing
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  const Fd fd(checked(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket"));
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  char text[INET_ADDRSTRLEN] = "";
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      !inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) ||
      cluster::is_loopback(cluster::address_of(text, 1)))
    return {};
  return text;
}

// Where the hosts reach this machine: TUTTI_INTERFACES says it, or else the way to the first of
// them, or else it is our first address.
std::string outside_address(const std::vector<Host>& hosts) {
  const std::string& interfaces = base::settings().interfaces;
  std::string address;
  const auto other = std::ranges::find_if_not(hosts, is_this_machine);
  if (interfaces.empty() && other != hosts.end())
    address = address_towards(without_user(other->name));
  if (address.empty()) address = group::outside_address(interfaces);
  if (address.empty())
    throw UnavailableError(
        "no network interface is up by which other hosts could reach the coordination service; "
        "TUTTI_INTERFACES names those to use");
  return address;
}

// Names for workers on several hosts. Nobody listens at these ports, since the service is here.
std::vector<std::string> names_of(const std::vector<Host>& hosts, const std::string& this_machine) {
  constexpr int kFirstPort = 5000;
  std::vector<std::string> result;
  std::map<std::string, int> ports;
  for (const Host& host : hosts) {
    std::string name = without_user(host.name);
    if (is_this_machine({name})) name = this_machine;
    result.push_back(cluster::address_of(name, kFirstPort + ports[name]++));
  }
  return result;
}

// Our environment without what a job has of its own.
std::vector<std::string> outer_environment() {
  std::vector<std::string> result;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view name = std::string_view(*entry).substr(0, std::strcspn(*entry, "="));
    if (name != "TF_CONFIG" && name != "TUTTI_TOKEN" && name != "TUTTI_COORDINATOR")
      result.emplace_back(*entry);
  }
  return result;
}

// Of our environment, what a worker on another host gets. Which host that is, it finds out.
std::vector<std::string> travelling_environment() {
  std::vector<std::string> result;
  for (const std::string& entry : outer_environment())
    if ((entry.starts_with("TUTTI_") && !entry.starts_with("TUTTI_HOST_ID=")) ||
        entry.starts_with("UCX_")) {
      const std::string name = entry.substr(0, entry.find('='));
      if (std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; }))
        result.push_back(entry);
    }
  return result;
}

// Output takes two descriptors a worker, its pidfd one, its connection one, its input one.
void allow_descriptors_for(const Program& program) {
  rlimit limit{};
  const int workers = program.workers;
  const rlim_t needed = rlim_t(workers) * (program.hosts.empty() ? 4 : 5) + 64;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed)
    throw ResourceExhaustedError(
        fmt::format("{} workers take {} open files here, and at most {} are allowed: raise the "
                    "limit (ulimit -n), or start fewer",
                    workers, needed, limit.rlim_max));
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The signals that are ours to pass on, as a descriptor. Those that we were told to ignore (nohup)
// the workers ignore as well. To be made before any other thread is.
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

// A terminal's input on its way to rank 0, which cannot read it: its process group is in the
// background. Any other stdin is handed to rank 0 as it is.
class Keyboard {
 public:
  explicit Keyboard(bool needed) {
    if (!needed) return;
    Pipe pipe = make_pipe();
    reader_ = std::move(pipe.read);
    writer_ = std::move(pipe.write);
    make_nonblocking(writer_);
  }

  int input() const { return reader_ ? reader_.get() : STDIN_FILENO; }
  void worker_has_it() { reader_.close(); }

  bool waits_for_keys() const {
    return writer_ && text_.empty() && tcgetpgrp(STDIN_FILENO) == getpgrp();
  }
  bool waits_for_worker() const { return writer_ && !text_.empty(); }
  int writer() const { return writer_.get(); }

  void read() {
    char buffer[4096];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (count > 0)
      text_.assign(buffer, size_t(count));
    else if (count == 0 || (errno != EINTR && errno != EAGAIN))
      writer_.close();
  }
  void write() {
    const ssize_t count = ::write(writer_.get(), text_.data(), text_.size());
    if (count >= 0)
      text_.erase(0, size_t(count));
    else if (errno != EINTR && errno != EAGAIN)
      writer_.close();
  }

 private:
  Fd reader_, writer_;
  std::string text_;
};

// One attempt at a job, from the first worker's start to the last one's end.
class Attempt {
 public:
  Attempt(const Program& program, Fd& signals, Sink& out, Sink& err)
      : program_(program),
        signals_(signals),
        out_(out),
        err_(err),
        keyboard_(isatty(STDIN_FILENO)),
        workers_(out, err) {}

  Outcome run() {
    try {
      start();
    } catch (const std::system_error& error) {
      workers_.end();
      say(error.what());
      flush();
      return {.code = kCannotStart};
    }
    while (workers_.running() > 0) {
      wait();
      act_on_deadlines();
      say_refusals();
    }
    workers_.end();
    take_rest();
    service_.reset();  // tells the rest of what it refused
    say_refusals();
    const Outcome outcome = report();
    flush();
    return outcome;
  }

 private:
  void say(const std::string& text) { err_.add("", "tutti run: " + text); }

  void say_refusals() {
    std::lock_guard lock(refusals_mutex_);
    for (const std::string& refused : std::exchange(refusals_, {}))
      say("the coordination service refused " + refused);
  }

  void start() {
    const int n = program_.workers;
    const bool one_host = program_.hosts.empty();
    host_ = one_host || n == 1 ? "127.0.0.1" : outside_address(program_.hosts);
    std::vector<std::string> addresses =
        one_host ? free_addresses(host_, n) : names_of(program_.hosts, host_);
    std::vector<std::string> own;  // what the job has of its own
    const std::string token = random_token();
    own.push_back("TUTTI_TOKEN=" + token);
    if (n > 1) {
      serve(addresses, token);
      own.push_back("TUTTI_COORDINATOR=" + service_->address());
    }
    for (int rank = 0; rank < n; ++rank) {
      const nlohmann::json config = {{"cluster", {{"worker", addresses}}},
                                     {"task", {{"type", "worker"}, {"index", rank}}}};
      own.push_back("TF_CONFIG=" + config.dump());
      if (one_host || is_this_machine(program_.hosts[size_t(rank)]))
        start_here(own);
      else
        start_on(program_.hosts[size_t(rank)].name, own);
      own.pop_back();
    }
    keyboard_.worker_has_it();
  }

  void start_here(const std::vector<std::string>& own) {
    std::vector<std::string> environment = outer_environment();
    environment.insert(environment.end(), own.begin(), own.end());
    workers_.start(program_.command, environment, keyboard_.input());
  }

  void start_on(const std::string& host, const std::vector<std::string>& own) {
    RemoteWorker worker{.folder = std::filesystem::current_path(),
                        .environment = travelling_environment(),
                        .command = program_.command};
    worker.environment.insert(worker.environment.end(), own.begin(), own.end());
    std::vector<std::string> command = program_.ssh;
    command.insert(command.end(), {"-T", "-o", "BatchMode=yes", host, kRemoteCommand});
    try {
      workers_.start_on(host, command, outer_environment(), remote_script(worker));
    } catch (const std::system_error& error) {
      throw std::system_error(
          error.code(),
          fmt::format("no way to {}: cannot start {} (--ssh names another)", host, command[0]));
    }
  }

  // On one host the service stands at the chief's address, under which it also names the chief.
  void serve(std::vector<std::string>& addresses, const std::string& token) {
    const auto* const module =
        static_cast<const cluster::ClusterModule*>(base::load_module("cluster").interface);
    const base::Settings& settings = base::settings();
    const bool at_chief = program_.hosts.empty();
    std::string address = at_chief ? addresses[0] : free_addresses(host_, 1)[0];
    for (int left = 10; !service_; --left) {
      const cluster::Job job{.addresses = addresses,
                             .token = token,
                             .version = std::string(version()),
                             .certificate = settings.tls_certificate,
                             .key = settings.tls_key,
                             .authority = settings.tls_authority,
                             .heartbeat_timeout = settings.heartbeat_timeout,
                             .on_refused = [this](const std::string& refused) {
                               std::lock_guard lock(refusals_mutex_);
                               refusals_.push_back(refused);
                             }};
      try {
        service_ = module->serve(job, address);
      } catch (const UnavailableError&) {
        if (left == 0) throw;
        address = free_addresses(host_, 1)[0];  // somebody was faster
        if (at_chief) addresses[0] = address;
      }
    }
  }

  // Until something happens or a deadline has come, and deals with it.
  void wait() {
    std::vector<pollfd> polled{{signals_.get(), POLLIN, 0}, {workers_.ended_fd(), POLLIN, 0}};
    if (out_.pending()) polled.push_back({out_.fd(), POLLOUT, 0});
    if (err_.pending()) polled.push_back({err_.fd(), POLLOUT, 0});
    for (const int fd : workers_.unfed()) polled.push_back({fd, POLLOUT, 0});
    const size_t keys = polled.size();
    if (keyboard_.waits_for_keys()) polled.push_back({STDIN_FILENO, POLLIN, 0});
    if (keyboard_.waits_for_worker()) polled.push_back({keyboard_.writer(), POLLOUT, 0});
    const size_t first_stream = polled.size();
    std::vector<Workers::Stream*> streams;
    for (Workers::Stream& stream : workers_.streams())
      if (stream.fd && !stream.lines.sink().full()) {
        polled.push_back({stream.fd.get(), POLLIN, 0});
        streams.push_back(&stream);
      }

    if (poll(polled.data(), polled.size(), timeout()) < 0 && errno != EINTR)
      throw std::system_error(errno, std::generic_category(), "poll");

    for (size_t i = 0; i < streams.size(); ++i)
      if (polled[first_stream + i].revents) take_output(*streams[i]);
    for (size_t i = keys; i < first_stream; ++i)
      if (polled[i].revents) polled[i].fd == STDIN_FILENO ? keyboard_.read() : keyboard_.write();
    out_.write();
    err_.write();
    workers_.feed();
    close_broken();
    // The signal first: a worker that it ended has not failed by itself.
    if (polled[0].revents) take_signals();
    if (polled[1].revents)
      for (const Ending& ending : workers_.take_ended())
        if (ending.failed() && !failure_) {
          failure_ = ending;
          if (workers_.running() > 0) terminate_at_ = Clock::now() + kGrace;
        }
  }

  // Milliseconds until the next deadline; one second at most, for a terminal that we may get back.
  int timeout() const {
    auto until = Clock::now() + 1s;
    for (const auto& deadline : {terminate_at_, kill_at_, cut_at_})
      if (deadline) until = std::min(until, *deadline);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    return int(std::max<int64_t>(0, left.count()));
  }

  void act_on_deadlines() {
    if (workers_.running() == 0) return;
    const auto now = Clock::now();
    if (terminate_at_ && now >= *terminate_at_) {
      terminate_at_.reset();
      stopped_others_ = true;
      workers_.signal(SIGTERM);
      workers_.signal(SIGCONT);  // who is stopped does not hear anything else
      kill_at_ = std::min(kill_at_.value_or(Clock::time_point::max()), now + kTerminate);
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      if (failure_)
        stopped_others_ = true;
      else
        killed_by_user_ = true;
      workers_.signal(SIGKILL);
      cut_at_ = now + kFarewell;
    }
    if (cut_at_ && now >= *cut_at_) {
      cut_at_.reset();
      workers_.cut();
    }
  }

  // Returns whether one of them tells us to stop.
  bool take_signals() {
    bool stop = false;
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == ssize_t(sizeof(info))) {
      const int signal = int(info.ssi_signo);
      if (signal == SIGCHLD) {
        workers_.reap_adopted();
        continue;
      }
      if (signal == SIGINT) {
        const auto now = Clock::now();
        kill_at_ = interrupted_
                       ? now
                       : std::min(kill_at_.value_or(Clock::time_point::max()), now + kInterrupt);
        interrupted_ = true;
      }
      stop |= signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
      workers_.signal(signal);
      if (signal == SIGTSTP) raise(SIGSTOP);
    }
    told_to_stop_ |= stop;
    return stop;
  }

  // Returns whether there may be more.
  bool take_output(Workers::Stream& stream) {
    char buffer[16 << 10];
    const ssize_t count = read(stream.fd.get(), buffer, sizeof(buffer));
    if (count > 0) {
      stream.lines.add({buffer, size_t(count)});
      return true;
    }
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    stream.lines.finish();
    stream.fd.close();
    return false;
  }

  // Where nobody reads our output, nobody reads the workers': they get a SIGPIPE as we would.
  void close_broken() {
    for (Workers::Stream& stream : workers_.streams())
      if (stream.lines.sink().broken()) stream.fd.close();
  }

  // What the workers wrote before they ended. Somebody else may still hold a pipe, so we do not
  // wait for its end.
  void take_rest() {
    for (Workers::Stream& stream : workers_.streams()) {
      while (stream.fd && take_output(stream))
        if (stream.lines.sink().full()) flush();
      if (stream.fd) stream.lines.finish();
    }
  }

  Outcome report() {
    if (killed_by_user_) {
      say("interrupted; the workers were killed");
      return {.code = kInterrupted};
    }
    if (failure_) {
      say(failure_->to_string() + (stopped_others_ ? "; the others were stopped" : ""));
      return {.code = failure_->exit_code(), .again = !told_to_stop_};
    }
    return {};
  }

  // Waits for our reader; whoever interrupts us then does not want the rest.
  void flush() {
    while (out_.pending() || err_.pending()) {
      pollfd polled[] = {{signals_.get(), POLLIN, 0},
                         {out_.pending() ? out_.fd() : -1, POLLOUT, 0},
                         {err_.pending() ? err_.fd() : -1, POLLOUT, 0}};
      poll(polled, std::size(polled), -1);
      if (polled[0].revents && take_signals()) {
        out_.drop();
        err_.drop();
      }
      out_.write();
      err_.write();
    }
  }

  const Program& program_;
  Fd& signals_;
  Sink& out_;
  Sink& err_;
  Keyboard keyboard_;
  std::mutex refusals_mutex_;
  std::vector<std::string> refusals_;          // that the service has told of
  std::unique_ptr<cluster::Service> service_;  // outlives the workers
  Workers workers_;

  std::optional<Ending> failure_;  // the first
  std::string host_;               // by which the workers reach us
  std::optional<Clock::time_point> terminate_at_, kill_at_, cut_at_;
  bool stopped_others_ = false;
  bool interrupted_ = false;
  bool told_to_stop_ = false;
  bool killed_by_user_ = false;
};

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
  std::string hosts, hostfile, ssh = "ssh";
  CommandLine app("tutti run", "[-n N] [--hosts A,B:4] [OPTIONS] [--] PROGRAM [ARGUMENTS...]",
                  "Starts a program as several workers, on this machine or on others.");
  app.add_option("-n", program.workers, "how many workers, at most 4096; with hosts, a check")
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
  } catch (const Error& error) {
    std::fprintf(stderr, "tutti run: %s\n", error.what());
    return kUsageError;
  }

  become_launcher();
  allow_descriptors_for(program);
  Fd signals = catch_signals();
  Sink out(STDOUT_FILENO), err(STDERR_FILENO);
  for (int attempt = 1;; ++attempt) {
    const Outcome outcome = Attempt(program, signals, out, err).run();
    if (!outcome.again || attempt > restarts) return outcome.code;
    err.add("", fmt::format("tutti run: restart {} of {}", attempt, restarts));
  }
}

}  // namespace tutti::tools
