// SPDX-License-Identifier: Apache-2.0
#include "cluster/tf_config.h"

#include <fmt/format.h>
#include <tutti/error.h>

#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "cluster/checks.h"

namespace tutti {

namespace cluster {

namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& why) { throw InvalidArgumentError(why); }

// What an error shows of a wrong value.
std::string shown(const json& value) {
  constexpr size_t kMost = 80;
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() > kMost ? text.substr(0, kMost) + "…" : text;
}

json parse(std::string_view text) {
  // The parser itself would let the last of two equal keys win, and printing a value recurses.
  constexpr int kMaxDepth = 16;
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) fail(fmt::format("nested more than {} deep", kMaxDepth));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second)
      fail(fmt::format("the key {} appears twice", shown(parsed)));
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& e) {
    const std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at …"
    constexpr size_t kMost = 300;
    fail(fmt::format("not valid JSON: {}", what.substr(what.find("] ") + 2).substr(0, kMost)));
  }
}

std::optional<int> whole_number(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    return number < uint64_t(kMaxTasks) ? std::optional(int(number)) : std::nullopt;
  }
  if (!value.is_string()) return {};
  const std::string& text = value.get_ref<const std::string&>();
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number >= kMaxTasks)
    return {};
  return number;
}

const std::string& address_in(const json& value, const std::string& job, int index) {
  if (!value.is_string())
    fail(fmt::format("cluster: task {} of the job {} has the address {}; {}", index, in_quotes(job),
                     shown(value), kExpectedAddress));
  return value.get_ref<const std::string&>();
}

ClusterSpec::Tasks tasks_in(const json& value, const std::string& job) {
  ClusterSpec::Tasks tasks;
  if (value.is_array()) {
    for (const json& address : value) {
      const int index = int(tasks.addresses.size());
      tasks.addresses[index] = address_in(address, job, index);
    }
  } else if (value.is_object()) {
    for (const auto& [key, address] : value.items()) {
      const std::optional<int> index = whole_number(key);
      if (!index)
        fail(fmt::format(
            "cluster: the job {} has the index {}; expected a whole number from 0 to {}",
            in_quotes(job), in_quotes(key), kMaxTasks - 1));
      if (!tasks.addresses.emplace(*index, address_in(address, job, *index)).second)
        fail(fmt::format("cluster: the job {} has the index {} twice", in_quotes(job), *index));
    }
  } else {
    fail(
        fmt::format("cluster: the job {} is {}; expected a list of addresses, or an object of "
                    "addresses by index",
                    in_quotes(job), shown(value)));
  }
  return tasks;
}

ClusterSpec cluster_in(const json& value) {
  if (!value.is_object())
    fail(fmt::format("cluster: expected an object like {{\"worker\": [\"HOST:PORT\"]}}, got {}",
                     shown(value)));
  std::map<std::string, ClusterSpec::Tasks> jobs;
  for (const auto& [job, tasks] : value.items()) jobs.emplace(job, tasks_in(tasks, job));
  return ClusterSpec(std::move(jobs));
}

const json* member(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::string> text_in(const json& object, const char* key) {
  const json* value = member(object, key);
  if (!value) return {};
  if (!value->is_string()) fail(fmt::format("\"{}\" is {}; expected a string", key, shown(*value)));
  return value->get<std::string>();
}

void read_task(const json& task, TFConfig& config) {
  if (!task.is_object())
    fail(fmt::format(
        "\"task\" is {}; expected an object like {{\"type\": \"worker\", \"index\": 0}}",
        shown(task)));
  if (const json* type = member(task, "type")) {
    if (!type->is_string() && !type->is_number())
      fail(fmt::format("the task's \"type\" is {}; {}", shown(*type), kExpectedJobs));
    config.task_type = type->is_string() ? type->get<std::string>() : type->dump();
  }
  if (const json* index = member(task, "index")) {
    config.task_id = whole_number(*index);
    if (!config.task_id)
      fail(fmt::format("the task's \"index\" is {}; expected a whole number from 0 to {}",
                       shown(*index), kMaxTasks - 1));
  }
}

void read(const json& object, TFConfig& config) {
  if (!object.is_object())
    fail(fmt::format("expected an object with \"cluster\" and \"task\", got {}", shown(object)));
  if (const json* cluster = member(object, "cluster")) {
    config.cluster = cluster_in(*cluster);
    for (const auto& [job, tasks] : config.cluster.as_dict())
      for (const auto& [index, address] : tasks.addresses)
        if (address.empty())
          fail(fmt::format("cluster: task {} of the job {} has the address \"\"; {}", index,
                           in_quotes(job), kExpectedAddress));
  }
  if (const json* task = member(object, "task")) read_task(*task, config);
  config.rpc_layer = text_in(object, "rpc_layer").value_or("");
  config.session_master = text_in(object, "session_master");
}

}  // namespace

TFConfig parse_tf_config(std::string_view text) {
  TFConfig config;
  if (text.empty()) return config;
  try {
    read(parse(text), config);
  } catch (const InvalidArgumentError& e) {
    throw InvalidArgumentError(fmt::format("TF_CONFIG: {}", e.what()));
  }
  return config;
}

TFConfig tf_config() {
  const char* text = std::getenv("TF_CONFIG");
  return parse_tf_config(text ? text : "");
}

}  // namespace cluster

ClusterSpec ClusterSpec::from_json(std::string_view text) {
  try {
    return cluster::cluster_in(cluster::parse(text));
  } catch (const InvalidArgumentError& e) {
    throw InvalidArgumentError(fmt::format("ClusterSpec::from_json: {}", e.what()));
  }
}

std::string ClusterSpec::to_string() const {
  nlohmann::json text = nlohmann::json::object();
  for (const auto& [job, tasks] : jobs_) {
    const bool dense = tasks.addresses.empty() ||
                       tasks.addresses.rbegin()->first + 1 == int(tasks.addresses.size());
    nlohmann::json& listed = text[job] = dense ? nlohmann::json::array() : nlohmann::json::object();
    for (const auto& [index, address] : tasks.addresses)
      if (dense)
        listed.push_back(address);
      else
        listed[std::to_string(index)] = address;
  }
  return text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

TFConfigClusterResolver::TFConfigClusterResolver(ClusterResolverOptions options)
    : ClusterResolver(std::move(options)) {}

ClusterSpec TFConfigClusterResolver::cluster_spec() const { return cluster::tf_config().cluster; }

std::string TFConfigClusterResolver::find_task_type() const {
  return cluster::tf_config().task_type;
}

std::optional<int> TFConfigClusterResolver::find_task_id() const {
  return cluster::tf_config().task_id;
}

std::string TFConfigClusterResolver::find_rpc_layer() const {
  return cluster::tf_config().rpc_layer;
}

std::optional<std::string> TFConfigClusterResolver::find_master() const {
  return cluster::tf_config().session_master;
}

}  // namespace tutti
