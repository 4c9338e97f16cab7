// SPDX-License-Identifier: Apache-2.0
#include "sim/campaign.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tutti/error.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>

#include "base/file.h"
#include "sim/trial.h"

namespace tutti::sim {

namespace {

constexpr uint64_t kChunk = 25;  // trials that a process runs

struct Chunk {
  uint64_t next, last;
};

// A process that runs trials. It writes the seed of a trial before it begins, and the violations
// afterwards: "seed\n" and "text\n...=\n".
struct Worker {
  Chunk chunk;
  pid_t pid = -1;
  int file = -1;
  std::string unread = {};
  std::optional<Finding> current = {};
  std::chrono::steady_clock::time_point since = {};
};

void say(int file, const std::string& text) {
  if (!base::write_all(file, text)) _exit(1);
}

[[noreturn]] void work(const Chunk& chunk, int file, bool faults) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (uint64_t seed = chunk.next;; ++seed) {
    say(file, fmt::format("{}\n", seed));
    std::string text;
    try {
      for (std::string& violation : run(draw(seed, faults)).violations) {
        std::ranges::replace(violation, '\n', ' ');
        text += violation + "\n";
      }
    } catch (const std::exception& error) {
      text = fmt::format("the simulation itself fails: {}\n", error.what());
    }
    say(file, text + "=\n");
    if (seed == chunk.last) _exit(0);
  }
}

class Runner {
 public:
  explicit Runner(const Campaign& campaign) : campaign_(campaign) {}

  std::vector<Finding> run() {
    for (uint64_t seed = campaign_.first;; seed += kChunk) {
      chunks_.push_back({seed, std::min(seed + kChunk - 1, campaign_.last)});
      if (campaign_.last - seed < kChunk) break;
    }
    while (!chunks_.empty() || !workers_.empty()) {
      while (!chunks_.empty() && int(workers_.size()) < campaign_.jobs) start();
      wait();
    }
    std::ranges::sort(findings_, {}, &Finding::seed);
    return std::move(findings_);
  }

 private:
  void start() {
    int ends[2];
    if (pipe(ends) != 0)
      throw ResourceExhaustedError(
          fmt::format("simulate: cannot make a pipe: {}", std::strerror(errno)));
    Worker worker{.chunk = chunks_.front()};
    chunks_.pop_front();
    worker.pid = fork();
    if (worker.pid < 0)
      throw ResourceExhaustedError(
          fmt::format("simulate: cannot start a process: {}", std::strerror(errno)));
    if (worker.pid == 0) {
      close(ends[0]);
      work(worker.chunk, ends[1], campaign_.faults);
    }
    close(ends[1]);
    worker.file = ends[0];
    worker.since = std::chrono::steady_clock::now();
    workers_.push_back(std::move(worker));
  }

  void wait() {
    std::vector<pollfd> files;
    for (const Worker& worker : workers_) files.push_back({worker.file, POLLIN, 0});
    poll(files.data(), files.size(), 1000);
    for (size_t i = files.size(); i-- > 0;) {
      Worker& worker = workers_[i];
      const auto waited = std::chrono::steady_clock::now() - worker.since;
      if (files[i].revents) {
        if (!read(worker)) end(i, "");
      } else if (waited > std::chrono::seconds(campaign_.seconds)) {
        kill(worker.pid, SIGKILL);
        end(i, fmt::format("the trial hangs: it has taken {} s of real time", campaign_.seconds));
      }
    }
  }

  // False if the worker has ended.
  bool read(Worker& worker) {
    char buffer[4096];
    const ssize_t bytes = ::read(worker.file, buffer, sizeof(buffer));
    if (bytes <= 0) return bytes < 0 && errno == EINTR;
    worker.unread.append(buffer, size_t(bytes));
    for (size_t end; (end = worker.unread.find('\n')) != std::string::npos;) {
      take(worker, worker.unread.substr(0, end));
      worker.unread.erase(0, end + 1);
    }
    return true;
  }

  void take(Worker& worker, const std::string& line) {
    worker.since = std::chrono::steady_clock::now();
    if (!worker.current) {
      worker.current = Finding{std::stoull(line), {}};
    } else if (line == "=") {
      finish(worker);
    } else {
      worker.current->violations.push_back(line);
    }
  }

  void finish(Worker& worker) {
    worker.chunk.next = worker.current->seed + 1;
    if (!worker.current->violations.empty()) {
      if (campaign_.found) campaign_.found(*worker.current);
      findings_.push_back(std::move(*worker.current));
    }
    worker.current.reset();
    ++done_;
    if (campaign_.progress) campaign_.progress(done_, findings_.size());
  }

  void end(size_t number, const std::string& why) {
    Worker worker = std::move(workers_[number]);
    workers_.erase(workers_.begin() + ptrdiff_t(number));
    close(worker.file);
    int status = 0;
    while (waitpid(worker.pid, &status, 0) < 0 && errno == EINTR) {
    }
    // A worker that ends between two trials counts as a finding of the next one.
    if (!worker.current && worker.chunk.next <= worker.chunk.last)
      worker.current = Finding{worker.chunk.next, {}};
    if (worker.current) {
      worker.current->violations.push_back(
          !why.empty() ? why
          : WIFSIGNALED(status)
              ? fmt::format("the trial ends by signal {} ({})", WTERMSIG(status),
                            strsignal(WTERMSIG(status)))
              : fmt::format("the trial's process exits with {}", WEXITSTATUS(status)));
      finish(worker);
    }
    if (worker.chunk.next <= worker.chunk.last) chunks_.push_front(worker.chunk);
  }

  const Campaign& campaign_;
  std::deque<Chunk> chunks_;
  std::vector<Worker> workers_;
  std::vector<Finding> findings_;
  uint64_t done_ = 0;
};

}  // namespace

std::vector<Finding> run(const Campaign& campaign) { return Runner(campaign).run(); }

}  // namespace tutti::sim
