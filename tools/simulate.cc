// SPDX-License-Identifier: Apache-2.0
// tutti simulate: how long a collective would take on hosts that are not there.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/settings.h"
#include "bench.h"
#include "command.h"
#include "sim/timing.h"
#include "simulate_faults.h"

namespace tutti::tools {

namespace {

using Clock = std::chrono::steady_clock;
using group::Collective;
using sim::Timing;

constexpr Collective kOps[] = {
    Collective::all_reduce, Collective::reduce,         Collective::broadcast,
    Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all,
    Collective::gather,     Collective::scatter,        Collective::barrier};

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const Collective op : kOps) names.emplace_back(group::name(op));
  return names;
}

constexpr size_t kLarge = 32 << 10;

// What the user wrote, to be shown as it was.
struct Given {
  std::string latency = "10us", overhead = "1us", jitter = "0us", bandwidth = "100Gbit";
  std::string cache;
  std::string bytes = "4:256M", op = "all_reduce";
};

// A number and what follows it.
std::pair<double, std::string> number_and_unit(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(number) || number < 0) return {-1, ""};
  return {number, end};
}

std::chrono::nanoseconds duration(const std::string& option, const std::string& text) {
  const auto [number, unit] = number_and_unit(text);
  for (const auto& [name, each] : {std::pair("ns", 1.0), {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}})
    if (number >= 0 && unit == name && number * each < 1e12)
      return std::chrono::nanoseconds(std::llround(number * each));
  throw std::runtime_error(
      fmt::format("{} {} is no time: write it as 500ns, 10us or 1.5ms", option, text));
}

// In bytes per nanosecond.
double bandwidth(const std::string& option, const std::string& text) {
  const auto [number, unit] = number_and_unit(text);
  double each = 1;
  for (const char* const prefix : {"", "K", "M", "G", "T"}) {
    const double bytes = number * each / 1e9;
    if (number > 0 && unit == std::string(prefix) + "bit") return bytes / 8;
    if (number > 0 && unit == std::string(prefix) + "B") return bytes;
    each *= 1000;
  }
  throw std::runtime_error(fmt::format(
      "{} {} is no bandwidth: write it as 100Gbit or 12.5GB, of a second", option, text));
}

