// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/log.h"

extern char** environ;

namespace tutti::base {

namespace {

constexpr SettingDoc kDocs[] = {
    {"TUTTI_BACKEND", "",
     "what moves data between workers: one of the backends that tutti info lists, an error if it "
     "cannot be had; empty: shared memory within a host, UCX between hosts with RDMA and TCP "
     "between others, and NCCL between GPUs"},
    {"TUTTI_COORDINATOR", "",
     "the address of a coordination service that runs already, as under tutti run, or at which "
     "rank "
     "0 runs it, under mpirun; empty: the chief runs it at its own address"},
    {"TUTTI_COSTS", "",
     "what messages and sums cost in nanoseconds, as in latency=1500,byte=0.34, by which the ways "
     "of collectives are chosen; rank 0's value counts for the whole job; what is not given: the "
     "defaults"},
    {"TUTTI_HEARTBEAT_TIMEOUT", "10",
     "seconds of silence after which a worker on another host counts as lost"},
    {"TUTTI_HOST_ID", "",
     "a name for the host that this worker is on: those with the same share memory; empty: found "
     "out"},
    {"TUTTI_INTERFACES", "",
     "the network interfaces between hosts, as in eth0,eth1; empty: the one that this worker's "
     "address belongs to"},
    {"TUTTI_JOIN_TIMEOUT", "300",
     "seconds that the workers of a job wait for each other at its start"},
    {"TUTTI_LOG", "warning", "what is logged to stderr: debug, info, warning, error or off"},
    {"TUTTI_MODULE_PATH", "", "the folder of Tutti's modules; empty: tutti beside libtutti.so"},
    {"TUTTI_RECORD_DIR", "",
     "a folder that gets the last 256 operations of every rank when its group fails; empty: none"},
    {"TUTTI_STRAGGLERS", "0",
     "after this many collectives of a group, rank 0 logs the ranks that the others waited for; "
     "rank "
     "0's value counts for the whole job; 0: never"},
    {"TUTTI_THREADS", "0", "threads that a reduction uses; 0: one per core this process may use"},
    {"TUTTI_TIMELINE", "",
     "a file that gets every operation in Chrome's trace format; of trace.json, rank 2 of a job "
     "makes trace.rank2.json; empty: none"},
    {"TUTTI_TIMEOUT", "600", "seconds after which waiting for others is an error; 0: never"},
    {"TUTTI_TLS_CA", "",
     "the certificate authority that the job's certificates come from, a PEM file"},
    {"TUTTI_TLS_CERTIFICATE", "",
     "this worker's certificate, a PEM file; empty: coordination is not encrypted"},
    {"TUTTI_TLS_KEY", "", "the key of this worker's certificate, a PEM file"},
    {"TUTTI_TOKEN", "", "the job's secret: only workers that have the same take part; empty: none"},
    {"TUTTI_WARN_AFTER", "30", "seconds after which waiting for others is logged; 0: never"},
};

std::string_view get(const char* name) {
  for (const SettingDoc& doc : kDocs)
    if (doc.name == std::string_view(name)) {
      const char* value = std::getenv(name);
      return value && *value ? value : doc.default_value;
    }
  throw InternalError(fmt::format("the setting {} has no entry in the table", name));
}

double number(const char* name, double largest) {
  const std::string_view text = get(name);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= largest))
    throw InvalidArgumentError(
        fmt::format("{}={}: expected a number from 0 to {:g}", name, text, largest));
  return value;
}

int whole_number(const char* name, int largest) {
  const double value = number(name, largest);
  if (value != std::floor(value))
    throw InvalidArgumentError(fmt::format("{}={}: expected a whole number", name, get(name)));
  return int(value);
}

std::chrono::nanoseconds seconds(const char* name) {
  return std::chrono::nanoseconds(int64_t(std::ceil(number(name, 1e9) * 1e9)));
}

