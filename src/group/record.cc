// SPDX-License-Identifier: Apache-2.0
#include "group/record.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/world.h"

namespace tutti::group {

namespace {

std::string text_of(Way way) { return way == Way::only ? "" : fmt::format(" [{}]", name(way)); }

}  // namespace

void Record::begin(const Description& what) {
  at(count_++) = {what, base::time_of_day().time_since_epoch().count(), false};
}

std::string Record::last(size_t operations) const {
  std::string text;
  for (uint64_t i = count_ - std::min<uint64_t>(count_, operations); i < count_; ++i) {
    const std::string details = at(i).what.to_string();
    text += fmt::format("{}#{} {}{}{}{}", text.empty() ? "" : ", ", i + 1, name(at(i).what.kind),
                        details.empty() ? "" : fmt::format("({})", details), text_of(at(i).way),
                        at(i).done ? "" : " (not done)");
  }
  return text;
}

std::string Record::all() const {
  std::string text;
  for (uint64_t i = count_ - std::min<uint64_t>(count_, kKept); i < count_; ++i) {
    const Entry& entry = at(i);
    text +=
        fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03} #{} {}({}){} {}\n",
                    fmt::gmtime(std::time_t(entry.started / 1'000'000'000)),
                    entry.started / 1'000'000 % 1000, i + 1, name(entry.what.kind),
                    entry.what.to_string(), text_of(entry.way), entry.done ? "done" : "not done");
  }
  return text;
}

}  // namespace tutti::group