size_t size_of_text(std::string text) {
  try {
    return CLI::AsSizeValue(false)(text).empty() ? std::stoull(text) : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

// From "4:256M", by factors of four; or the one size that is given.
std::vector<size_t> sizes(const std::string& text) {
  const size_t colon = text.find(':');
  const size_t least = size_of_text(text.substr(0, colon));
  const size_t most = colon == std::string::npos ? least : size_of_text(text.substr(colon + 1));
  if (least < 1 || most < least || most > size_t(1) << 40)
    throw std::runtime_error(fmt::format(
        "--bytes {} is no range of sizes: write it as 4:256M, the smallest first, or as 64K",
        text));
  std::vector<size_t> all;
  for (size_t size = least; size <= most; size *= 4) all.push_back(size);
  return all;
}

std::string bytes_text(double bytes) {
  const char* unit = "B";
  for (const char* const larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (bytes < 1024) break;
    bytes /= 1024;
    unit = larger;
  }
  const int digits = *unit == 'B' || bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} {}", bytes, digits, unit);
}

// What goes on, once it takes longer than a user likes to wait without a word.
class Progress {
 public:
  ~Progress() { clear(); }
  void begin(const std::string& what) { what_ = what; }
  void show(const std::string& detail) {
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + (terminal_ ? std::chrono::milliseconds(500) : std::chrono::seconds(10));
    const auto spent = std::chrono::duration_cast<std::chrono::seconds>(now - began_).count();
    fmt::print(stderr, "{}tutti simulate: {}: {}, {} s{}", terminal_ ? "\r\033[K" : "", what_,
               detail, spent, terminal_ ? "" : "\n");
    std::fflush(stderr);
    shown_ = true;
  }
  // Before something else is written.
  void clear() {
    if (terminal_ && std::exchange(shown_, false)) fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point next_ = began_ + std::chrono::seconds(2);
  std::string what_;
  bool shown_ = false;
};

struct Request {
  Given given;
  Collective op = Collective::all_reduce;
  std::vector<size_t> bytes;
  sim::TimedJob::Options job;
  bool json = false;

  int ranks() const { return job.hosts * job.ranks_per_host; }
  std::string hosts_text() const {
    return job.ranks_per_host == 1
               ? fmt::format("{:>4} hosts", job.hosts)
               : fmt::format("{:>4} hosts x {} ranks", job.hosts, job.ranks_per_host);
  }
};

void print_head(const Request& request) {
  fmt::print(
      "{} of float32, simulated; hosts: {}, ranks: {}\n"
      "latency {}, overhead {}, bandwidth {}\n"
      "{:>9} {:>12}   {:^21}   {:^21} {:>7}\n"
      "{:>9} {:>12}   {:>10} {:>10}   {:>10} {:>10} {:>7}\n",
      request.given.op, request.job.hosts, request.ranks(), request.given.latency,
      request.given.overhead, request.given.bandwidth, "", "", "messages of a host",
      "sent by a host", "connec-", "size", "time us", "mean", "most", "mean", "most", "tions");
}

void print_row(const Timing& timing) {
  fmt::print("{:>9} {:>12.2f}   {:>10.0f} {:>10.0f}   {:>10} {:>10} {:>7}\n",
             size_text(timing.bytes), double(timing.time.count()) / 1e3, timing.messages.mean,
             timing.messages.most, bytes_text(timing.sent.mean), bytes_text(timing.sent.most),
             timing.connections);
}

std::string to_json(const Request& request, const Timing& timing) {
  return nlohmann::ordered_json{{"library", "Tutti, simulated"},
                                {"op", request.given.op},
                                {"dtype", "float32"},
                                {"hosts", request.job.hosts},
                                {"ranks_per_host", request.job.ranks_per_host},
                                {"ranks", request.ranks()},
                                {"bytes", timing.bytes},
                                {"median_us", double(timing.time.count()) / 1e3},
                                {"calls", timing.calls},
                                {"host_messages_mean", timing.messages.mean},
                                {"host_messages_most", timing.messages.most},
                                {"host_bytes_mean", timing.sent.mean},
                                {"host_bytes_most", timing.sent.most},
                                {"rank_connections", timing.connections},
                                {"rank_bytes_reserved", timing.reserved}}
      .dump();
}

// Every rank has a stack, a window and a group; and a large collective has messages under way
// between any two hosts, or any two ranks.
void check_memory(const Request& request) {
  const double ranks = request.ranks();
  const double ends = request.op == Collective::all_to_all ? ranks : request.job.hosts;
  const bool is_large = request.bytes.back() > kLarge;
  const double needed = ranks * 100 * 1024 + (is_large ? ends * ends * 1600 : 0);
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (needed > 0.9 * memory)
    throw std::runtime_error(fmt::format(
        "{} ranks need about {} and this machine has {}; choose fewer --hosts or --ranks-per-host",
        request.ranks(), bytes_text(needed), bytes_text(memory)));
}

void simulate_one(Request& request, Progress& progress, std::vector<Measurement>& measured) {
  check_memory(request);
  progress.begin(fmt::format("{} hosts", request.job.hosts));
  request.job.progress = [&](const std::string& what) { progress.show(what); };
  sim::TimedJob job(request.job);
  if (!request.json) print_head(request);
  size_t reserved = 0;
  for (size_t i = 0; i < request.bytes.size(); ++i) {
    progress.begin(fmt::format("{} hosts, size {} of {}, {}", request.job.hosts, i + 1,
                               request.bytes.size(), size_text(request.bytes[i])));
    const Timing timing = job.time(request.op, request.bytes[i]);
    progress.clear();
    if (request.json)
      fmt::print("{}\n", to_json(request, timing));
    else
      print_row(timing);
    std::fflush(stdout);
    reserved = std::max(reserved, timing.reserved);
    measured.push_back({.library = request.hosts_text(),
                        .op = request.given.op,
                        .ranks = request.ranks(),
                        .bytes = timing.bytes,
                        .median_us = double(timing.time.count()) / 1e3});
  }
  if (request.json) return;
  fmt::print("Memory that a rank reserves: up to {}.\n", bytes_text(double(reserved)));
}

}  // namespace

int simulate(int argc, char** argv) {
  CommandLine app(
      "tutti simulate", "[options]",
      "Predicts how long a collective takes on hosts that are not there: the library's\n"
      "own algorithms run in a simulated network, on buffers that have a length and no\n"
      "data.\n\n"
      "  tutti simulate --hosts 64 --ranks-per-host 8 --latency 5us --bandwidth 200Gbit\n\n"
      "With --faults, each seed stands for a job: its ranks, what they call, and what\n"
      "goes wrong. Every rank must get the right result, or the error that\n"
      "docs/failures.md promises, in time.\n\n"
      "  tutti simulate --faults --seeds 0:999\n"
      "  tutti simulate --faults --seeds 17:17 --trace\n");
  bool is_of_faults = false;
  FaultOptions faults;
  Request request;
  Given& given = request.given;
  sim::Costs& costs = request.job.costs;
  std::vector<int> hosts{2};
  std::string plot_file;
  app.add_option("--hosts", hosts, "how many hosts; several numbers, as in 2,8,32, in turn (2)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 65536))
      ->option_text("N");
  app.add_option("--ranks-per-host", request.job.ranks_per_host, "how many ranks on each (1)")
      ->check(CLI::Range(1, 1024))
      ->option_text("N");
  app.add_option("--op", given.op,
                 fmt::format("the collective: {} (all_reduce)", fmt::join(op_names(), ", ")))
      ->check(CLI::IsMember(op_names()))
      ->option_text("NAME");
  app.add_option("--bytes", given.bytes,
                 "the sizes, by factors of 4, as in 4:256M; or one, as in 64K (4:256M)")
      ->option_text("FROM:TO");
  app.add_option("--latency", given.latency, "of a message, from host to host (10us)")
      ->option_text("TIME");
  app.add_option("--overhead", given.overhead, "of a message, at each end (1us)")
      ->option_text("TIME");
  app.add_option("--jitter", given.jitter, "that a message may take longer, at most (0us)")
      ->option_text("TIME");
  app.add_option("--bandwidth", given.bandwidth,
                 "of a host, each way, as in 100Gbit or 12.5GB a second (100Gbit)")
      ->option_text("RATE");
  app.add_option("--oversubscription", costs.oversubscribed,
                 "how many times as much the hosts of a switch may send as leaves it (1)")
      ->check(CLI::Range(1.0, 1e6))
      ->option_text("X");
  app.add_option("--hosts-per-switch", costs.hosts_per_switch, "how many a switch connects (32)")
      ->check(CLI::Range(1, 65536))
      ->option_text("N");
  app.add_option("--sum", costs.sum,
                 "nanoseconds for each byte that a rank sums or copies in its memory (0.05)")
      ->check(CLI::Range(0.0, 1e6))
      ->option_text("NS");
  app.add_option("--copy", costs.copy,
                 "nanoseconds for each byte of a message, at each end, while it travels (0)")
      ->check(CLI::Range(0.0, 1e6))
      ->option_text("NS");
  app.add_option("--cache", given.cache,
                 "how much data the caches hold, if all hosts are on one machine, as in 64M (all)")
      ->option_text("SIZE");
  app.add_option("--contention", costs.contention,
                 "by how much a byte that they do not hold takes longer for each other host (0)")
      ->check(CLI::Range(0.0, 1e6))
      ->option_text("X");
  app.add_flag("--as-bench", request.job.as_bench,
               "time the call on rank 0 after a barrier, as tutti bench does");
  app.add_option("--seed", request.job.seed, "of what is random: the jitter (1)")->option_text("N");
  app.add_flag("--json", request.json, "a line of JSON per size");
  app.add_option("--plot", plot_file, "an SVG file: time over size, a line for each --hosts")
      ->option_text("FILE");
  CLI::Option* const with_faults =
      app.add_flag("--faults", is_of_faults, "jobs in which something goes wrong");
  app.add_option("--seeds", faults.seeds, "of --faults: from A to B, or one (0:499)")
      ->needs(with_faults)
      ->option_text("A:B");
  app.add_option("--jobs", faults.jobs, "of --faults: processes at a time (one per core)")
      ->check(CLI::NonNegativeNumber)
      ->needs(with_faults)
      ->option_text("N");
  app.add_flag("--none", faults.without_faults,
               "of --faults: nothing goes wrong; up to 64 ranks on 17 hosts")
      ->needs(with_faults);
  app.add_flag("--trace", faults.trace, "of --faults: print what happens")->needs(with_faults);
  if (const auto code = parse(app, argc, argv)) return *code;
  if (is_of_faults) return simulate_faults(faults);
  request.job.expected = base::settings().costs;
  try {
    costs.latency = duration("--latency", given.latency);
    costs.overhead = duration("--overhead", given.overhead);
    costs.jitter = duration("--jitter", given.jitter);
    costs.bandwidth = bandwidth("--bandwidth", given.bandwidth);
    if (!given.cache.empty() && !(costs.cache = double(size_of_text(given.cache))))
      throw std::runtime_error(fmt::format("--cache {} is no size: write it as 64M", given.cache));
    request.bytes = sizes(given.bytes);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tutti simulate: {}\n", error.what());
    return kUsageError;
  }
  for (const Collective op : kOps)
    if (group::name(op) == given.op) request.op = op;
  if (request.op == Collective::barrier) request.bytes = {4};  // it has no data

  Progress progress;
  std::vector<Measurement> measured;
  for (const int n : hosts) {
    request.job.hosts = n;
    if (measured.size() && !request.json) fmt::print("\n");
    simulate_one(request, progress, measured);
  }
  if (plot_file.empty()) return 0;
  std::ofstream file(plot_file);
  file << plot(measured, {fmt::format("{} of float32, simulated", given.op),
                          fmt::format("{} on each host; latency {}, overhead {}, {}",
                                      request.job.ranks_per_host == 1
                                          ? "1 rank"
                                          : fmt::format("{} ranks", request.job.ranks_per_host),
                                      given.latency, given.overhead, given.bandwidth)});
  if (!file.flush()) throw std::runtime_error(fmt::format("cannot write {}", plot_file));
  return 0;
}

}  // namespace tutti::tools
