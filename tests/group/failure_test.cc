// SPDX-License-Identifier: Apache-2.0
// A failure reaches every rank, names the rank and the cause, and stays.
#include <atomic>
#include <condition_variable>
#include <numeric>

#include "group/ranks.h"
#include "group/samples.h"
#include "support/expect.h"
#include "support/program.h"

namespace tutti {
namespace {

using namespace testing;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Two sides of a disagreement: what rank 1 calls while the others call something else.
struct Disagreement {
  const char* name;
  std::function<void(const Group&)> most, one;
  const char* most_says;
  const char* one_says;
};
void PrintTo(const Disagreement& disagreement, std::ostream* os) { *os << disagreement.name; }

std::vector<float> floats(size_t count) { return std::vector<float>(count, 1.f); }
std::vector<Tensor> tensors(std::initializer_list<int64_t> counts) {
  std::vector<Tensor> list;
  for (const int64_t count : counts) list.push_back(Tensor::zeros({count}, DType::float32));
  return list;
}

const Disagreement kDisagreements[] = {
    {"Operation", [](const Group& g) { g.all_reduce(floats(3), ReduceOp::SUM, kLong); },
     [](const Group& g) { g.all_reduce(floats(3), ReduceOp::MAX, kLong); },
     "all_reduce(float32[3], SUM)", "all_reduce(float32[3], MAX)"},
    {"Dtype", [](const Group& g) { g.all_reduce(floats(3), ReduceOp::SUM, kLong); },
     [](const Group& g) { g.all_reduce(std::vector<int32_t>(3), ReduceOp::SUM, kLong); },
     "all_reduce(float32[3], SUM)", "all_reduce(int32[3], SUM)"},
    {"Count", [](const Group& g) { g.all_reduce(floats(3), ReduceOp::SUM, kLong); },
     [](const Group& g) { g.all_reduce(floats(4), ReduceOp::SUM, kLong); },
     "all_reduce(float32[3], SUM)", "all_reduce(float32[4], SUM)"},
    {"CountAcrossAThreshold", [](const Group& g) { g.all_reduce(floats(3), ReduceOp::SUM, kLong); },
     [](const Group& g) { g.all_reduce(floats(300'000), ReduceOp::SUM, kLong); },
     "all_reduce(float32[3], SUM)", "all_reduce(float32[300000], SUM)"},
    {"Shape",
     [](const Group& g) {
       g.all_reduce(Tensor::zeros({2, 3}, DType::int8), ReduceOp::SUM, kLong);
     },
     [](const Group& g) {
       g.all_reduce(Tensor::zeros({3, 2}, DType::int8), ReduceOp::SUM, kLong);
     },
     "all_reduce(int8[2, 3], SUM)", "all_reduce(int8[3, 2], SUM)"},
    {"Root", [](const Group& g) { g.broadcast(floats(2), 0, kLong); },
     [](const Group& g) { g.broadcast(floats(2), 1, kLong); }, "broadcast(float32[2], root 0)",
     "broadcast(float32[2], root 1)"},
    {"Kind", [](const Group& g) { g.barrier(kLong); },
     [](const Group& g) { g.broadcast(floats(2), 0, kLong); }, "barrier()",
     "broadcast(float32[2], root 0)"},
    {"KindOfLargeOnes", [](const Group& g) { g.all_reduce(floats(400'000), ReduceOp::SUM, kLong); },
     [](const Group& g) { g.broadcast(floats(400'000), 0, kLong); },
     "all_reduce(float32[400000], SUM)", "broadcast(float32[400000], root 0)"},
    {"LengthOfAList",
     [](const Group& g) {
       g.all_reduce(tensors({2, 3}), ReduceOp::SUM, kLong);
     },
     [](const Group& g) {
       g.all_reduce(tensors({2, 3, 4}), ReduceOp::SUM, kLong);
     },
     "all_reduce(2 tensors, SUM)", "all_reduce(3 tensors, SUM)"},
    {"ListAndTensor",
     [](const Group& g) {
       g.all_reduce(tensors({2, 3}), ReduceOp::SUM, kLong);
     },
     [](const Group& g) { g.all_reduce(floats(2), ReduceOp::SUM, kLong); },
     "all_reduce(2 tensors, the first float32[2], SUM)", "all_reduce(float32[2], SUM)"},
    {"Gather",
     [](const Group& g) {
       std::vector<float> out(g.rank() ? 0 : 6);
       g.gather(floats(2), out, 0, kLong);
     },
     [](const Group& g) {
       std::vector<float> out;
       g.gather(floats(3), out, 0, kLong);
     },
     "gather(float32[2], root 0)", "gather(float32[3], root 0)"},
    {"Scatter",
     [](const Group& g) {
       std::vector<float> out(2);
       g.scatter(floats(6), out, 0, kLong);
     },
     [](const Group& g) {
       std::vector<float> out(1);
       g.scatter(floats(0), out, 0, kLong);
     },
     "scatter(float32[2], root 0)", "scatter(float32[1], root 0)"},
    {"ReduceScatter",
     [](const Group& g) {
       std::vector<float> out(2);
       g.reduce_scatter(floats(6), out, ReduceOp::SUM, kLong);
     },
     [](const Group& g) {
       std::vector<float> out(2);
       g.reduce_scatter(floats(6), out, ReduceOp::MIN, kLong);
     },
     "reduce_scatter(float32[6], SUM)", "reduce_scatter(float32[6], MIN)"},
    {"Uneven", [](const Group& g) { g.all_gather_uneven(floats(6), kLong); },
     [](const Group& g) { g.all_gather_uneven(std::vector<double>(6), kLong); },
     "all_gather(float32[18])", "all_gather(float64[18])"},
    {"RowsOfUneven",
     [](const Group& g) {
       g.all_gather_uneven(Tensor::zeros({2, 3}, DType::int8), kLong);
     },
     [](const Group& g) {
       g.all_gather_uneven(Tensor::zeros({2, 4}, DType::int8), kLong);
     },
     "all_gather(int8[18", "all_gather(int8[24"},
};

class Disagreements : public ::testing::TestWithParam<Disagreement> {};
INSTANTIATE_TEST_SUITE_P(, Disagreements, ::testing::ValuesIn(kDisagreements),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(Disagreements, ReachEveryRankWithBothSides) {
  for (const World& world : kWorlds)
    for (const int odd : {0, 1, 2}) {
      const Groups groups = world.make(3);
      on_ranks(groups, [](const Group& group) { group.barrier(kLong); });
      const bool sides =
          GetParam().name != std::string("Gather") && GetParam().name != std::string("Scatter");
      if (odd == 0 && !sides) continue;  // rank 0 is the root
      const auto errors = errors_on_ranks(groups, [&](const Group& group) {
        (group.rank() == odd ? GetParam().one : GetParam().most)(group);
      });
      const std::string who = fmt::format("rank {}", odd);
      expect_everywhere(errors, ErrorCode::invalid_argument,
                        {"operation #", GetParam().most_says, GetParam().one_says, who,
                         "must call the same operations in the same order"});
      // All ranks get the same words, in every later call, too.
      const auto first_line = [](const std::string& text) {
        return text.substr(0, text.find('\n'));
      };
      // Two hosts may find it at the same time, each with another of those that agree.
      const bool same_words = world.name != std::string_view("Dealt");
      const auto later = errors_on_ranks(groups, [](const Group& g) { g.barrier(kLong); });
      for (size_t r = 0; r < errors.size(); ++r) {
        const std::string first = first_line(errors[r].text);
        if (same_words) {
          EXPECT_EQ(first, first_line(errors[0].text));
        }
        EXPECT_EQ(later[r].code, ErrorCode::invalid_argument);
        EXPECT_EQ(first_line(later[r].text), first);
      }
    }
}

TEST(Disagreement, BetweenListsNamesTheFirstTensorThatDiffers) {
  struct Lists {
    std::vector<Tensor> rank_0, rank_1;
    std::string difference;
  };
  const auto zeros = [](const Shape& shape, DType dtype = DType::float32) {
    return Tensor::zeros(shape, dtype);
  };
  std::vector<Tensor> many(500, zeros({2})), others = many;
  others[400] = zeros({3});
  for (std::vector<Tensor>* list : {&many, &others})
    for (Tensor& tensor : *list) tensor = tensor.clone();
  const std::vector<Lists> cases{
      {{zeros({2}), zeros({3, 2}), zeros({5})},
       {zeros({2}), zeros({3, 4}), zeros({6})},
       "tensor 1 is float32[3, 2] on RANK0 and float32[3, 4] on RANK1"},
      {{zeros({2}), zeros({4}, DType::int8)},
       {zeros({2}), zeros({4}, DType::uint8)},
       "tensor 1 is int8[4] on RANK0 and uint8[4] on RANK1"},
      {{zeros({2, 3}), zeros({4})},
       {zeros({3, 2}), zeros({4})},
       "tensor 0 is float32[2, 3] on RANK0 and float32[3, 2] on RANK1"},
      {tensors({2, 3}), tensors({2, 3, 4}), "tensor 2 is float32[4] on RANK1 and missing on RANK0"},
      {many, others, "tensor 400 is float32[2] on RANK0 and float32[3] on RANK1"},
  };
  for (const World& world : kWorlds)
    for (const Lists& lists : cases) {
      const Groups groups = world.make(2);
      std::string expected = lists.difference;
      for (const int rank : {0, 1}) {
        const std::string address = detail::GroupAccess::impl(groups[0]).backend().address(rank);
        expected.replace(
            expected.find(fmt::format("RANK{}", rank)), 5,
            fmt::format("rank {}{}", rank, address.empty() ? "" : fmt::format(" ({})", address)));
      }
      const auto errors = errors_on_ranks(groups, [&](const Group& group) {
        group.all_reduce(group.rank() ? lists.rank_1 : lists.rank_0, ReduceOp::SUM, kLong);
      });
      expect_everywhere(errors, ErrorCode::invalid_argument,
                        {"rank 0", "rank 1", expected + "; all ranks"});
    }
}

TEST(Disagreement, DoesNotCoverATensorAndAListOfIt) {
  const Groups groups = Group::in_process(2);
  const std::vector<Tensor> list = tensors({5});
  std::vector<float> data = floats(5);
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    if (group.rank() == 0) group.all_reduce(list, ReduceOp::SUM, kLong);
    if (group.rank() == 1) group.all_reduce(data, ReduceOp::SUM, kLong);
  });
  for (const Caught& error : errors) EXPECT_EQ(error.text, "");
  EXPECT_EQ(list[0].to_vector<float>(), floats(5));
  EXPECT_EQ(data, floats(5));
}

TEST(Disagreement, BetweenSplitAndACollectiveIsFound) {
  Groups groups = Group::in_process(2);
  std::vector<Caught> errors(2);
  on_threads(2, [&](size_t r) {
    const Group group = std::move(groups[r]);  // a rank that is done leaves; none waits for it
    std::vector<int64_t> in(2, 1), out(4);
    errors[r] = caught([&] {
      if (r == 0) (void)group.split(0, 0);
      if (r == 1) group.all_gather(in, out, kLong);
    });
  });
  expect_everywhere(errors, ErrorCode::invalid_argument, {"rank 0 calls", "rank 1 calls"});
}

class Absence : public Ranks {};
INSTANTIATE_TEST_SUITE_P(, Absence, ranks({2, 3, 7}), name_of_ranks);

TEST_P(Absence, IsAnErrorAtTheDeadlineThatNamesTheAbsent) {
  const int absent = n - 1;
  on_ranks(groups, [](const Group& group) {
    for (int i = 0; i < 2; ++i) group.barrier(kLong);
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    if (group.rank() != absent) group.all_reduce(floats(4), ReduceOp::SUM, kSoon);
  });
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, *kSoon.timeout);
  EXPECT_LT(took, *kSoon.timeout + std::chrono::seconds(1));
  for (int r = 0; r < absent; ++r) {
    const Caught& error = errors[size_t(r)];
    EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
    EXPECT_THAT(error.text, ::testing::StartsWith("all_reduce #3 (float32[4], SUM): waited 0.2 s "
                                                  "for rank " +
                                                  std::to_string(absent)));
    EXPECT_THAT(error.text, HasSubstr(fmt::format("rank {} is at #2", absent)));
  }
  // It stays, and the rank that comes too late gets it, too.
  const auto later = errors_on_ranks(groups, [](const Group& g) { g.barrier(kLong); });
  expect_everywhere(later, ErrorCode::deadline_exceeded,
                    {"all_reduce #3 (float32[4], SUM): waited 0.2 s for rank"});
}

// Where a rank waits for all others at once; in rounds it waits for one of them.
TEST_P(Absence, OfSeveralNamesThemAll) {
  const std::vector<float> mine(static_cast<size_t>(n));
  std::vector<float> all(mine.size());
  const Caught error = caught([&] { groups[0].all_to_all(mine, all, kSoon); });
  EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
  const bool dealt = std::get<0>(GetParam()).name == std::string_view("Dealt");
  for (int r = 1; r < n; ++r) {
    if (dealt && n > 2 && r % 2) continue;  // those on this host are missed first
    EXPECT_THAT(error.text, HasSubstr(fmt::format("for rank {}", r)));
    EXPECT_THAT(error.text, HasSubstr(fmt::format("rank {} has not begun any operation", r)));
  }
}

// Every collective has a deadline, at every size.
TEST_P(Absence, IsNoticedByEveryOperation) {
  const std::vector<std::function<void(const Group&, size_t)>> calls{
      [](const Group& g, size_t c) { g.all_reduce(floats(c), ReduceOp::SUM, kSoon); },
      [](const Group& g, size_t c) { g.reduce(floats(c), ReduceOp::SUM, 0, kSoon); },
      [](const Group& g, size_t c) { g.broadcast(floats(c), 1, kSoon); },
      [](const Group& g, size_t c) {
        std::vector<float> out = floats(c * size_t(g.size()));
        g.all_gather(floats(c), out, kSoon);
      },
      [](const Group& g, size_t c) { g.all_gather_uneven(floats(c), kSoon); },
      [](const Group& g, size_t c) {
        g.all_reduce(tensors({int64_t(c), 3}), ReduceOp::SUM, kSoon);
      },
      [](const Group& g, size_t c) {
        const std::vector<float> in = floats(c * size_t(g.size()));
        std::vector<float> out(in);
        g.all_to_all(in, out, kSoon);
      },
  };
  std::vector<std::pair<size_t, size_t>> cases;
  for (size_t call = 0; call < calls.size(); ++call)
    for (const size_t count : {3, 300'000}) cases.push_back({call, count});
  on_threads(cases.size(), [&](size_t i) {
    const Groups ranks = std::get<0>(GetParam()).make(n);
    const Caught error = caught([&] { calls[cases[i].first](ranks[0], cases[i].second); });
    EXPECT_EQ(error.code, ErrorCode::deadline_exceeded) << i;
    // The first that it needs to hear, which are not the same in every layout.
    EXPECT_THAT(error.text, ::testing::ContainsRegex("waited 0.2 s for rank [1-9]"));
  });
}

TEST(Deadline, LetsARankSpeakThatWaitsForAnotherHost) {
  const Groups groups = on_hosts(3, [](int rank) { return rank / 2; });
  const auto errors = errors_on_ranks(groups, [](const Group& group) {
    std::vector<float> data(4);
    if (group.rank() == 0) group.barrier({.timeout = std::chrono::milliseconds(500)});
    if (group.rank() == 1) group.recv(data, 2, 0, {.timeout = std::chrono::milliseconds(300)});
  });
  for (const int rank : {0, 1})
    EXPECT_THAT(
        errors[size_t(rank)].text,
        ::testing::StartsWith("recv #1 (float32[4], from rank 2): waited 0.3 s for rank 2"));
}

// Rank 1 waits for 0, which waits for 2, all on hosts of their own.
TEST(Deadline, NamesTheEndOfAChainBetweenHosts) {
  const Groups groups = on_hosts(3, [](int rank) { return rank; });
  const auto errors = errors_on_ranks(groups, [](const Group& group) {
    std::vector<float> data(4);
    if (group.rank() == 0) group.recv(data, 2, 0, {.timeout = std::chrono::milliseconds(1000)});
    if (group.rank() == 1) group.recv(data, 0, 0, {.timeout = std::chrono::milliseconds(900)});
  });
  for (const int rank : {0, 1})
    EXPECT_THAT(errors[size_t(rank)].text,
                ::testing::StartsWith("recv #1 (float32[4], from rank 2): waited 1 s for rank 2"));
}

// Nor is it the default. The warning comes after that has passed, and is all there is.
TEST(Deadline, OfZeroIsNone) {
  const ProgramResult result = run_program("TUTTI_TIMEOUT=0.1 TUTTI_WARN_AFTER=0.3", "never");
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output,
              ::testing::StartsWith("all_reduce #301 (float32[5], SUM): has waited"));
  EXPECT_EQ(std::ranges::count(result.output, '\n'), 1) << result.output;
}

TEST(Abort, ReachesEveryRankWithItsReason) {
  for (const World& world : kWorlds) {
    const Groups groups = world.make(3);
    on_ranks(groups, [](const Group& group) { group.barrier(kLong); });
    const auto errors = errors_on_ranks(groups, [](const Group& group) {
      if (group.rank() == 1) group.abort("bad pixel in image 42");
      std::vector<float> data(4);
      if (group.rank() == 2) group.recv(data, 0, 0, kLong);  // which waits, too
      group.all_reduce(data, ReduceOp::SUM, kLong);
    });
    expect_everywhere(errors, ErrorCode::aborted, {"rank 1 failed: bad pixel in image 42"});
    const auto later = errors_on_ranks(groups, [](const Group& group) { group.barrier(kLong); });
    expect_everywhere(later, ErrorCode::aborted, {"rank 1 failed: bad pixel in image 42"});
  }
}

// C263: after 1, 7 and 11 operations.
TEST(GroupFailure, AfterSomeOperationsReachesEveryRank) {
  for (const int after : {1, 7, 11}) {
    const Groups groups = Group::in_process(4);
    const auto errors = errors_on_ranks(groups, [&](const Group& group) {
      for (int i = 0;; ++i) {
        if (i == after && group.rank() == 2) throw InvalidArgumentError("injected");
        group.all_reduce(floats(i % 2 ? 5 : 50'000), ReduceOp::SUM, kSoon);
      }
    });
    for (int r = 0; r < 4; ++r) {
      const Caught& error = errors[size_t(r)];
      if (r == 2) continue;
      EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
      EXPECT_THAT(error.text, HasSubstr(fmt::format("all_reduce #{} ", after + 1)));
      EXPECT_THAT(error.text, HasSubstr(fmt::format("for rank 2; rank 2 is at #{}", after)));
    }
  }
}

TEST(GroupFailure, BringsTheLastEightOperations) {
  const Groups groups = Group::in_process(2);
  on_ranks(groups, [](const Group& group) {
    for (int i = 0; i < 5; ++i) group.barrier(kLong);
    for (int i = 0; i < 6; ++i) group.broadcast(floats(2), 1, kLong);
  });
  const Caught error = caught([&] { groups[0].all_reduce(floats(9), ReduceOp::MAX, kSoon); });
  EXPECT_THAT(error.text,
              HasSubstr("\n  the last operations of rank 0: #5 barrier, #6 broadcast(float32[2], "
                        "root 1), #7 broadcast"));
  EXPECT_THAT(error.text, HasSubstr("#11 broadcast(float32[2], root 1), #12 all_reduce(float32[9], "
                                    "MAX) [whole] (not done)"));
  EXPECT_THAT(error.text, ::testing::Not(HasSubstr("#4 ")));
}

// C256: an error of a rank's own, with nothing under way, does not reach the others.
TEST(GroupFailure, OfAnArgumentLeavesTheGroupUsable) {
  const Groups groups = Group::in_process(2);
  on_ranks(groups, [](const Group& group) {
    std::vector<float> data{1};
    if (group.rank() == 1) {
      const Caught error = caught([&] { group.broadcast(data, 5, kLong); });
      EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    }
    group.all_reduce(data, ReduceOp::SUM, kLong);
    EXPECT_EQ(data[0], 2);
  });
}

TEST(Leaving, IsAnErrorOfRanksThatWaitForIt) {
  Groups groups = Group::in_process(3);
  on_ranks(groups, [](const Group& group) { group.barrier(kLong); });
  groups.pop_back();
  // The others may go on between themselves.
  groups[0].send(floats(3), 1, 0, kLong);
  std::vector<float> out(3);
  groups[1].recv(out, 0, 0, kLong);
  EXPECT_EQ(out, floats(3));
  const auto errors = errors_on_ranks(
      groups, [](const Group& g) { g.all_reduce(floats(4), ReduceOp::SUM, kLong); });
  expect_everywhere(
      errors, ErrorCode::unavailable,
      {"all_reduce #2 (float32[4], SUM): rank 2 has left the group; rank 2 is at #1"});
}

TEST(Leaving, WhileOthersWaitIsNoticedAtOnce) {
  for (const World& world : kWorlds) {
    Groups groups = world.make(3);
    std::atomic<int> waiting{0};
    std::vector<Caught> errors(3);
    const auto begin = std::chrono::steady_clock::now();
    on_threads(3, [&](size_t r) {
      if (r == 1) {
        while (waiting < 2) std::this_thread::yield();
        const Group last = std::move(groups[1]);
        return;
      }
      ++waiting;
      errors[r] = caught([&] { groups[r].barrier(kLong); });
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    for (const size_t r : {0, 2}) {
      EXPECT_EQ(errors[r].code, ErrorCode::unavailable);
      EXPECT_THAT(errors[r].text, HasSubstr("has left the group"));
      EXPECT_THAT(errors[r].text, HasSubstr("rank 1"));
    }
  }
}

// It has done its part, so no rank misses it.
TEST(Leaving, AfterTheLastOperationIsNoError) {
  for (int round = 0; round < 200; ++round) {
    Groups groups = Group::in_process(3);
    on_threads(3, [&](size_t r) {
      std::vector<float> data(round % 2 ? 3 : 30'000, 1);
      const Caught error = caught([&] { groups[r].all_reduce(data, ReduceOp::SUM, kLong); });
      const Group last = std::move(groups[r]);
      EXPECT_FALSE(error.code) << error.text;
      EXPECT_THAT(data, ::testing::Each(3));
    });
  }
}

TEST(Leaving, OfOneCopyIsNone) {
  Groups groups = Group::in_process(2);
  on_ranks(groups, [](const Group& group) {
    { const Group copy = group; }
    group.barrier(kLong);
  });
}

TEST(Loss, OfAProcessNamesItAndItsAddress) {
  std::atomic<bool> lost{false};
  const Groups groups =
      secluded(3, {.loss = [&](int rank) -> std::string {
                 return rank == 2 && lost ? "is lost: its process 7 has ended" : "";
               }});
  lost = true;
  // A rank that waits for it finds the loss, and tells the others.
  std::vector<float> out(3);
  const Caught error = caught([&] { groups[0].recv(out, 2, 0, kLong); });
  EXPECT_EQ(error.code, ErrorCode::unavailable);
  EXPECT_THAT(error.text, HasSubstr("rank 2 (host:5002) is lost: its process 7 has ended"));
  EXPECT_EQ(caught([&] { groups[1].barrier(kLong); }).code, ErrorCode::unavailable);
}

// An error that only one rank can meet is told to the others before it is thrown.
TEST(Loss, IsNotReportedForAMessageThatIsTooLong) {
  const auto network = std::make_shared<TestNetwork>();
  const Groups groups = on_hosts(
      2, [](int rank) { return rank; }, network);
  // As a rank of another version might: the group's number is that of the first group of rank 0.
  const std::vector<std::byte> longer(100);
  network->send({0, 1, group::ControlPlane::tag(2, group::MessageKind::header)}, longer.data(),
                longer.size());
  std::vector<float> got(1);
  EXPECT_ERROR(DataLossError, "recv #1 (float32[1], from rank 0): rank 0 (host0:5000) sent more",
               groups[1].recv(got, 0, 0, kLong));
}

TEST(GroupFailure, OfOneRanksMemoryReachesTheOthers) {
  std::atomic<bool> full{false};
  Groups groups = secluded(2, {.before_block = [&](int rank) {
                             if (rank == 0 && full) throw ResourceExhaustedError("rank 0 is full");
                           }});
  full = true;
  std::vector<Caught> errors(2);
  on_threads(2, [&](size_t r) {
    const Group group = std::move(groups[r]);  // a rank that is done leaves; none waits for it
    errors[r] = caught([&] { (void)group.split(0, 0); });
  });
  expect_everywhere(errors, ErrorCode::resource_exhausted, {"rank 0 is full"});
}

// Holds a rank at the first look it takes at another's memory.
class Gate {
 public:
  void pass(int rank) {
    if (rank != held_) return;
    std::unique_lock lock(mutex_);
    arrived_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::milliseconds(1500), [&] { return open_; });
    open_ = true;
  }
  void await_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_; });
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  const int held_ = 1;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool arrived_ = false, open_ = false;
};

// Once a call has thrown, its buffers are the caller's again: a slower rank that still works on
// them must be waited for, whatever the deadline.
TEST(GroupFailure, GivesBuffersBackOnlyWhenNoRankWorksOnThem) {
  Gate gate;
  Groups groups = secluded(2, {.reaches_all = true, .before_find = [&](int r) { gate.pass(r); }});
  std::vector<float> first(300'000, 1.f), second(300'000, 1.f);
  Caught error;
  std::thread slow([&] { caught([&] { groups[1].all_reduce(second, ReduceOp::SUM, kLong); }); });
  error = caught([&] { groups[0].all_reduce(first, ReduceOp::SUM, kSoon); });
  std::ranges::fill(first, 5.f);
  gate.open();
  slow.join();
  if (error.code) {
    EXPECT_EQ(error.code, ErrorCode::deadline_exceeded);
  }
  EXPECT_THAT(first, ::testing::Each(5.f)) << "rank 1 wrote to the memory of a call that had ended";
}

}  // namespace
}  // namespace tutti
