// SPDX-License-Identifier: Apache-2.0
#include "hosts.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "cluster/checks.h"
#include "environment.h"

namespace tutti::tools {

namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kMark = "\x1etutti worker ";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

std::optional<int> parse_workers(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 ||
      number > kMostWorkers)
    return {};
  return number;
}

// Empty if the text is no host with a number of workers.
std::optional<Host> parse_host(std::string_view text) {
  Host host;
  const size_t bracket = text.rfind(']');
  const size_t colon = text.find(':', bracket == text.npos ? 0 : bracket);
  if (colon != text.npos) {
    const auto workers = parse_workers(text.substr(colon + 1));
    if (!workers) return {};
    host.workers = *workers;
    text = text.substr(0, colon);
  }
  const size_t at = text.find('@');
  const std::string_view user = at == text.npos ? "user" : text.substr(0, at);
  const std::string_view name = text.substr(at == text.npos ? 0 : at + 1);
  // A name that begins with "-" would be an option to ssh.
  for (const std::string_view part : {user, name})
    if (part.starts_with('-') || !cluster::is_address(fmt::format("{}:1", part))) return {};
  host.name = text;
  std::erase_if(host.name, [](char c) { return c == '[' || c == ']'; });  // ssh takes none
  return host;
}

std::optional<Host> parse_line(std::string_view line) {
  const size_t blank = line.find_first_of(kBlanks);
  if (blank == line.npos) return parse_host(line);
  constexpr std::string_view slots = "slots=";
  const std::string_view rest = trimmed(line.substr(blank));
  if (!rest.starts_with(slots)) return {};
  return parse_host(fmt::format("{}:{}", line.substr(0, blank), rest.substr(slots.size())));
}

// A word that a shell takes as it is, on one line: `n` holds the end of a line.
std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'')
      result += "'\\''";
    else if (c == '\n')
      result += "'\"$n\"'";
    else
      result += c;
  }
  return result + "'";
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& list) {
  std::vector<Host> hosts;
  std::string_view rest = list;
  while (true) {
    const std::string_view piece = trimmed(rest.substr(0, rest.find(',')));
    const auto host = parse_host(piece);
    if (!host)
      throw InvalidArgumentError(fmt::format(
          "--hosts {}: {} is no host; expected HOST or HOST:WORKERS with 1 to {} workers", list,
          cluster::in_quotes(piece), kMostWorkers));
    hosts.push_back(*host);
    if (rest.find(',') == rest.npos) return hosts;
    rest.remove_prefix(rest.find(',') + 1);
  }
}

std::vector<Host> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw NotFoundError(fmt::format("--hostfile {}: {}", path, std::strerror(errno)));
  std::vector<Host> hosts;
  int number = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    const std::string_view line = trimmed(std::string_view(text).substr(0, text.find('#')));
    if (line.empty()) continue;
    const auto host = parse_line(line);
    if (!host)
      throw InvalidArgumentError(
          fmt::format("{}:{}: {}: expected HOST, HOST:WORKERS or HOST slots=WORKERS with 1 to {} "
                      "workers",
                      path, number, cluster::in_quotes(line), kMostWorkers));
    hosts.push_back(*host);
  }
  if (file.bad()) throw NotFoundError(fmt::format("--hostfile {}: {}", path, std::strerror(errno)));
  if (hosts.empty()) throw InvalidArgumentError(fmt::format("--hostfile {}: no host in it", path));
  return hosts;
}

std::string without_user(const std::string& name) { return name.substr(name.find('@') + 1); }

bool is_this_machine(const Host& host) {
  return cluster::is_loopback(cluster::address_of(host.name, 1));
}

// Any shell that the user may have there understands this.
const char* const kRemoteCommand = R"(exec sh -c 'IFS= read -r line && eval "$line"')";

// A shell stays beside the worker and reads our end of the connection. When that is closed, by us,
// by our death or by the loss of the connection, the worker's process group is ended. `ssh -tt`
// would do so by the terminal's hangup, which a worker may ignore; and a terminal mixes stdout with
// stderr and changes the ends of lines.
std::string remote_script(const RemoteWorker& worker) {
  std::string script = R"(n=$(printf '\nx'); n=${n%x}; )";
  script +=
      fmt::format("cd {0} || {{ echo \"tutti run: there is no folder \"{0} >&2; exit 127; }}; ",
                  shell_quoted(worker.folder));
  for (const std::string& variable : worker.environment) {
    const size_t equals = variable.find('=');
    script += fmt::format("export {}={}; ", variable.substr(0, equals),
                          shell_quoted(std::string_view(variable).substr(equals + 1)));
  }
  if (worker.neighbours > 1)
    script += fmt::format(
        "[ -n \"$OMP_NUM_THREADS\" ] || {{ c=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN); "
        "c=$((c / {})); [ \"$c\" -gt 0 ] || c=1; export OMP_NUM_THREADS=$c; }}; "
        "[ -n \"$GOMP_SPINCOUNT$OMP_WAIT_POLICY\" ] || export GOMP_SPINCOUNT={}; ",
        worker.neighbours, kSpins);
  script +=
      fmt::format("exec 3<&0 </dev/null; setsid sh -c 'echo \"{}$$\"; exec \"$@\"' sh", kMark);
  for (const std::string& word : worker.command) script += " " + shell_quoted(word);
  // Until the worker has become the leader of its group, only its own id reaches it. What waits for
  // the worker must outlive the signals that it passes on.
  script +=
      " 3<&- & w=$!; trap '' HUP INT TERM PIPE; "
      "k() { kill -s \"$1\" -- \"-$w\" || kill -s \"$1\" \"$w\"; }; "
      "{ while read -r s; do k \"$s\"; done; k TERM; k CONT; sleep 3; k KILL; } "
      "<&3 >/dev/null 2>&1 & v=$!; exec 3<&-; "
      "wait \"$w\" 2>/dev/null; c=$?; { kill -s KILL -- \"-$w\"; kill -s KILL \"$v\"; } "
      "2>/dev/null; exit \"$c\"\n";
  return script;
}

int begins_worker(const std::string& line) {
  const size_t at = line.find(kMark);  // a shell's start-up files may have left half a line
  return at == line.npos ? 0 : std::atoi(line.c_str() + at + kMark.size());
}

}  // namespace tutti::tools
