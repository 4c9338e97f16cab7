// SPDX-License-Identifier: Apache-2.0
// What the tests of the coordination service need of the system: child processes, raw sockets,
// certificates.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

extern char** environ;

namespace tutti::testing {

// coordination_worker, started with these arguments; killed when this goes away. stderr is read
// with stdout.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, out[1], 2);
    arguments.insert(arguments.begin(), TUTTI_CLUSTER_WORKER);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    in_ = fdopen(in[1], "w");
    out_ = fdopen(out[0], "r");
  }
  ~Child() {
    send_signal(SIGKILL);
    std::fclose(in_);
    std::fclose(out_);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void send_signal(int signal) const {
    kill(pid_, signal);
    siginfo_t stopped;
    if (signal == SIGSTOP) waitid(P_PID, id_t(pid_), &stopped, WSTOPPED);
  }
  void say(const std::string& line) const {
    std::fprintf(in_, "%s\n", line.c_str());
    std::fflush(in_);
  }
  std::string line() const {
    std::string text;
    for (int c; (c = std::fgetc(out_)) != EOF && c != '\n';) text += static_cast<char>(c);
    return text;
  }

 private:
  pid_t pid_ = -1;
  std::FILE* in_;
  std::FILE* out_;
};

inline bool has_ipv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_addr = in6addr_loopback;
  const bool found = bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0;
  close(fd);
  return found;
}

// The most memory that a process has had at once.
inline size_t peak_kib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;)
    if (word == "VmHWM:") {
      size_t kib = 0;
      file >> kib;
      return kib;
    }
  return 0;
}

inline int threads_of_this_process() {
  int threads = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    ++threads;
  return threads;
}

// A connection to `address` that sends what it likes.
class RawSocket {
 public:
  explicit RawSocket(const std::string& address, in_addr_t source = INADDR_LOOPBACK)
      : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in from{}, to{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(source);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  ~RawSocket() { close(fd_); }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  void send_bytes(const std::string& bytes) const {
    (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // What comes within 20 s; empty if the connection ends.
  std::string receive() const {
    const timeval limit{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    char bytes[4096];
    const ssize_t size = recv(fd_, bytes, sizeof(bytes), 0);
    return {bytes, size > 0 ? size_t(size) : 0};
  }

 private:
  int fd_;
};

// Certificates for 127.0.0.1 in a folder of their own: ca.pem with a.pem and a.key, and the same
// of another authority, whose names begin with "other-".
class Certificates {
 public:
  Certificates() {
    char name[] = "/tmp/tutti_certificates_XXXXXX";
    if (!mkdtemp(name)) std::abort();
    folder_ = name;
    std::ofstream(folder_ / "san") << "subjectAltName=IP:127.0.0.1\n";
    for (const std::string prefix : {"", "other-"}) {
      const std::string ca = prefix + "ca", leaf = prefix + "a";
      openssl(
          "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
          ca + " -keyout " + ca + ".key -out " + ca + ".pem");
      openssl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + leaf +
              " -keyout " + leaf + ".key -out " + leaf + ".csr");
      openssl("x509 -req -days 2 -in " + leaf + ".csr -CA " + ca + ".pem -CAkey " + ca +
              ".key -CAcreateserial -extfile san -out " + leaf + ".pem");
    }
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }

  std::string operator/(const std::string& file) const { return (folder_ / file).string(); }

 private:
  void openssl(const std::string& arguments) const {
    const std::string command =
        "cd '" + folder_.string() + "' && openssl " + arguments + " >log 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }

  std::filesystem::path folder_;
};

}  // namespace tutti::testing
