// SPDX-License-Identifier: Apache-2.0
// tutti timeline merge: one timeline of all ranks of a job, from that of each.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tutti/error.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "command.h"
#include "observe/timeline.h"

namespace tutti::tools {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Event {
  double ts;
  std::string text;
};

// One rank's file.
struct Part {
  std::string path;
  observe::TimelinePart who;
  int64_t process = 0;
  std::vector<json> events;
};

[[noreturn]] void foreign(const std::string& path, const std::string& why) {
  throw InvalidArgumentError(
      fmt::format("{} is not the timeline of a rank ({}); leave it out. A process writes one if "
                  "TUTTI_TIMELINE is set and it takes part in a job of several",
                  path, why));
}

// The contents of the event that says which rank's timeline it is; none for other events.
std::optional<observe::TimelinePart> who_of(const json& event) {
  if (event.value("name", "") != observe::kTimelinePart) return {};
  const json& args = event.at("args");
  return observe::TimelinePart{.rank = args.at("rank"),
                               .ranks = args.at("ranks"),
                               .host = args.at("host"),
                               .job = args.at("job"),
                               .add_ns = int64_t(args.at("add_us").get<double>() * 1e3),
                               .error_ns = int64_t(args.at("error_us").get<double>() * 1e3)};
}

// Reads line by line, as it was written: the file may be large, and lacks its end if the process
// was killed.
Part read(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || fs::is_directory(path))
    throw NotFoundError(fmt::format("cannot read {}: {}", path,
                                    std::strerror(fs::is_directory(path) ? EISDIR : errno)));
  if (!std::getline(file, line)) foreign(path, "it is empty");
  if (line != "[") foreign(path, "its first line is not \"[\"");
  Part part{.path = path, .who = {}, .events = {}};
  std::optional<observe::TimelinePart> who;
  for (int64_t number = 2; std::getline(file, line); ++number) {
    if (line == "]") break;
    if (line.ends_with(',')) line.pop_back();
    json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
    try {
      if (const auto found = who_of(event)) {
        who = found;
        part.process = event.at("pid");
      } else if (event.at("ph") == "X") {
        event.at("ts").get<double>();
        part.events.push_back(std::move(event));
      }
    } catch (const json::exception&) {
      throw DataLossError(fmt::format(
          "{} is damaged in line {}; delete that line and all that follow to keep what is before "
          "them, or leave the file out",
          path, number));
    }
  }
  if (!who) foreign(path, "it does not say of which");
  part.who = *who;
  return part;
}

// The files among the paths, and the files of ranks in the folders.
std::vector<std::string> files_of(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    for (const auto& entry : fs::directory_iterator(path))
      if (const std::string name = entry.path().filename();
          entry.is_regular_file() && name.find(".rank") != std::string::npos)
        files.push_back(entry.path());
    std::sort(files.begin() + int64_t(before), files.end());
    if (files.size() == before)
      throw NotFoundError(fmt::format(
          "the folder {} holds no timelines of ranks; TUTTI_TIMELINE={} makes every rank write one "
          "there, such as trace.rank0.json",
          path, (fs::path(path) / "trace.json").string()));
  }
  return files;
}

std::vector<Part> read_all(const std::vector<std::string>& files) {
  std::map<int, Part> parts;
  for (const std::string& path : files) {
    Part part = read(path);
    if (!parts.empty() && parts.begin()->second.who.job != part.who.job)
      throw InvalidArgumentError(
          fmt::format("{} and {} are of different runs of a job; leave those of the other run out",
                      parts.begin()->second.path, path));
    const int rank = part.who.rank;
    const auto [at, fresh] = parts.try_emplace(rank, std::move(part));
    if (!fresh)
      throw InvalidArgumentError(fmt::format("{} and {} are both of rank {}; leave one of them out",
                                             at->second.path, path, rank));
  }
  std::vector<Part> all;
  for (auto& [rank, part] : parts) all.push_back(std::move(part));
  return all;
}