std::string one_of(const char* name, const std::vector<std::string_view>& allowed) {
  const std::string_view value = get(name);
  if (std::ranges::find(allowed, value) == allowed.end())
    throw InvalidArgumentError(
        fmt::format("{}={}: expected one of \"{}\"", name, value, fmt::join(allowed, "\", \"")));
  return std::string(value);
}

std::vector<std::string_view> backends() {
  std::vector<std::string_view> all{"", "shm"};
  for (const std::string_view transport : transport_names()) all.push_back(transport);
  all.push_back("nccl");
  return all;
}

constexpr std::string_view kPrefix = "TUTTI_";

// How many characters to insert, leave out or replace to turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j)
      diagonal = std::exchange(
          row[j], std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])}));
  }
  return row.back();
}

// Variables that are read elsewhere: by the library under tutti run, and by tests.
bool is_known(std::string_view name) {
  constexpr std::string_view kOthers[] = {"TUTTI_LAUNCHER", "TUTTI_LONG_TESTS", "TUTTI_SOAK"};
  return std::ranges::find(kDocs, name, &SettingDoc::name) != std::end(kDocs) ||
         std::ranges::find(kOthers, name) != std::end(kOthers) || name.starts_with("TUTTI_TEST_");
}

// The workers of tutti run have the same variables, so only rank 0 warns.
bool speaks() {
  const char* const rank = std::getenv("RANK");
  return !std::getenv("TUTTI_LAUNCHER") || !rank || std::string_view(rank) == "0";
}

std::atomic<bool> has_warned{false};

}  // namespace

void leave_unknown_settings_to_workers() { has_warned = true; }

std::vector<std::string> unknown_settings() {
  std::vector<std::string> found;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view whole = *entry, name = whole.substr(0, whole.find('='));
    if (!name.starts_with(kPrefix) || is_known(name)) continue;
    const auto distance = [&](const SettingDoc& doc) { return edit_distance(name, doc.name); };
    const SettingDoc& nearest = *std::ranges::min_element(kDocs, {}, distance);
    const size_t own = name.size() - kPrefix.size();
    const bool near = distance(nearest) <= 3 && 2 * distance(nearest) < own;
    found.push_back(fmt::format(
        "{} is not a setting and has no effect; {}", name,
        near ? fmt::format("did you mean {}?", nearest.name) : "tutti info lists the settings"));
  }
  return found;
}

std::span<const SettingDoc> setting_docs() { return kDocs; }

Settings read_settings() {
  Settings s;
  s.threads = whole_number("TUTTI_THREADS", 4096);
  s.timeout = seconds("TUTTI_TIMEOUT");
  s.warn_after = seconds("TUTTI_WARN_AFTER");
  s.timeline = get("TUTTI_TIMELINE");
  s.log_level = one_of("TUTTI_LOG", {"debug", "info", "warning", "error", "off"});
  s.backend = one_of("TUTTI_BACKEND", backends());
  s.host_id = get("TUTTI_HOST_ID");
  s.interfaces = get("TUTTI_INTERFACES");
  s.module_path = get("TUTTI_MODULE_PATH");
  s.record_dir = get("TUTTI_RECORD_DIR");
  s.stragglers = whole_number("TUTTI_STRAGGLERS", 1'000'000'000);
  s.costs = parse_costs(get("TUTTI_COSTS"));
  s.coordinator = get("TUTTI_COORDINATOR");
  s.token = get("TUTTI_TOKEN");
  s.tls_certificate = get("TUTTI_TLS_CERTIFICATE");
  s.tls_key = get("TUTTI_TLS_KEY");
  s.tls_authority = get("TUTTI_TLS_CA");
  s.join_timeout = seconds("TUTTI_JOIN_TIMEOUT");
  s.heartbeat_timeout = seconds("TUTTI_HEARTBEAT_TIMEOUT");
  return s;
}

const Settings& settings() {
  static const Settings instance = read_settings();
  if (!has_warned.load(std::memory_order_relaxed) && !has_warned.exchange(true) && speaks())
      [[unlikely]]
    for (const std::string& text : unknown_settings()) log(LogLevel::warning, text);
  return instance;
}

}  // namespace tutti::base
