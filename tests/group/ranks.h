// SPDX-License-Identifier: Apache-2.0
// Ranks on threads, for tests: every rank runs the same function, and all threads are joined.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tutti/error.h>
#include <tutti/group.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "group/hosts.h"
#include "group/secluded.h"
#include "support/reference.h"

namespace tutti::testing {

using Groups = std::vector<Group>;
using std::chrono::milliseconds;

// What is to go wrong goes wrong soon; what is to go well has long enough on a busy machine.
inline const CommunicationOptions kSoon{.timeout = milliseconds(200)};
inline const CommunicationOptions kLong{.timeout = std::chrono::seconds(40)};

// Runs f(rank) on a thread for each of `n`.
template <class F>
void on_threads(size_t n, const F& f) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < n; ++i) threads.emplace_back([&f, i] { f(i); });
  for (std::thread& thread : threads) thread.join();
}

// Runs f(group) on every rank at once. An error is a failure of the test.
template <class F>
void on_ranks(const Groups& groups, const F& f) {
  on_threads(groups.size(), [&](size_t r) {
    try {
      f(groups[r]);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << r << " threw: " << e.what();
    }
  });
}

struct Caught {
  std::optional<ErrorCode> code;  // none: nothing was thrown
  std::string text;
};

template <class F>
Caught caught(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}

// What f(group) throws on each rank.
template <class F>
std::vector<Caught> errors_on_ranks(const Groups& groups, const F& f) {
  std::vector<Caught> all(groups.size());
  on_threads(groups.size(), [&](size_t r) { all[r] = caught([&] { f(groups[r]); }); });
  return all;
}

// Expects this error on every rank, with these parts in its text.
inline void expect_everywhere(const std::vector<Caught>& all, ErrorCode code,
                              const std::vector<std::string>& parts) {
  for (size_t r = 0; r < all.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    EXPECT_EQ(all[r].code, std::optional(code)) << all[r].text;
    for (const std::string& part : parts) EXPECT_THAT(all[r].text, ::testing::HasSubstr(part));
  }
}

// Where the ranks are: they reach all of each other's memory, or only what the group has allocated,
// or none, since each is on a host of its own, or on one of two hosts in turn.
struct World {
  const char* name;
  Groups (*make)(int);
};
inline void PrintTo(const World& world, std::ostream* os) { *os << world.name; }
inline constexpr World kWorlds[] = {
    {"InProcess", [](int n) { return Group::in_process(n); }},
    {"Secluded", [](int n) { return secluded(n); }},
    {"Apart", [](int n) { return on_hosts(n, [](int r) { return r; }); }},
    {"Dealt", [](int n) { return on_hosts(n, [](int r) { return r % 2; }); }},
};

// A fixture whose tests run for 1, 2, 3, 4 and 7 ranks in all worlds; under a sanitizer for 2
// and 5.
class Ranks : public ::testing::TestWithParam<std::tuple<World, int>> {
 protected:
  const int n = std::get<1>(GetParam());
  const Groups groups = std::get<0>(GetParam()).make(n);
};
using RanksInfo = ::testing::TestParamInfo<std::tuple<World, int>>;
inline std::string name_of_ranks(const RanksInfo& test) {
  return std::get<0>(test.param).name + std::to_string(std::get<1>(test.param));
}
inline std::string name_of_world(const ::testing::TestParamInfo<World>& test) {
  return test.param.name;
}
inline auto ranks(std::initializer_list<int> numbers) {
  return ::testing::Combine(::testing::ValuesIn(kWorlds), ::testing::ValuesIn(numbers));
}
inline auto usual_ranks() { return TUTTI_TEST_SANITIZED ? ranks({2, 5}) : ranks({1, 2, 3, 4, 7}); }
#define TUTTI_ON_RANKS(fixture)                                        \
  INSTANTIATE_TEST_SUITE_P(, fixture, ::tutti::testing::usual_ranks(), \
                           ::tutti::testing::name_of_ranks)

}  // namespace tutti::testing
