// SPDX-License-Identifier: Apache-2.0
#include "attempt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <tutti/error.h>
#include <tutti/version.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/module.h"
#include "base/settings.h"
#include "cluster/coordination.h"
#include "environment.h"
#include "places.h"
#include "workers.h"

namespace tutti::tools {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kGrace = 2s;        // for the others to report themselves what is wrong
constexpr auto kTerminate = 3s;    // from SIGTERM to SIGKILL
constexpr auto kInterrupt = 5s;    // from Ctrl-C to SIGKILL
constexpr auto kLastReports = 1s;  // from the last worker's end to the end of its connection
constexpr auto kCut = 2s;          // from SIGKILL on other hosts to the end of the connection
constexpr int kCannotStart = 127;  // as in a shell
constexpr int kInterrupted = 128 + SIGINT;

// Passes a terminal's input on to rank 0, which cannot read it: its process group is in the
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

class Attempt {
 public:
  Attempt(const Program& program, const Launcher& launcher, int number)
      : program_(program),
        signals_(launcher.signals),
        out_(launcher.out),
        err_(launcher.err),
        mark_(launcher.mark),
        first_(number == 1),
        keyboard_(isatty(STDIN_FILENO)),
        workers_(out_, err_, launcher.guard) {}

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
    std::optional<Cause> first;
    if (failure_) first = cause();
    service_.reset();  // reports the last refusals
    say_refusals();
    const Outcome outcome = report(first);
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
    std::vector<Place> places =
        one_host ? places_here(free_addresses(host_, n)) : places_on(program_.hosts, host_);
    for (const Place& place : places) addresses_.push_back(place.address);
    const std::string token = random_token();
    std::vector<std::string> own;  // the variables of the job
    if (n > 1) {
      serve(token);
      own.push_back("TUTTI_COORDINATOR=" + service_->address());
    }
    // For programs that read these instead: rank 0's host, and a port that is free as far as can be
    // seen from here.
    const std::string free = free_addresses(host_, 1)[0];
    own.insert(own.end(), {"TUTTI_TOKEN=" + token, mark_, fmt::format("WORLD_SIZE={}", n),
                           "MASTER_ADDR=" + addresses_[0].substr(0, addresses_[0].rfind(':')),
                           "MASTER_PORT=" + free.substr(free.rfind(':') + 1)});
    announce(places);
    for (int rank = 0; rank < n; ++rank) {
      const Place& place = places[size_t(rank)];
      const nlohmann::json config = {{"cluster", {{"worker", addresses_}}},
                                     {"task", {{"type", "worker"}, {"index", rank}}}};
      std::vector<std::string> mine = own;
      mine.insert(mine.end(), {"TF_CONFIG=" + config.dump(), fmt::format("RANK={}", rank),
                               fmt::format("LOCAL_RANK={}", place.local_rank),
                               fmt::format("LOCAL_WORLD_SIZE={}", place.locals)});
      if (!program_.logs.empty())
        workers_.log_next(logs_.emplace_back(
            std::make_shared<Log>(fmt::format("{}/rank{}.log", program_.logs, rank), !first_)));
      if (place.here)
        start_here(place, mine);
      else
        start_on(program_.hosts[size_t(rank)].name, place, mine);
    }
    keyboard_.worker_has_it();
  }

  // Says once which cores the workers get; their share for OpenMP only on a terminal.
  void announce(const std::vector<Place>& places) {
    if (!first_) return;
    const std::vector<int> all = cores();
    if (const auto crowded =
            std::ranges::find_if(places, [](const Place& place) { return place.locals > 1; });
        crowded != places.end() && isatty(err_.fd()) &&
        !has(outer_environment(program_), "OMP_NUM_THREADS"))
      say(crowded->here
              ? fmt::format("OMP_NUM_THREADS={} for each of {} workers on {} (set it to choose)",
                            threads_of(*crowded), crowded->locals,
                            all.size() == 1 ? "1 core" : fmt::format("{} cores", all.size()))
              : "OMP_NUM_THREADS is each worker's share of its host's cores (set it to choose)");
    if (!program_.bind) return;
    std::vector<std::string> bound;
    for (size_t rank = 0; rank < places.size(); ++rank)
      if (places[rank].here)
        bound.push_back(fmt::format("rank {} to {}", rank, text_of(share_of(all, places[rank]))));
    say(bound.empty() ? "--bind core: no worker is on this machine, so none is bound"
                      : fmt::format("bound {}", fmt::join(bound, ", ")));
  }

  static size_t threads_of(const Place& place) {
    return std::max<size_t>(1, cores().size() / size_t(place.locals));
  }