// Throws if writing `out` would destroy a timeline that is to be read, or that of a rank.
void check_output(const std::string& out, const std::vector<std::string>& files) {
  std::error_code ignored;
  for (const std::string& file : files)
    if (fs::equivalent(out, file, ignored))
      throw InvalidArgumentError(fmt::format(
          "{} would be written over; the file to write comes first, then those to read", out));
  if (!fs::exists(out, ignored)) return;
  bool of_rank = true;
  try {
    read(out);
  } catch (const Error&) {
    of_rank = false;
  }
  if (of_rank)
    throw InvalidArgumentError(
        fmt::format("{} is the timeline of a rank, and would be written over; the file to write "
                    "comes first, then those to read",
                    out));
}

void write_merged(const std::string& out, std::vector<Part>& parts) {
  std::vector<Event> events;
  std::string text = "[";
  const char* separator = "\n";
  const auto add = [&](const json& event) {
    text += separator + event.dump(-1, ' ', false, json::error_handler_t::replace);
    separator = ",\n";
  };
  for (const Part& part : parts) {
    const int rank = part.who.rank;
    // Process ids of several hosts may be the same; ranks are not.
    const auto describe = [&](const char* name, json args) {
      add({{"name", name}, {"ph", "M"}, {"pid", rank}, {"args", std::move(args)}});
    };
    describe("process_name", {{"name", fmt::format("rank {} ({})", rank, part.who.host)}});
    describe("process_labels", {{"labels", fmt::format("process {}", part.process)}});
    describe("process_sort_index", {{"sort_index", rank}});
  }
  for (Part& part : parts)
    for (json& event : std::exchange(part.events, {})) {
      const double ts = event["ts"].get<double>() + double(part.who.add_ns) / 1e3;
      event["ts"] = ts;
      event["pid"] = part.who.rank;
      events.push_back({ts, event.dump(-1, ' ', false, json::error_handler_t::replace)});
    }
  std::ranges::stable_sort(events, {}, &Event::ts);
  // Written beside it first, so that no reader sees half of it.
  const std::string beside = out + ".part";
  std::ofstream file(beside, std::ios::trunc);
  file << text;
  for (const Event& event : events) file << separator << event.text, separator = ",\n";
  file << "\n]\n";
  file.close();
  if (!file || std::rename(beside.c_str(), out.c_str()) != 0) {
    const int error = errno;
    std::remove(beside.c_str());
    throw UnavailableError(fmt::format("cannot write {}: {}", out, std::strerror(error)));
  }
}

int merge(const std::string& out, const std::vector<std::string>& paths) {
  const std::vector<std::string> files = files_of(paths);
  check_output(out, files);
  std::vector<Part> parts = read_all(files);
  size_t events = 0;
  int64_t error = 0;
  std::set<std::string> hosts;
  std::set<int> missing;
  for (int r = 0; r < parts[0].who.ranks; ++r) missing.insert(r);
  for (const Part& part : parts) {
    events += part.events.size();
    error = std::max(error, part.who.error_ns);
    hosts.insert(part.who.host);
    missing.erase(part.who.rank);
  }
  write_merged(out, parts);
  fmt::print("{}: events: {}, ranks: {}, hosts: {}; clocks agree to {:.3g} ms\n", out, events,
             parts.size(), hosts.size(), double(error) / 1e6);
  if (!missing.empty())
    fmt::print(stderr, "tutti timeline: the timelines of these ranks are missing: {}\n",
               fmt::join(missing, ", "));
  return 0;
}

}  // namespace

int timeline(int argc, char** argv) {
  std::string action, out;
  std::vector<std::string> paths;
  CommandLine app("tutti timeline", "merge OUT FILE...",
                  "Writes OUT, one timeline of all ranks of a job: each rank is a row, and the\n"
                  "times are those of one clock. FILE is what a rank wrote under TUTTI_TIMELINE,\n"
                  "or a folder with such files.\n"
                  "Open OUT in ui.perfetto.dev or chrome://tracing.\n\n"
                  "  TUTTI_TIMELINE=trace.json tutti run -n 4 ./program\n"
                  "  tutti timeline merge all.json trace.rank*.json\n");
  app.add_option("ACTION", action, "merge")->required()->check(CLI::IsMember({"merge"}));
  app.add_option("OUT", out, "the file to write")->required();
  app.add_option("FILE", paths, "what to read")->required();
  if (const auto code = parse(app, argc, argv)) return *code;
  return merge(out, paths);
}

}  // namespace tutti::tools
