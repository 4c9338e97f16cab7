// SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/settings.h"
#include "bench.h"
#include "costs.h"
#include "group/net/reduction_layout.h"
#include "group/net/topology.h"
#include "job/job.h"

namespace tutti::tools {

namespace {

using group::JobLayout;
using nlohmann::json;

std::string text_of(const json& value) { return value.get<std::string>(); }

// {0, 1, 2, 5}: "0-2, 5"
std::string ranges(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t first = 0, next; first < ranks.size(); first = next) {
    for (next = first + 1; next < ranks.size() && ranks[next] == ranks[next - 1] + 1; ++next) {
    }
    parts.push_back(next - first == 1 ? fmt::format("{}", ranks[first])
                                      : fmt::format("{}-{}", ranks[first], ranks[next - 1]));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string called(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges(ranks);
}

std::string why_apart(const JobLayout::Rank& a, const JobLayout::Rank& b) {
  if (a.named || b.named) return "TUTTI_HOST_ID says so";
  const auto boot = [](const JobLayout::Rank& rank) {
    return rank.host.substr(0, rank.host.find(' '));
  };
  return boot(a) == boot(b) ? "one machine, but containers that do not see each other's processes"
                            : "two machines";
}

// That an all_reduce of float32 takes.
group::Way way_of(const group::GroupTopology& layout, size_t bytes, const base::Costs& costs) {
  std::vector<int> owners(layout.host_of.size());
  if (layout.hosts.size() == 1)
    return bytes > group::most_whole_within_host(owners.size(), costs) ? group::Way::shares
                                                                       : group::Way::whole;
  std::iota(owners.begin(), owners.end(), 0);
  const void* const leaf = nullptr;
  const group::Piece piece{{&leaf, 1}, {}, int64_t(bytes / sizeof(float)), DType::float32};
  const group::LeafReduction reduction{{&piece, 1}, owners, ReduceOp::SUM};
  group::ReductionPlan plan;
  return group::ReductionLayout(reduction, layout, plan, costs).way();
}

group::GroupTopology topology_of(const JobLayout& job) {
  std::vector<std::string> names;
  for (const auto& rank : job.ranks) names.push_back(job.network.empty() ? "" : rank.host);
  return {std::make_shared<const group::GroupHosts>(names), job.rank};
}

json describe(const JobLayout& job) {
  const group::GroupTopology layout = topology_of(job);
  const size_t hosts = layout.hosts.size();
  const std::string& asked = base::settings().backend;

  json result = {{"ranks", job.ranks.size()},
                 {"source", job.source},
                 {"service", job.service},
                 {"apart", !job.network.empty() && !asked.empty()}};
  for (const base::CostDoc& doc : base::cost_docs())
    result["costs"][doc.name] = job.costs.*doc.value;
  for (const size_t bytes : {4, 16 << 10, 256 << 10, 4 << 20, 64 << 20})
    result["ways"].push_back({{"bytes", bytes}, {"way", name(way_of(layout, bytes, job.costs))}});
  bool shared = false;
  for (const std::vector<int>& ranks : layout.hosts) {
    const auto& first = job.ranks[size_t(ranks[0])];
    shared |= ranks.size() > 1;
    std::vector<std::string> addresses;
    for (const int rank : ranks) addresses.push_back(job.ranks[size_t(rank)].address);
    // What a host sends in the place of its ranks' values.
    const auto host_of = [&](size_t leaf) { return layout.host_of[leaf]; };
    json partials = json::array();
    if (hosts > 1)
      for (const auto& [from, leaves] : group::largest_subtrees(job.ranks.size(), host_of)) {
        if (host_of(from) != host_of(size_t(ranks[0]))) continue;
        std::vector<int> under;
        for (size_t leaf = from; leaf < from + leaves; ++leaf) under.push_back(int(leaf));
        partials.push_back(under);
      }
    result["hosts"].push_back({{"machine", first.machine},
                               {"host_id", first.named ? first.host : ""},
                               {"ranks", ranks},
                               {"addresses", addresses},
                               {"partial_sums", partials}});
  }
  const std::string by_setting = asked.empty() ? "" : fmt::format("TUTTI_BACKEND={}", asked);
  if (job.network.empty()) {
    result["within"] = {
        {"backend", "shm"},
        {"reason", asked.empty() ? "all ranks are on one host, and share memory" : by_setting}};
    return result;
  }
  if (shared)
    result["within"] = {{"backend", "shm"}, {"reason", "the ranks of a host share memory"}};
  const size_t other = size_t(layout.leader(1));
  result["between"] = {
      {"backend", job.network},
      {"reason", !asked.empty()
                     ? by_setting + ", which takes every rank for a host of its own"
                     : fmt::format("ranks 0 and {} do not share memory: {}; TUTTI_BACKEND is empty",
                                   other, why_apart(job.ranks[0], job.ranks[other]))},
      {"interface", job.interface}};
  return result;
}

std::string host_name(const json& host) {
  const std::string id = host["host_id"];
  return id.empty() ? text_of(host["machine"])
                    : fmt::format("{} (host {})", text_of(host["machine"]), id);
}

void print_ways(const json& job) {
  fmt::print("\nWay of an all_reduce of float32, by the costs of rank 0 (TUTTI_COSTS)\n");
  for (const json& one : job["ways"])
    fmt::print("  {:<16}{}\n", size_text(one["bytes"]), text_of(one["way"]));
  std::vector<std::string> costs;
  for (const base::CostDoc& doc : base::cost_docs())
    costs.push_back(fmt::format("{}={}", doc.name, job["costs"][doc.name].get<double>()));
  fmt::print("  {:<16}{}\n", "costs in ns", fmt::join(costs, ","));
  if (job.contains("measured"))
    fmt::print("  {:<16}TUTTI_COSTS={}\n", "measured now", text_of(job["measured"]));
}

void print_layout(const json& job) {
  const auto& hosts = job["hosts"];
  const std::string where = job["apart"].get<bool>() ? ""
                            : hosts.size() == 1      ? " on one host"
                                                     : fmt::format(" on {} hosts", hosts.size());
  fmt::print("Job of {} ranks{}, described by {}; coordinated at {}\n\n", job["ranks"].get<int>(),
             where, text_of(job["source"]), text_of(job["service"]));
  fmt::print("Hosts\n");
  for (const auto& host : hosts)
    fmt::print("  {:<28}{:<18}{}\n", host_name(host), called(host["ranks"]),
               fmt::join(host["addresses"].get<std::vector<std::string>>(), " "));
  fmt::print("\nData\n");
  if (job.contains("within"))
    fmt::print("  {:<16}{:<6}{}\n", "within a host", text_of(job["within"]["backend"]),
               text_of(job["within"]["reason"]));
  if (!job.contains("between")) {
    fmt::print("  {:<16}{:<6}nothing leaves the host\n", "between hosts", "-");
    return print_ways(job);
  }
  const auto& between = job["between"];
  fmt::print("  {:<16}{:<6}{}\n", "between hosts", text_of(between["backend"]),
             text_of(between["reason"]));
  fmt::print("  {:<16}{:<6}{}\n", "interface", "", text_of(between["interface"]));
  fmt::print("\nPartial sums that a host sends for each element of an all_reduce\n");
  for (const auto& host : hosts) {
    std::vector<std::string> parts;
    for (const auto& under : host["partial_sums"]) parts.push_back(called(under));
    fmt::print("  {:<28}{}: {}\n", host_name(host), parts.size(), fmt::join(parts, " | "));
  }
  print_ways(job);
}

}  // namespace

int show_layout(const LayoutOptions& options) {
  const JobLayout layout = group::layout_from_environment();
  base::Costs measured;
  const bool measures = options.measure && !layout.ranks.empty();
  if (measures) measured = measure_costs(Group::from_environment(), topology_of(layout));
  if (layout.rank != 0) return 0;
  json job = layout.ranks.empty() ? json{{"ranks", 1}} : describe(layout);
  if (measures) job["measured"] = base::to_string(measured);
  if (options.json)
    fmt::print("{}\n", job.dump(2, ' ', false, json::error_handler_t::replace));
  else if (layout.ranks.empty())
    fmt::print(
        "A job of one: neither TF_CONFIG nor torchrun, srun or mpirun tell of others. Start it as "
        "a job, as in tutti run -n 4 -- tutti info --job\n");
  else
    print_layout(job);
  return 0;
}

}  // namespace tutti::tools