  void start_here(const Place& place, const std::vector<std::string>& own) {
    std::vector<std::string> environment = outer_environment(program_);
    if (place.locals > 1 && !has(environment, "OMP_NUM_THREADS"))
      environment.push_back(fmt::format("OMP_NUM_THREADS={}", threads_of(place)));
    if (place.locals > 1 && !has(environment, "GOMP_SPINCOUNT") &&
        !has(environment, "OMP_WAIT_POLICY"))
      environment.push_back(fmt::format("GOMP_SPINCOUNT={}", kSpins));
    environment.insert(environment.end(), own.begin(), own.end());
    std::optional<Bound> bound;
    if (program_.bind) bound.emplace(share_of(cores(), place));
    workers_.start(program_.command, environment, keyboard_.input());
  }

  void start_on(const std::string& host, const Place& place, const std::vector<std::string>& own) {
    RemoteWorker worker{.folder = std::filesystem::current_path(),
                        .environment = travelling_environment(program_),
                        .command = program_.command,
                        .neighbours = place.locals};
    worker.environment.insert(worker.environment.end(), own.begin(), own.end());
    std::vector<std::string> command = program_.ssh;
    command.insert(command.end(), {"-T", "-o", "BatchMode=yes", host, kRemoteCommand});
    try {
      workers_.start_on(host, command, outer_environment(program_), remote_script(worker));
    } catch (const std::system_error& error) {
      throw std::system_error(
          error.code(),
          fmt::format("no way to {}: cannot start {} (--ssh names another)", host, command[0]));
    }
  }

  // On one host the service stands at the chief's address, under which it also names the chief.
  void serve(const std::string& token) {
    const auto* const module =
        static_cast<const cluster::ClusterModule*>(base::load_module("cluster").interface);
    const base::Settings& settings = base::settings();
    const bool at_chief = program_.hosts.empty();
    std::string address = at_chief ? addresses_[0] : free_addresses(host_, 1)[0];
    for (int left = 10; !service_; --left) {
      const cluster::Job job{.addresses = addresses_,
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
        address = free_addresses(host_, 1)[0];  // another process took the port
        if (at_chief) addresses_[0] = address;
      }
    }
  }

