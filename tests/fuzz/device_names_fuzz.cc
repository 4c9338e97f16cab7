// SPDX-License-Identifier: Apache-2.0
// Device names. The input is a name, and after a line end a fallback for it.
#include <tutti/device.h>
#include <tutti/error.h>

#include <optional>
#include <string_view>

#include "fuzz.h"

namespace tutti::fuzz {
namespace {

// None if it is no device name.
std::optional<DeviceSpec> parsed(std::string_view name) {
  try {
    return DeviceSpec::parse(name);
  } catch (const InvalidArgumentError&) {
    return {};
  }
}

void check_spec(const DeviceSpec& spec) {
  check(parsed(spec.to_string()) == spec, "a spec that is printed and parsed is the same");
  check(spec.merged_with({}) == spec, "a spec merged with nothing is the same");
  check(DeviceSpec{}.merged_with(spec) == spec, "nothing merged with a spec is that spec");
  check(spec.merged_with(spec) == spec, "a spec merged with itself is the same");
  check(!spec.index || spec.type, "an index belongs to a type");
  for (const std::optional<int>& number : {spec.replica, spec.task, spec.index})
    check(!number || *number >= 0, "no number is negative");
}

template <class Part>
void check_part(const Part& merged, const Part& first, const Part& second) {
  check(merged == (second ? second : first), "what the second gives wins");
}

void check_merged(const DeviceSpec& first, const DeviceSpec& second) {
  const DeviceSpec merged = first.merged_with(second);
  check_part(merged.job, first.job, second.job);
  check_part(merged.replica, first.replica, second.replica);
  check_part(merged.task, first.task, second.task);
  check_part(merged.type, first.type, second.type);
  check_part(merged.index, first.index, second.index);
  check_spec(merged);
}

void check_canonical(std::string_view name, std::string_view fallback) {
  std::string full;
  try {
    full = canonicalize(name, fallback);
  } catch (const InvalidArgumentError&) {
    return;
  }
  const DeviceSpec spec = DeviceSpec::parse(full);
  check(spec.job && spec.replica && spec.task && spec.type && spec.index,
        "a canonical name has all parts");
  check(spec.to_string() == full, "a canonical name prints as it is");
  check(canonicalize(full) == full, "a canonical name is its own");
  check(canonicalize(full, fallback) == full, "a canonical name needs no fallback");
  const DeviceSpec host = DeviceSpec::parse(host_of(full));
  check(host == spec.merged_with({.type = "CPU", .index = 0}), "a host differs in its device");
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tutti::fuzz;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view name = text.substr(0, text.find('\n'));
  const std::string_view fallback = text.substr(name.size() + (name.size() < size));
  const auto first = parsed(name), second = parsed(fallback);
  if (first) check_spec(*first);
  if (second) check_spec(*second);
  if (first && second) check_merged(*first, *second);
  check_canonical(name, {});
  check_canonical(name, fallback);
  return 0;
}
