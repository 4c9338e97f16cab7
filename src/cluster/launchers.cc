// SPDX-License-Identifier: Apache-2.0
#include "cluster/launchers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/error.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

#include "cluster/checks.h"

namespace tutti::cluster {

namespace {

// A variable that is empty counts as one that is not set.
std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return {};
  return value;
}

struct Range {
  int64_t low, high;
};

std::optional<int64_t> number(const char* name, Range range) {
  const auto text = variable(name);
  if (!text) return {};
  const auto value = parse_number(*text);
  if (!value || *value < range.low || *value > range.high)
    throw InvalidArgumentError(fmt::format("{}={}: expected a whole number from {} to {}", name,
                                           *text, range.low, range.high));
  return value;
}

// Throws if one of `needed` is not set although `name` says that there are several processes.
void require(const char* launcher, const char* name, std::initializer_list<const char*> needed) {
  std::vector<std::string_view> missing;
  for (const char* other : needed)
    if (!variable(other)) missing.push_back(other);
  if (!missing.empty())
    throw InvalidArgumentError(
        fmt::format("{}={} says that {} started several processes, but {} {} not set: start them "
                    "with {}, or unset {}",
                    name, *variable(name), launcher, fmt::join(missing, " and "),
                    missing.size() == 1 ? "is" : "are", launcher, name));
}

// Empty if `size_name` is not set or says that the process is alone.
std::optional<Launch> launch_of(const char* launcher, const char* size_name,
                                const char* rank_name) {
  const auto size = number(size_name, {0, kMaxTasks});
  if (size.value_or(0) < 2) return {};
  require(launcher, size_name, {rank_name});
  return Launch{.launcher = launcher,
                .rank = int(*number(rank_name, {0, *size - 1})),
                .addresses = std::vector<std::string>(size_t(*size))};
}

// The nearest process that this one descends from and whose environment lacks a variable: the
// process that set it. A script may stand between it and this process.
int64_t starter_without(const std::string& name) {
  int64_t process = getppid();
  while (process > 1) {
    const std::string folder = fmt::format("/proc/{}", process);
    std::ifstream file(folder + "/environ", std::ios::binary);
    const std::string environment = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
    if (environment.find('\0' + name + "=") == environment.npos) break;
    std::ifstream status(folder + "/status");
    int64_t parent = 0;
    for (std::string word; status >> word && word != "PPid:";) {
    }
    if (!(status >> parent)) break;
    process = parent;
  }
  return process;
}

[[noreturn]] void malformed(const std::string& name, const std::string& list,
                            const std::string& why) {
  throw InvalidArgumentError(fmt::format("{}={}: {}", name, list, why));
}

// The pieces between commas that are not within brackets.
std::vector<std::string_view> split(const std::string& name, const std::string& list) {
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    const char c = i < list.size() ? list[i] : ',';
    if ((c == '[' && inside) || (c == ']' && !inside))
      malformed(name, list, "the brackets do not match");
    if (c == '[' || c == ']') inside = c == '[';
    if (c != ',' || (inside && i < list.size())) continue;
    if (inside) malformed(name, list, "the brackets do not match");
    if (i == begin) malformed(name, list, "a host is empty");
    pieces.push_back(std::string_view(list).substr(begin, i - begin));
    begin = i + 1;
  }
  return pieces;
}

struct HostList {
  const std::string& name;
  const std::string& text;
  std::vector<std::string> hosts = {};

  // Adds `prefix` followed by everything that `rest` stands for.
  void expand(const std::string& prefix, std::string_view rest) {
    const size_t open = rest.find('[');
    if (open == rest.npos) {
      if (hosts.size() == size_t(kMaxTasks))
        malformed(name, text, fmt::format("more than {} hosts", kMaxTasks));
      hosts.push_back(prefix + std::string(rest));
      return;
    }
    const size_t close = rest.find(']');
    const std::string start = prefix + std::string(rest.substr(0, open));
    const std::string_view after = rest.substr(close + 1);
    std::string_view ranges = rest.substr(open + 1, close - open - 1);
    while (true) {
      const std::string_view range = ranges.substr(0, ranges.find(','));
      const size_t dash = range.find('-');
      const std::string_view low = range.substr(0, dash);
      const auto first = parse_number(low);
      const auto last = dash == range.npos ? first : parse_number(range.substr(dash + 1));
      if (!first || !last || *last < *first || *last - *first >= kMaxTasks)
        malformed(name, text, fmt::format("{} is not a range of numbers", in_quotes(range)));
      for (int64_t i = *first; i <= *last; ++i)
        expand(fmt::format("{}{:0{}}", start, i, low.size()), after);
      if (range.size() == ranges.size()) return;
      ranges.remove_prefix(range.size() + 1);
    }
  }
};

// A rank's node and its place there.
struct Place {
  size_t node, local;
};

