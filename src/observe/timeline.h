// SPDX-License-Identifier: Apache-2.0
// The timeline: with TUTTI_TIMELINE=file.json, every operation lands in the file in Chrome's trace
// format. A process that is rank 2 of a job writes file.rank2.json, which says whose it is and what
// to add to its times, so that `tutti timeline merge` can put those of all ranks together.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tutti::observe {

// Is there a timeline? The first call opens it. UnavailableError if its file cannot be opened. A
// disk that is full, then or later, is a warning: the timeline ends there, and the job goes on.
bool timeline_enabled();

// What to add to the steady clock of this process to get the times of its timeline; 0 without a
// timeline.
int64_t timeline_epoch_ns();

// This process is that rank of a job: its file bears the rank from now on. Call it before the
// timeline opens, or later; nothing is lost.
void name_timeline_after(int rank);

// Which part of a job a timeline is.
struct TimelinePart {
  int rank = 0;
  int ranks = 1;  // of the job
  std::string host;
  std::string job;       // the same in all parts of one run, and in no other
  int64_t add_ns = 0;    // to the times of this part, to have those of the job's first
  int64_t error_ns = 0;  // by which add_ns may be wrong
};
// Writes it to the file, once.
void describe_timeline(const TimelinePart& part);
// The name of the event that holds it, whose arguments are "rank", "ranks", "host", "job", "add_us"
// and "error_us".
inline constexpr const char* kTimelinePart = "tutti_timeline_part";

// One operation, from construction to destruction. Does nothing, and costs one comparison, without
// a timeline. Spans of a thread nest; the layers beneath an operation add to it through `current`.
class Span {
 public:
  explicit Span(const char* name) {
    if (timeline_enabled()) begin(name);
  }
  ~Span() {
    if (name_) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  explicit operator bool() const { return name_ != nullptr; }
  // An argument of the span, as viewers show it: "bytes", "advice". The last value of a key counts.
  void set(const char* key, std::string value);
  void set(const char* key, int64_t value);

  // The innermost span of this thread that is being recorded; null if there is none.
  static Span* current();

 private:
  void begin(const char* name);
  void end();

  const char* name_ = nullptr;
  int64_t start_ns_ = 0;
  Span* outer_ = nullptr;
  std::vector<std::pair<const char*, std::string>> texts_;
  std::vector<std::pair<const char*, int64_t>> numbers_;
};

}  // namespace tutti::observe
