// SPDX-License-Identifier: Apache-2.0
// Many operations of all kinds, in a random order that all ranks know: all exact, nothing grows.
// TUTTI_SOAK=N makes it N operations.
#include <malloc.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;

constexpr int kRanks = 4;

struct Usage {
  int64_t kilobytes, descriptors;
  // Without what malloc has free, and what is mapped of programs.
  static Usage now() {
    malloc_trim(0);
    std::ifstream status("/proc/self/status");
    std::string word;
    int64_t kilobytes = 0, part = 0;
    while (status >> word)
      if ((word == "RssAnon:" || word == "RssShmem:") && status >> part) kilobytes += part;
    const std::filesystem::directory_iterator fds("/proc/self/fd");
    return {kilobytes, std::distance(begin(fds), end(fds))};
  }
};

// What `rank` has at `i` in operation `step`. Small, so that all sums are exact.
int value(int step, int rank, size_t i) {
  return int((size_t(step) * 7 + size_t(rank) * 31 + i) % 97);
}

template <class T>
std::vector<T> values(int step, int rank, size_t count, size_t from = 0) {
  std::vector<T> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = T(value(step, rank, from + i));
  return all;
}

template <class T>
std::vector<T> sums(int step, size_t count, size_t from = 0) {
  std::vector<T> all(count);
  for (size_t i = 0; i < count; ++i)
    for (int r = 0; r < kRanks; ++r) all[i] += T(value(step, r, from + i));
  return all;
}

size_t size_for(std::mt19937& random) {
  switch (random() % 100) {
    case 0: return 40'000 + random() % 1000;
    case 1: return 16'380 + random() % 10;
    case 2:
    case 3: return 0;
    default: return random() % 40;
  }
}

class Soak {
 public:
  explicit Soak(const Group& group) : group_(group), me_(group.rank()) {}

  void step(int step, std::mt19937& random) {
    SCOPED_TRACE(fmt::format("rank {}, step {}", me_, step));
    const uint32_t kind = random() % 16;
    const size_t count = size_for(random);
    const int root = int(random() % kRanks);
    const auto mine = [&]<class T>(T) { return values<T>(step, me_, count); };
    switch (kind) {
      case 0:
      case 1: return in_background(step, count);
      case 2: {
        std::vector<double> data = mine(0.0);
        group_.all_reduce(data, ReduceOp::SUM, kLong);
        ASSERT_EQ(data, sums<double>(step, count));
        break;
      }
      case 3: {
        const Tensor data = group_.empty({int64_t(count)}, DType::float32);
        std::ranges::copy(mine(0.f), data.span<float>().begin());
        group_.all_reduce(data, ReduceOp::SUM, kLong);
        ASSERT_EQ(data.to_vector<float>(), sums<float>(step, count));
        break;
      }
      case 4: {
        const std::vector<Tensor> list{Tensor::of(std::span<const float>(mine(0.f))),
                                       Tensor::zeros({0}, DType::int8),
                                       Tensor::of(std::span<const int64_t>(mine(int64_t())))};
        group_.all_reduce(list, ReduceOp::SUM, kLong);
        ASSERT_EQ(list[0].to_vector<float>(), sums<float>(step, count));
        ASSERT_EQ(list[2].to_vector<int64_t>(), sums<int64_t>(step, count));
        break;
      }
      case 5: {
        std::vector<int> data = mine(0);
        group_.reduce(data, ReduceOp::SUM, root, kLong);
        ASSERT_EQ(data, me_ == root ? sums<int>(step, count) : mine(0));
        break;
      }
      case 6: {
        std::vector<int> data = mine(0);
        group_.broadcast(data, root, kLong);
        ASSERT_EQ(data, values<int>(step, root, count));
        break;
      }
      case 7: {
        std::vector<int16_t> all(count * kRanks);
        group_.all_gather(mine(int16_t()), all, kLong);
        for (int r = 0; r < kRanks; ++r)
          expect_part(all, size_t(r), values<int16_t>(step, r, count));
        break;
      }
      case 8: {
        std::vector<float> expected;
        for (int r = 0; r < kRanks; ++r) {
          const auto theirs = values<float>(step, r, size_t(r) * count % 50);
          expected.insert(expected.end(), theirs.begin(), theirs.end());
        }
        ASSERT_EQ(
            group_.all_gather_uneven(values<float>(step, me_, size_t(me_) * count % 50), kLong),
            expected);
        break;
      }
      case 9: {
        std::vector<int> out(count);
        group_.reduce_scatter(values<int>(step, me_, count * kRanks), out, ReduceOp::SUM, kLong);
        ASSERT_EQ(out, sums<int>(step, count, count * size_t(me_)));
        break;
      }
      case 10: {
        std::vector<int> out(count * kRanks);
        group_.all_to_all(values<int>(step, me_, count * kRanks), out, kLong);
        for (int r = 0; r < kRanks; ++r)
          expect_part(out, size_t(r), values<int>(step, r, count, count * size_t(me_)));
        break;
      }
      case 11: {
        std::vector<int> out(me_ == root ? count * kRanks : 0);
        group_.gather(mine(0), out, root, kLong);
        if (me_ == root)
          for (int r = 0; r < kRanks; ++r) expect_part(out, size_t(r), values<int>(step, r, count));
        break;
      }
      case 12: {
        std::vector<int> out(count);
        group_.scatter(values<int>(step, root, me_ == root ? count * kRanks : 0), out, root, kLong);
        ASSERT_EQ(out, values<int>(step, root, count, count * size_t(me_)));
        break;
      }
      case 13: group_.barrier(kLong); break;
      case 14: {
        const int to = (me_ + 1) % kRanks, from = (me_ + kRanks - 1) % kRanks;
        std::vector<int> in(count), other(3);
        const auto send = [&] {
          group_.send(values<int>(step, me_, 3), to, step + 1, kLong);
          group_.send(mine(0), to, step, kLong);
        };
        if (me_ % 2 == 0) send();
        group_.recv(in, from, step, kLong);  // before the one that was sent first
        group_.recv(other, from, step + 1, kLong);
        if (me_ % 2 == 1) send();
        ASSERT_EQ(in, values<int>(step, from, count));
        ASSERT_EQ(other, values<int>(step, from, 3));
        break;
      }
      case 15: {
        if (root != 0 || count % 4 != 0) break;  // not so often
        const Group part = group_.split(me_ / 2, -me_);
        std::vector<int> data{me_};
        part.all_reduce(data, ReduceOp::SUM, kLong);
        ASSERT_EQ(data[0], me_ / 2 ? 5 : 1);
        break;
      }
    }
  }

