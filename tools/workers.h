// SPDX-License-Identifier: Apache-2.0
// The processes of a job: started, signalled, watched, and ended with all that they have started in
// turn. Not thread-safe; one Workers at a time.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fd.h"
#include "guard.h"
#include "output.h"

namespace tutti::tools {

// What is known here of a worker on another host, and of the program that connects us.
struct Connection {
  std::string host;
  std::string program;     // "ssh"
  int pid = 0;             // of the worker, on its host; 0: not started yet
  std::string last_words;  // the last line on stderr before the worker started
};

// How a worker ended.
struct Ending {
  int rank = 0;
  pid_t pid = 0;
  int code = 0;                                       // what it returned
  int signal = 0;                                     // what killed it
  std::shared_ptr<const Connection> connection = {};  // null on this machine

  bool failed() const { return code != 0 || signal != 0; }
  int exit_code() const { return signal ? 128 + signal : code; }
  std::string to_string() const;  // "rank 2 (pid 4711) was killed by signal 9 (Killed)"
  std::string name() const;       // "rank 2 (pid 4711)", "rank 2 on b (pid 4711)"
};

// Makes this process a launcher: keeps its standard descriptors open and adopts what its workers
// leave behind. Call it once, before anything else.
void become_launcher();
// `child` is ours, and no worker's: end() leaves it alone.
void spare(pid_t child);

class Workers {
 public:
  struct Stream {
    Fd fd;  // closed at its end
    Lines lines;
  };

  Workers(Sink& out, Sink& err, Guard& guard);
  ~Workers();  // ends them
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // What the next rank writes goes to this file as well.
  void log_next(std::shared_ptr<Log> log) { log_ = std::move(log); }

  // Starts the next rank, as the leader of a process group of its own, so that a terminal's Ctrl-C
  // does not reach it by two ways. The first gets `input` for its stdin, the others nothing.
  // std::system_error if the program cannot be started.
  void start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
             int input);

  // Starts the next rank on another host, by a command such as {"ssh", "b", "sh -c ..."}, which
  // gets `script` for its stdin and then the names of signals (hosts.h).
  void start_on(const std::string& host, const std::vector<std::string>& command,
                const std::vector<std::string>& environment, std::string script);

  size_t running() const { return running_; }
  std::vector<Stream>& streams() { return streams_; }

  // Readable when a worker has ended.
  int ended_fd() const { return epoll_.get(); }
  // The workers that ended since the last call, in the order in which they did.
  std::vector<Ending> take_ended();

  // Sends it to all workers and to what they have started in their process groups.
  void signal(int signal);

  // Descriptors of connections that have not taken all that is to be written to them.
  std::vector<int> unfed() const;
  void feed();

  // Ends the connections to other hosts. The workers there end when they notice.
  void cut();

  // Waits for those of our adopted children that have ended.
  void reap_adopted();

  // Kills whatever is still there, the workers' own children included, and waits for it.
  void end();

 private:
  struct Worker {
    pid_t pid = 0;
    Fd pidfd = {};
    std::shared_ptr<Connection> connection = {};  // null on this machine
    Fd input = {};                                // of the connection
    std::string unsent = {};

    void feed();
  };
  Worker& spawn(const std::vector<std::string>& command,
                const std::vector<std::string>& environment, int input);

  Sink& out_;
  Sink& err_;
  Guard& guard_;
  std::shared_ptr<Log> log_;
  Fd null_;
  Fd epoll_;  // over the pidfds: it reports in the order of events, which poll does not
  std::vector<Worker> workers_;
  std::vector<Stream> streams_;
  size_t running_ = 0;
};

}  // namespace tutti::tools
