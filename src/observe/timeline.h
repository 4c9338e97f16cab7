// The timeline: with TUTTI_TIMELINE=file.json, every operation lands in the file in Chrome's trace
// format.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tutti::observe {

// Is there a timeline? The first call opens it. UnavailableError where its file cannot be written.
bool timeline_enabled();

// One operation, from construction to destruction. Does nothing, and costs one comparison, without
// a timeline. Spans of a thread nest; the layers beneath an operation add to it through `annotate`.
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
  void set(const char* key, std::string value);
  void set(const char* key, int64_t value);

  // The innermost span of this thread that is being recorded; null where there is none.
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
