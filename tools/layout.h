// SPDX-License-Identifier: Apache-2.0
// tutti info --job: where the ranks of a job are, what moves data between them, and why.
#pragma once

namespace tutti::tools {

struct LayoutOptions {
  bool json = false;
  bool measure = false;  // what messages take, too
};
// A collective: every rank of the job calls it, and rank 0 prints. Returns the exit code.
int show_layout(const LayoutOptions& options);

}  // namespace tutti::tools