  // Waits until something happens or a deadline has come, and deals with it.
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
    // Signals come first: a worker that one of them ended has not failed by itself.
    if (polled[0].revents) take_signals();
    if (polled[1].revents)
      for (const Ending& ending : workers_.take_ended()) {
        const bool by_itself = !interrupted_ && !stopped_others_;
        ended_[ending.rank] = {ending, by_itself};
        if (ending.failed() && by_itself && !failure_) {
          failure_ = ending;
          if (workers_.running() > 0) terminate_at_ = Clock::now() + kGrace;
        }
      }
  }

  // Milliseconds until the next deadline; one second at most, since we may get the terminal back.
  int timeout() const {
    auto until = Clock::now() + 1s;
    for (const auto& deadline : {terminate_at_, kill_at_, cut_at_})
      if (deadline) until = std::min(until, *deadline);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    return int(std::max<int64_t>(0, left.count()));
  }

  // What the service reports from now on is a consequence of our stopping the workers.
  void stop_others() {
    if (!stopped_others_) cause_is_known_ = service_ && service_->failure();
    stopped_others_ = true;
  }

  void act_on_deadlines() {
    if (workers_.running() == 0) return;
    const auto now = Clock::now();
    if (terminate_at_ && now >= *terminate_at_) {
      terminate_at_.reset();
      stop_others();
      workers_.signal(SIGTERM);
      workers_.signal(SIGCONT);  // a stopped worker gets no other signal
      kill_at_ = std::min(kill_at_.value_or(Clock::time_point::max()), now + kTerminate);
    }
    if (kill_at_ && now >= *kill_at_) {
      kill_at_.reset();
      if (failure_)
        stop_others();
      else
        killed_ = true;
      workers_.signal(SIGKILL);
      cut_at_ = now + kCut;
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

  // If our output has no reader, the workers get a SIGPIPE as we would.
  void close_broken() {
    for (Workers::Stream& stream : workers_.streams())
      if (stream.lines.sink().broken()) stream.fd.close();
  }

  // Reads what the workers wrote before they ended. Another process may still hold a pipe, so we do
  // not wait for its end.
  void take_rest() {
    for (Workers::Stream& stream : workers_.streams()) {
      while (stream.fd && take_output(stream))
        if (stream.lines.sink().full()) flush();
      if (stream.fd) stream.lines.finish();
    }
  }

  struct Cause {
    std::string text;
    int code;
    int rank = -1;  // that it is about
  };

  // The process that ended first with an error may only have reported the loss of another.
  Cause cause() {
    const Cause first{failure_->to_string(), failure_->exit_code(), failure_->rank};
    if (!service_ || told_to_stop_ || is_broken(*failure_)) return first;
    if (stopped_others_ && !cause_is_known_) return first;
    service_->wait_until_empty(kLastReports);
    const std::optional<cluster::Failure> failure = service_->failure();
    if (!failure) return first;
    const std::string text = failure->text.substr(0, failure->text.find('\n'));
    const auto found = ended_.find(failure->rank);
    if (found == ended_.end())
      return {failure->code == ErrorCode::invalid_argument ? "the ranks disagree: " + text : text,
              first.code};
    const auto& [culprit, by_itself] = found->second;
    // The rank's own report: "rank 1 failed: TEXT".
    if (const std::string own = fmt::format("rank {} failed: ", failure->rank);
        failure->code == ErrorCode::aborted && text.starts_with(own))
      return {fmt::format("{} failed: {}", culprit.name(), text.substr(own.size())),
              culprit.failed() && by_itself ? culprit.exit_code() : first.code, culprit.rank};
    // Why it did not take part: "rank 1 (ADDRESS): TEXT".
    if (const std::string own =
            fmt::format("rank {} ({}): ", failure->rank, addresses_[size_t(failure->rank)]);
        culprit.failed() && by_itself && text.starts_with(own))
      return {fmt::format("{}: {}", culprit.to_string(), text.substr(own.size())),
              culprit.exit_code(), culprit.rank};
    if (culprit.failed() && by_itself)
      return {failure->code == ErrorCode::unavailable
                  ? culprit.to_string()  // the others only know that it is gone
                  : fmt::format("{}: {}", culprit.to_string(), text),
              culprit.exit_code(), culprit.rank};
    const std::string what = failure->code == ErrorCode::deadline_exceeded
                                 ? " kept the others waiting"
                             : culprit.failed() ? ""
                                                : " left early (exit code 0)";
    return {fmt::format("{}{}: {}", culprit.name(), what, text), first.code, culprit.rank};
  }

  // A process that ends like this has not been told to by another.
  static bool is_broken(const Ending& ending) {
    constexpr int kFaults[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    return std::ranges::find(kFaults, ending.exit_code() - 128) != std::end(kFaults);
  }

  // What the last line says of the ranks that we stopped. `rank`: the one it is about.
  std::string stopped_ranks(int rank) const {
    if (!stopped_others_) return "";
    const auto stopped =
        std::ranges::count_if(ended_, [](const auto& entry) { return !entry.second.by_itself; });
    const auto found = ended_.find(rank);
    if (found == ended_.end() || found->second.by_itself) return "; the others were stopped";
    return stopped == 1 ? "; it was stopped" : "; it was stopped, as were others";
  }

  Outcome report(const std::optional<Cause>& first) {
    for (const auto& log : logs_)
      if (!log->trouble().empty()) {
        say(log->trouble());
        break;
      }
    if (first) {
      say(first->text + stopped_ranks(first->rank));
      return {.code = first->code, .again = !told_to_stop_};
    }
    if (interrupted_) {
      say(killed_ ? "interrupted; the workers were killed" : "interrupted");
      return {.code = kInterrupted};
    }
    return {};
  }

  // Waits for our reader. A signal to stop drops the rest.
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
  const std::string& mark_;
  const bool first_;
  Keyboard keyboard_;
  std::mutex refusals_mutex_;
  std::vector<std::string> refusals_;          // as the service reported them
  std::unique_ptr<cluster::Service> service_;  // outlives the workers
  Workers workers_;

  std::vector<std::string> addresses_;  // by rank
  std::vector<std::shared_ptr<Log>> logs_;
  std::optional<Ending> failure_;  // the first
  struct Ended {
    Ending how;
    bool by_itself;  // before we stopped it
  };
  std::map<int, Ended> ended_;  // by rank
  std::string host_;            // by which the workers reach us
  std::optional<Clock::time_point> terminate_at_, kill_at_, cut_at_;
  bool stopped_others_ = false;
  bool cause_is_known_ = false;  // to the service, when we stopped the others
  bool interrupted_ = false;
  bool told_to_stop_ = false;
  bool killed_ = false;  // the workers, since an interrupt did not end them
};

}  // namespace

Outcome attempt(const Program& program, const Launcher& launcher, int number) {
  return Attempt(program, launcher, number).run();
}

}  // namespace tutti::tools
