// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <tutti/compat.h>

#include <tutti/error.h>
#include <cmath>

#include "base/log.h"

namespace tutti {

CollectiveHints::CollectiveHints(int64_t bytes_per_pack, std::optional<double> timeout_seconds) {
  base::log_once(base::LogLevel::warning,
                 "CollectiveHints is deprecated; use CommunicationOptions");
  options_.bytes_per_pack = bytes_per_pack;
  if (timeout_seconds) {
    if (!(*timeout_seconds >= 0 && *timeout_seconds <= 1e9))
      throw InvalidArgumentError(fmt::format(
          "CollectiveHints: timeout_seconds is {}, expected 0 to 1e9", *timeout_seconds));
    options_.timeout = std::chrono::nanoseconds(std::llround(*timeout_seconds * 1e9));
  }
  options_.validate("CollectiveHints");
}

}  // namespace tutti
