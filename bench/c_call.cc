// SPDX-License-Identifier: Apache-2.0
// What a call through tutti/c.h costs beside one in C++: an all_reduce of 1 KiB in place, in a
// group of one and with two ranks on threads. usage: c_call [--rounds N]
#include <tutti/c.h>
#include <tutti/tutti.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "side_by_side.h"

using namespace tutti;
using namespace tutti::bench;

int main(int argc, char** argv) {
  const int rounds = argc > 2 && argv[1] == std::string("--rounds") ? std::atoi(argv[2]) : 501;
  constexpr int kCalls = 1000, kMost = 2;
  for (const int n : {1, kMost}) {
    const std::vector<Group> groups = Group::in_process(n);
    tutti_group* handles[kMost];
    if (tutti_group_in_process(n, handles) != TUTTI_OK) return std::puts(tutti_last_error()), 1;
    bool right = true;
    Timings timings;
    const auto work = [&](int rank) {
      std::vector<float> data(256, 1);
      const tutti_tensor tensor{data.data(), 256, TUTTI_FLOAT32, 0, nullptr, 0, 0};
      tutti_group* const handle = handles[rank];
      const Group& group = groups[size_t(rank)];
      int failed = 0;
      // A mean of equal values leaves them as they are, so that every call is like the first.
      const Timings mine = side_by_side(rounds, kCalls,
                                        {[&] { group.all_reduce(data, ReduceOp::MEAN); },
                                         [&] {
                                           failed |= tutti_all_reduce(handle, nullptr, &tensor,
                                                                      TUTTI_MEAN, nullptr, nullptr);
                                         }});
      for (const float x : data) failed |= x != 1;
      if (rank == 0) timings = mine;
      if (rank == 0) right = !failed;
    };
    std::thread other;
    if (n == 2) other = std::thread(work, 1);
    work(0);
    if (other.joinable()) other.join();
    if (!right) return std::puts("wrong"), 1;
    std::vector<double> more;
    for (size_t i = 0; i < size_t(rounds); ++i)
      more.push_back(timings.seconds[1][i] - timings.seconds[0][i]);
    std::printf("1 KiB, ranks: %d, C++: %.1f ns, C: %.1f ns, C takes %+.1f ns more\n", n,
                timings.median_of(0) * 1e9, timings.median_of(1) * 1e9, median(more) * 1e9);
    for (int r = 0; r < n; ++r) tutti_group_destroy(handles[r]);
  }
}
