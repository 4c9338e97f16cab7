// SPDX-License-Identifier: Apache-2.0
// Inputs of a model of LibTorch that end on some ranks before others.
#pragma once

#include <tutti/error.h>
#include <tutti/gradient_reducer.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::detail {

// Which ranks have a batch in the step that begins, as all of them know. Not thread-safe.
class TorchJoin {
 public:
  // A collective, at the beginning of a step: whether any rank has a batch. The mean of the step is
  // over those that do.
  bool join(GradientReducer& reducer, bool has_batch) {
    if (reducer.is_paused())
      throw FailedPreconditionError(
          "join: no_sync() is in force; join comes once in a step, before its first batch");
    const Group& group = reducer.group();
    std::vector<uint8_t> mine{has_batch}, all(size_t(group.size()));
    group.all_gather(mine, all);
    const auto first = std::find(all.begin(), all.end(), 1);
    const bool any = first != all.end();
    root_ = any ? int(first - all.begin()) : 0;
    is_skipped_ = any && !has_batch;
    const bool all_have = std::count(first, all.end(), 1) == group.size();
    // A step before that did not end has left its weights.
    if (any && (!all_have || is_weighted_)) reducer.begin(has_batch);
    if (any) is_weighted_ = !all_have;
    return any;
  }
  void end_step() { is_weighted_ = false; }

  int root() const { return root_; }  // the rank whose buffers count
  // Whether this rank is to skip the step; once.
  bool take_skipped() { return std::exchange(is_skipped_, false); }

 private:
  int root_ = 0;
  bool is_skipped_ = false, is_weighted_ = false;
};

}  // namespace tutti::detail
