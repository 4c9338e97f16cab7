// SPDX-License-Identifier: Apache-2.0
// A small program with a timeline:
//   program advice [N]       one span with arguments, N times
//   program early RANK       is told its rank before its first span
//   program late RANK        and after it
//   program parent COMMAND   runs a command while its own timeline is open
#include <cstdlib>
#include <string>

#include "observe/timeline.h"

using namespace tutti::observe;

namespace {

void join(int rank) {
  name_timeline_after(rank);
  describe_timeline(
      {.rank = rank, .ranks = 5, .host = "left", .job = "run 1", .add_ns = -1500, .error_ns = 250});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argv[1];
  if (what == "early") join(std::atoi(argv[2]));
  const int times = what == "advice" && argc > 2 ? std::atoi(argv[2]) : 1;
  for (int i = 0; i < times; ++i) {
    Span span("first");
    span.set("bytes", 12);
    span.set("advice", "the dense form \"is\" smaller");
    span.set("bytes", 13);
  }
  if (what == "late") join(std::atoi(argv[2]));
  if (what == "parent" && std::system(argv[2]) != 0) return 1;
  const Span span("second");
}