// Where srun put each rank. Empty if the environment does not tell.
std::vector<Place> places(size_t ranks, size_t nodes) {
  const std::string distribution = variable("SLURM_DISTRIBUTION").value_or("block");
  const bool block = distribution.starts_with("block");
  const auto list = variable("SLURM_STEP_TASKS_PER_NODE");
  if (!list || (!block && !distribution.starts_with("cyclic"))) return {};
  const std::vector<int> counts = expand_counts("SLURM_STEP_TASKS_PER_NODE", *list);
  if (counts.size() != nodes) return {};
  std::vector<Place> result;
  const auto add = [&](size_t node, size_t local) {
    if (local < size_t(counts[node]) && result.size() < ranks) result.push_back({node, local});
  };
  if (block) {
    for (size_t node = 0; node < nodes; ++node)
      for (size_t local = 0; local < size_t(counts[node]); ++local) add(node, local);
  } else {
    for (size_t local = 0; local < size_t(*std::ranges::max_element(counts)); ++local)
      for (size_t node = 0; node < nodes; ++node) add(node, local);
  }
  if (result.size() != ranks) return {};
  return result;
}

}  // namespace

std::vector<std::string> expand_hosts(const std::string& variable, const std::string& list) {
  HostList expanded{variable, list};
  for (const std::string_view piece : split(variable, list)) expanded.expand("", piece);
  return expanded.hosts;
}

std::vector<int> expand_counts(const std::string& variable, const std::string& list) {
  std::vector<int> counts;
  for (const std::string_view piece : split(variable, list)) {
    const size_t open = piece.find("(x");
    const auto count = parse_number(piece.substr(0, open));
    std::optional<int64_t> times = 1;
    if (open != piece.npos)
      times = piece.ends_with(')') ? parse_number(piece.substr(open + 2, piece.size() - open - 3))
                                   : std::nullopt;
    if (!count || !times || *count > kMaxTasks || *times > kMaxTasks - int64_t(counts.size()))
      malformed(variable, list, fmt::format("{} is not a count like 4 or 4(x2)", in_quotes(piece)));
    counts.insert(counts.end(), size_t(*times), int(*count));
  }
  return counts;
}

std::optional<Launch> find_torchrun() {
  // tutti run sets the same variables for other libraries; its own way in is TF_CONFIG.
  if (variable("TUTTI_LAUNCHER")) return {};
  auto launch = launch_of("torchrun", "WORLD_SIZE", "RANK");
  if (!launch) return {};
  require("torchrun", "WORLD_SIZE", {"MASTER_ADDR", "MASTER_PORT"});
  int port = int(*number("MASTER_PORT", {1, kMaxPort}));
  // torchrun's agent listens on the master's port itself, for the store that PyTorch joins.
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") port += port < kMaxPort ? 1 : -1;
  const std::string host = *variable("MASTER_ADDR");
  launch->addresses[0] = address_of(host, port);
  if (!is_address(launch->addresses[0]))
    throw InvalidArgumentError(fmt::format("MASTER_ADDR={}: expected a host", host));
  return launch;
}

std::optional<Launch> find_slurm() {
  // Not SLURM_NTASKS: a batch script has that, too, and is one process.
  constexpr const char* kSize = "SLURM_STEP_NUM_TASKS";
  // mpirun in an allocation starts its daemons with srun, one per node, and its ranks inherit their
  // variables. MPICH's are also set if srun itself starts ranks; then they agree with Slurm's.
  if (variable("OMPI_COMM_WORLD_SIZE")) return {};
  if (const auto size = variable("PMI_SIZE"); size && size != variable(kSize)) return {};
  auto launch = launch_of("srun", kSize, "SLURM_PROCID");
  if (!launch) return {};
  launch->launcher = "Slurm";
  require("srun", kSize, {"SLURM_JOB_ID", "SLURM_STEP_NODELIST"});
  const auto hosts = expand_hosts("SLURM_STEP_NODELIST", *variable("SLURM_STEP_NODELIST"));

  // A port below those that Linux hands out by itself: another one for each of 20,000 jobs in a
  // row, and for each step of a job.
  const int64_t job = *number("SLURM_JOB_ID", {0, UINT32_MAX});
  const int64_t step = number("SLURM_STEP_ID", {0, UINT32_MAX}).value_or(0);
  const int port = 12000 + int((job * 131 + step) % 20000);
  const std::vector<Place> at = places(launch->addresses.size(), hosts.size());
  // Even if the places are not known, rank 0 is on the first node.
  launch->addresses[0] = address_of(hosts[0], port);
  for (size_t rank = 1; rank < at.size(); ++rank)
    if (const int own = port + int(at[rank].local); own <= kMaxPort)
      launch->addresses[rank] = address_of(hosts[at[rank].node], own);
  for (const std::string& address : launch->addresses)
    if (!address.empty() && !is_address(address))
      throw InvalidArgumentError(fmt::format("SLURM_STEP_NODELIST={}: {} is not a host",
                                             *variable("SLURM_STEP_NODELIST"),
                                             in_quotes(address.substr(0, address.rfind(':')))));
  return launch;
}

std::optional<Launch> find_mpi() {
  const bool open_mpi = variable("OMPI_COMM_WORLD_SIZE").has_value();
  const char* const size = open_mpi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE";
  const char* const rank = open_mpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK";
  auto launch = launch_of(open_mpi ? "Open MPI" : "MPICH", size, rank);
  const auto here = variable(open_mpi ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "MPI_LOCALNRANKS");
  if (launch && here && parse_number(*here) == launch->addresses.size())
    launch->host_job = fmt::format("{}-{}", variable("OMPI_MCA_ess_base_jobid").value_or("0"),
                                   starter_without(rank));
  return launch;
}

}  // namespace tutti::cluster
