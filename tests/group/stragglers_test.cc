// SPDX-License-Identifier: Apache-2.0
// The straggler report: what figures say, and what groups log.
#include "group/stragglers.h"

#include <atomic>
#include <mutex>

#include "base/log.h"
#include "group/group_impl.h"
#include "group/ranks.h"

namespace tutti {
namespace {

using namespace testing;
using namespace std::chrono_literals;
using group::Stragglers;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<int64_t> ms(std::vector<int64_t> milliseconds) {
  for (int64_t& value : milliseconds) value *= 1'000'000;
  return milliseconds;
}

TEST(Straggler, IsTheRankThatWaitsLeast) {
  const group::Straggler found = group::straggler(ms({1300, 1320, 10, 1310}), 10s);
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.waited, 1300ms);  // the median, less what the slowest itself spends
  EXPECT_DOUBLE_EQ(found.share, 0.13);
  EXPECT_EQ(group::straggler(ms({10, 30}), 100ms).rank, 0);
  EXPECT_EQ(group::straggler(ms({50, 40, 10}), 100ms).waited, 35ms);
}

TEST(Straggler, NeedsTheOthersToHaveWaited) {
  EXPECT_EQ(group::straggler(ms({}), 1s).rank, -1);
  EXPECT_EQ(group::straggler(ms({100}), 1s).rank, -1);
  EXPECT_EQ(group::straggler(ms({100, 100, 100}), 1s).rank, -1);
  EXPECT_EQ(group::straggler(ms({100, 119, 119}), 1s).rank, -1) << "less than 2 % of the time";
  EXPECT_EQ(group::straggler(ms({100, 120, 120}), 1s).rank, 0);
  EXPECT_EQ(group::straggler(std::vector<int64_t>{0, 999'999}, 2ms).rank, -1) << "less than 1 ms";
  EXPECT_EQ(group::straggler(ms({100, 0, 0, 0}), 1s).rank, -1) << "only one waited, for all";
  EXPECT_EQ(group::straggler(ms({0, 5}), 0s).rank, 0);
}

TEST(Straggler, IsToldInOneLine) {
  EXPECT_EQ(group::described({2, 1300ms, 0.18}, "rank 2 (worker-2:5000)", 100),
            "stragglers: over the last 100 operations rank 2 (worker-2:5000) was the slowest; the "
            "others waited 1.3 s for it (18 % of the time)");
  EXPECT_EQ(group::described({}, "", 1), "stragglers: over the last operation no rank stood out");
}

TEST(Stragglers, AddUpTheTimeInCollectives) {
  Stragglers stragglers(3);
  const Stragglers::Clock::time_point start(1h);
  EXPECT_FALSE(stragglers.add(start - 5s, start)) << "the first brings the ranks together";
  EXPECT_EQ(stragglers.spent(), 0s);
  EXPECT_FALSE(stragglers.add(start + 1s, start + 3s));
  EXPECT_TRUE(stragglers.add(start + 4s, start + 5s));
  EXPECT_EQ(stragglers.spent(), 3s);
  EXPECT_EQ(stragglers.restart(start + 6s), 6s);
  EXPECT_EQ(stragglers.spent(), 0s);
  EXPECT_FALSE(stragglers.add(start + 7s, start + 8s));
  EXPECT_EQ(stragglers.spent(), 1s);
}

// What is logged while it lives.
class Log {
 public:
  Log() {
    base::set_log_sink([this](base::LogLevel level, std::string_view text) {
      std::lock_guard lock(mutex_);
      if (text.starts_with("stragglers:")) lines_.emplace_back(level, text);
    });
  }
  ~Log() { base::set_log_sink(nullptr); }
  const std::vector<std::pair<base::LogLevel, std::string>>& lines() const { return lines_; }

 private:
  std::mutex mutex_;
  std::vector<std::pair<base::LogLevel, std::string>> lines_;
};

Groups reporting(int n, int every) {
  Groups groups;
  for (auto& backend : group::make_in_process(n))
    groups.push_back(
        detail::GroupAccess::make(std::make_shared<detail::GroupImpl>(std::move(backend), every)));
  return groups;
}

// The slow rank begins its work when the others are about to wait for it.
void compute_slowly(const Groups& groups, int slow, int operations) {
  std::atomic<int> there{0};
  on_ranks(groups, [&](const Group& group) {
    std::vector<float> data(100, 1.f);
    for (int i = 1; i <= operations; ++i) {
      if (group.rank() == slow) {
        while (there.load() < i * (group.size() - 1)) std::this_thread::yield();
        std::this_thread::sleep_for(20ms);
      } else {
        ++there;
      }
      group.all_reduce(data, ReduceOp::MEAN);
    }
    EXPECT_EQ(data[0], 1.f);
  });
}

TEST(StragglerReport, NamesTheSlowRank) {
  for (const int slow : {2, 0}) {
    const Log log;
    compute_slowly(reporting(3, 5), slow, 11);
    ASSERT_EQ(log.lines().size(), 2u) << "one line in all for every 5 operations";
    for (const auto& [level, text] : log.lines()) {
      EXPECT_EQ(level, base::LogLevel::warning);
      EXPECT_THAT(text, StartsWith("stragglers: over the last 5 operations rank " +
                                   std::to_string(slow) + " was the slowest; the others waited "));
    }
  }
}

TEST(StragglerReport, CoversSubgroupsAndOperationsInTheBackground) {
  const Log log;
  on_ranks(reporting(3, 4), [](const Group& group) {
    const Group part = group.split(0, -group.rank());  // two operations, in reverse
    std::vector<int> data(10, 1);
    std::vector<Work> works;
    for (int i = 0; i < 4; ++i) works.push_back(part.all_reduce_async(data, ReduceOp::MAX));
    for (Work& work : works) work.wait();
    EXPECT_EQ(data[0], 1);
    group.barrier();
    group.barrier();
  });
  ASSERT_EQ(log.lines().size(), 2u);
  for (const auto& line : log.lines()) EXPECT_THAT(line.second, HasSubstr("the last 4 operations"));
}

TEST(StragglerReport, IsNoneForAGroupOfOneOrWithoutTheSetting) {
  const Log log;
  for (const Groups& groups : {reporting(1, 1), reporting(2, 0)})
    on_ranks(groups, [](const Group& group) {
      for (int i = 0; i < 20; ++i) group.barrier();
    });
  EXPECT_TRUE(log.lines().empty());
}

// The comparison is an operation like others: numbered, recorded, and checked.
TEST(StragglerReport, OnSomeRanksOnlyIsAnErrorThatNamesTheSetting) {
  auto backends = group::make_in_process(2);
  const Groups groups{
      detail::GroupAccess::make(std::make_shared<detail::GroupImpl>(std::move(backends[0]), 1)),
      detail::GroupAccess::make(std::make_shared<detail::GroupImpl>(std::move(backends[1]), 0))};
  const auto errors = errors_on_ranks(groups, [](const Group& group) {
    for (int i = 0; i < 2; ++i) group.barrier(kLong);
  });
  expect_everywhere(errors, ErrorCode::invalid_argument,
                    {"operation #2: rank 0 calls all_gather(int64[1], for TUTTI_STRAGGLERS), and "
                     "rank 1 calls barrier()"});
}

}  // namespace
}  // namespace tutti
