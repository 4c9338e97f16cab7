// SPDX-License-Identifier: Apache-2.0
// The last operations of a rank, kept for when something goes wrong.
#pragma once

#include <array>
#include <string>

#include "group/core/operation.h"
#include "group/core/way.h"

namespace tutti::group {

// For one thread at a time.
class Record {
 public:
  // Starts an operation, whose number the errors give. One that fails is never ended.
  void begin(const Description& what);
  void set_way(Way way) { at(count_ - 1).way = way; }
  void end() { at(count_ - 1).done = true; }
  uint64_t number() const { return count_; }  // of the last one

  std::string last(
      size_t operations) const;  // one line: "#3 barrier, #4 all_reduce(...) [whole] (not done)"
  std::string all() const;       // one line each, with times

 private:
  static constexpr size_t kKept = 256;
  struct Entry {
    Description what;
    int64_t started;  // nanoseconds, of base::time_of_day
    bool done;
    Way way = Way::only;
  };
  Entry& at(uint64_t number) { return entries_[number % kKept]; }
  const Entry& at(uint64_t number) const { return entries_[number % kKept]; }

  std::array<Entry, kKept> entries_;
  uint64_t count_ = 0;
};

}  // namespace tutti::group
