// SPDX-License-Identifier: Apache-2.0
// A comparison of what ranks hold, line by line.
#pragma once

#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace tutti {
class Group;
}

namespace tutti::detail {

// A collective. InvalidArgumentError on all ranks if the lines of one are not those of rank 0, with
// the first that differs: "WHAT: ranks hold different models: line 3 is A on rank 0 and B on rank
// 2".
void expect_alike(const Group& group, const std::string& what,
                  const std::vector<std::string>& lines);

}  // namespace tutti::detail

#pragma GCC visibility pop