  void finish() {
    for (Pending& one : pending_) {
      one.work.wait();
      ASSERT_EQ(one.data, sums<int64_t>(one.step, one.data.size()));
    }
    pending_.clear();
  }

 private:
  struct Pending {
    int step;
    std::vector<int64_t> data;
    Work work{};
  };

  void in_background(int step, size_t count) {
    if (pending_.size() == 5) finish();
    Pending& one = pending_.emplace_back(Pending{step, values<int64_t>(step, me_, count)});
    one.work = group_.all_reduce_async(one.data, ReduceOp::SUM, kLong);
  }
  template <class T>
  void expect_part(const std::vector<T>& all, size_t which, const std::vector<T>& expected) {
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                           all.begin() + ptrdiff_t(which * expected.size())))
        << "part " << which;
  }

  const Group& group_;
  const int me_;
  std::deque<Pending> pending_;
};

class Soaking : public ::testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(, Soaking, ::testing::ValuesIn(kWorlds), name_of_world);

TEST_P(Soaking, IsExactAndGrowsNothing) {
  const char* const asked = std::getenv("TUTTI_SOAK");
  const int steps = asked ? std::atoi(asked) : TUTTI_TEST_SANITIZED ? 4'000 : 20'000;
  const Groups groups = GetParam().make(kRanks);
  Usage before{}, after{};
  on_ranks(groups, [&](const Group& group) {
    std::mt19937 random(20'240);  // the same on all ranks
    Soak soak(group);
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      soak.step(step, random);
      if (step != steps / 4 && step != steps - 1) continue;
      soak.finish();
      group.barrier(kLong);
      if (group.rank() == 0) (step == steps - 1 ? after : before) = Usage::now();
      group.barrier(kLong);
    }
  });
  EXPECT_EQ(after.descriptors, before.descriptors);
  const std::string world = GetParam().name;
  const bool keeps_all = world == "Secluded" || world == "Dealt";  // our own stand-in
  if (!TUTTI_TEST_SANITIZED && !keeps_all) {
    // Blocks on their way between hosts have memory that is touched only if there are many of them.
    EXPECT_LE(after.kilobytes, before.kilobytes + (world == "Apart" ? 16384 : 4096));
  }
}

}  // namespace
}  // namespace tutti
