// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/device.h>
#include <tutti/error.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace tutti {

namespace {

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
  return result;
}

bool is_short_type(std::string_view upper_case) {
  constexpr std::array types{"CPU", "GPU", "TPU", "CUSTOM", "EPU"};
  return std::ranges::find(types, upper_case) != types.end();
}

[[noreturn]] void malformed(std::string_view name, std::string_view why) {
  throw InvalidArgumentError(
      fmt::format("\"{}\" is not a device name: {} (a device name reads like \"/cpu:0\" or "
                  "\"/job:localhost/replica:0/task:0/device:CPU:0\")",
                  name, why));
}

bool is_word(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !text.empty() && letter(text[0]) && std::ranges::all_of(text, [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || c == '_';
  });
}

// Empty for "*".
std::optional<int> parse_int(std::string_view text, std::string_view part, std::string_view name) {
  if (text == "*") return {};
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text[0] == '-' || error != std::errc() || end != text.data() + text.size())
    malformed(name, fmt::format("the {} \"{}\" is not a whole number", part, text));
  return value;
}

}  // namespace

DeviceSpec DeviceSpec::parse(std::string_view name) {
  DeviceSpec spec;
  const auto set_type = [&](std::string type, std::string_view index) {
    if (spec.type) malformed(name, "it has two device types");
    if (!is_word(type)) malformed(name, fmt::format("\"{}\" is not a device type", type));
    spec.type = std::move(type);
    spec.index = parse_int(index, "index", name);
  };
  std::string_view rest = name;
  while (!rest.empty()) {
    const std::string_view piece = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), piece.size() + 1));
    if (piece.empty()) continue;
    const size_t colon = piece.find(':');
    const std::string_view key = piece.substr(0, colon);
    const bool has_value = colon != std::string_view::npos;
    const std::string_view value = has_value ? piece.substr(colon + 1) : std::string_view();
    if (key == "job" && has_value) {
      if (value != "*" && !is_word(value))
        malformed(name, fmt::format("\"{}\" is not a job name", value));
      spec.job = value == "*" ? std::nullopt : std::optional(std::string(value));
    } else if (key == "replica" && has_value) {
      spec.replica = parse_int(value, "replica", name);
    } else if (key == "task" && has_value) {
      spec.task = parse_int(value, "task", name);
    } else if (key == "device" && has_value) {
      const size_t second = value.find(':');
      const std::string_view type = value.substr(0, second);
      const std::string_view index =
          second == std::string_view::npos ? std::string_view("*") : value.substr(second + 1);
      set_type(type == "cpu" || type == "gpu" ? upper(type) : std::string(type), index);
    } else if (is_short_type(upper(key))) {
      set_type(upper(key), has_value ? value : std::string_view("*"));
    } else {
      malformed(name, fmt::format("it has an unknown part \"{}\"", piece));
    }
  }
  return spec;
}

DeviceSpec DeviceSpec::merged_with(const DeviceSpec& other) const {
  return {.job = other.job ? other.job : job,
          .replica = other.replica ? other.replica : replica,
          .task = other.task ? other.task : task,
          .type = other.type ? other.type : type,
          .index = other.index ? other.index : index};
}

std::string DeviceSpec::to_string() const {
  std::string text;
  if (job) text += "/job:" + *job;
  if (replica) text += fmt::format("/replica:{}", *replica);
  if (task) text += fmt::format("/task:{}", *task);
  if (type) text += fmt::format("/device:{}:{}", *type, index ? std::to_string(*index) : "*");
  return text;
}

std::string canonicalize(std::string_view device, std::string_view fallback) {
  static const DeviceSpec local{
      .job = "localhost", .replica = 0, .task = 0, .type = "CPU", .index = 0};
  const DeviceSpec spec =
      local.merged_with(DeviceSpec::parse(fallback)).merged_with(DeviceSpec::parse(device));
  if (upper(*spec.type) != *spec.type)
    malformed(device, fmt::format("the device type \"{}\" is not in capitals", *spec.type));
  return spec.to_string();
}

std::string host_of(std::string_view device) {
  return canonicalize("/cpu:0", canonicalize(device));
}

std::vector<std::string> local_devices_from_num_gpus(int num_gpus) {
  if (num_gpus < 0)
    throw InvalidArgumentError(
        fmt::format("local_devices_from_num_gpus: num_gpus is {}, expected 0 or more", num_gpus));
  std::vector<std::string> names;
  for (int i = 0; i < num_gpus; ++i) names.push_back(canonicalize(fmt::format("/gpu:{}", i)));
  if (names.empty()) names.push_back(canonicalize("/cpu:0"));
  return names;
}

}  // namespace tutti
