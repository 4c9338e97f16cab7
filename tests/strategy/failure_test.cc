// SPDX-License-Identifier: Apache-2.0
// A replica that fails, leaves, disagrees or is late: all others get an error that names it, the
// caller gets one error, and the strategy works on.
#include <atomic>
#include <random>
#include <stdexcept>

#include "strategy/strategies.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using testing::cpu;
using testing::cpus;
using ::testing::HasSubstr;
using testing::number;

// What each replica got from the library.
class Notes {
 public:
  struct Note {
    bool threw = false;
    std::optional<ErrorCode> code;  // none for exceptions of the user's
    std::string text;
  };

  explicit Notes(int replicas) : notes_(size_t(replicas)) {}
  template <class F>
  void of(const ReplicaContext& ctx, F&& f) {
    Note& note = notes_[size_t(ctx.local_replica_id())];
    try {
      f();
    } catch (const Error& e) {
      note = {true, e.code(), e.what()};
      throw;
    } catch (const std::exception& e) {
      note = {true, {}, e.what()};
      throw;
    }
  }
  const Note& operator[](int replica) const { return notes_[size_t(replica)]; }

 private:
  std::vector<Note> notes_;
};

void sum(ReplicaContext& ctx, ReduceOp op = ReduceOp::SUM) { ctx.all_reduce(op, number(1)); }

void expect_works(Strategy& strategy) {
  const int n = strategy.num_replicas_in_sync();
  strategy.run([&](ReplicaContext& ctx) {
    EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, number(1)).item<float>(), float(n));
  });
}

std::string replica(int i) { return "replica " + std::to_string(i); }

// All replicas but `culprit` got an error with this code that names it.
void expect_named(const Notes& notes, int n, int culprit, ErrorCode code, std::string_view text) {
  for (int i = 0; i < n; ++i) {
    if (i == culprit) continue;
    EXPECT_EQ(notes[i].code, code) << replica(i) << ": " << notes[i].text;
    EXPECT_THAT(notes[i].text, HasSubstr(replica(culprit)));
    EXPECT_THAT(notes[i].text, HasSubstr(std::string(text)));
  }
}

using Misdeed = void (*)(Strategy&, int culprit);

void one_throws(Strategy& s, int culprit) {
  const int n = s.num_replicas_in_sync();
  Notes notes(n);
  EXPECT_ERROR(std::domain_error, replica(culprit) + " is unhappy", s.run([&](ReplicaContext& ctx) {
    if (ctx.local_replica_id() == culprit)
      throw std::domain_error(replica(culprit) + " is unhappy");
    notes.of(ctx, [&] { sum(ctx); });
  }));
  expect_named(notes, n, culprit, ErrorCode::aborted, "is unhappy");
}

void several_throw(Strategy& s, int lowest) {
  const int n = s.num_replicas_in_sync();
  Notes notes(n);
  EXPECT_ERROR(std::domain_error, replica(lowest) + " is unhappy", s.run([&](ReplicaContext& ctx) {
    const int id = ctx.local_replica_id();
    if (id >= lowest) throw std::domain_error(replica(id) + " is unhappy");
    notes.of(ctx, [&] { sum(ctx); });
  }));
  for (int i = 0; i < lowest; ++i) {
    EXPECT_EQ(notes[i].code, ErrorCode::aborted);
    EXPECT_THAT(notes[i].text, HasSubstr("is unhappy"));
  }
}

void one_returns_early(Strategy& s, int culprit) {
  const int n = s.num_replicas_in_sync();
  Notes notes(n);
  EXPECT_ERROR(FailedPreconditionError, replica(culprit), s.run([&](ReplicaContext& ctx) {
    if (ctx.local_replica_id() != culprit) notes.of(ctx, [&] { sum(ctx); });
  }));
  expect_named(notes, n, culprit, ErrorCode::failed_precondition, "returned");
}

// Every replica calls `usual` but the culprit, which calls `other`.
template <class A, class B>
void disagree(Strategy& s, int culprit, const A& usual, const B& other) {
  const int n = s.num_replicas_in_sync();
  Notes notes(n);
  EXPECT_ERROR(InvalidArgumentError, replica(culprit), s.run([&](ReplicaContext& ctx) {
    notes.of(ctx, [&] { ctx.local_replica_id() == culprit ? other(ctx) : usual(ctx); });
  }));
  expect_named(notes, n, culprit, ErrorCode::invalid_argument, "disagree");
  EXPECT_EQ(notes[culprit].code, ErrorCode::invalid_argument);
}

void other_op(Strategy& s, int culprit) {
  disagree(
      s, culprit, [](ReplicaContext& ctx) { sum(ctx); },
      [](ReplicaContext& ctx) { sum(ctx, ReduceOp::MAX); });
}

void other_dtype(Strategy& s, int culprit) {
  disagree(
      s, culprit, [](ReplicaContext& ctx) { sum(ctx); },
      [](ReplicaContext& ctx) { ctx.all_reduce(ReduceOp::SUM, Tensor::scalar<double>(1)); });
}

void other_number_of_tensors(Strategy& s, int culprit) {
  const auto all_reduce = [](size_t count) {
    return [count](ReplicaContext& ctx) {
      ctx.all_reduce(ReduceOp::SUM, std::vector<Tensor>(count, number(1)));
    };
  };
  disagree(s, culprit, all_reduce(2), all_reduce(3));
}

void other_method(Strategy& s, int culprit) {
  disagree(
      s, culprit, [](ReplicaContext& ctx) { sum(ctx); },
      [](ReplicaContext& ctx) { ctx.merge_call([](Strategy&) { ADD_FAILURE(); }); });
}

void other_order(Strategy& s, int culprit) {
  const auto gather = [](ReplicaContext& ctx) { ctx.all_gather(Tensor::of<float>({1}), 0); };
  disagree(
      s, culprit,
      [&](ReplicaContext& ctx) {
        sum(ctx);
        gather(ctx);
      },
      [&](ReplicaContext& ctx) {
        gather(ctx);
        sum(ctx);
      });
}

void other_axis(Strategy& s, int culprit) {
  const auto gather = [](int64_t axis) {
    return [axis](ReplicaContext& ctx) {
      ctx.all_gather(Tensor::zeros({1, 1}, DType::float32), axis);
    };
  };
  disagree(s, culprit, gather(0), gather(1));
}

void other_merge_function(Strategy& s, int culprit) {
  disagree(
      s, culprit, [](ReplicaContext& ctx) { ctx.merge_call([](Strategy&) { ADD_FAILURE(); }); },
      [](ReplicaContext& ctx) { ctx.merge_call([](Strategy&) { ADD_FAILURE() << "other"; }); });
}

void weight_on_one(Strategy& s, int culprit) {
  disagree(
      s, culprit, [](ReplicaContext& ctx) { sum(ctx, ReduceOp::MEAN); },
      [](ReplicaContext& ctx) { ctx.all_reduce(ReduceOp::MEAN, number(1), {.weight = 1.0}); });
}

// The one that came last runs the function and gets the exception itself.
void merge_function_throws(Strategy& s, int) {
  const int n = s.num_replicas_in_sync();
  Notes notes(n);
  EXPECT_ERROR(std::domain_error, "merging failed", s.run([&](ReplicaContext& ctx) {
    notes.of(ctx,
             [&] { ctx.merge_call([](Strategy&) { throw std::domain_error("merging failed"); }); });
  }));
  int original = 0;
  for (int i = 0; i < n; ++i) {
    EXPECT_TRUE(notes[i].threw);
    EXPECT_THAT(notes[i].text, HasSubstr("merging failed"));
    if (!notes[i].code) {
      ++original;
    } else {
      EXPECT_EQ(notes[i].code, ErrorCode::aborted);
    }
  }
  EXPECT_EQ(original, 1);
}

// Released only when the others have given up, so that no clock decides.
void one_is_late(Strategy& s, int culprit) {
  const int n = s.num_replicas_in_sync();
  Notes notes(n);
  std::atomic<int> gave_up = 0;
  const AllReduceOptions hurry{.communication = {.timeout = 1ms}};
  EXPECT_ERROR(DeadlineExceededError, replica(culprit), s.run([&](ReplicaContext& ctx) {
    notes.of(ctx, [&] {
      if (ctx.local_replica_id() == culprit) {
        for (int seen; (seen = gave_up) < n - 1;) gave_up.wait(seen);
        return sum(ctx);  // its own next call
      }
      try {
        ctx.all_reduce(ReduceOp::SUM, number(1), hurry);
      } catch (...) {
        ++gave_up;
        gave_up.notify_all();
        throw;
      }
    });
  }));
  expect_named(notes, n, culprit, ErrorCode::deadline_exceeded, "all_reduce");
  EXPECT_EQ(notes[culprit].code, ErrorCode::deadline_exceeded);
}

struct Case {
  const char* name;
  Misdeed commit;
};
void PrintTo(const Case& failure, std::ostream* os) { *os << failure.name; }
const Case kCases[] = {
    {"OneThrows", one_throws},
    {"SeveralThrow", several_throw},
    {"OneReturnsEarly", one_returns_early},
    {"OneAsksForAnotherOp", other_op},
    {"OneHasAnotherDtype", other_dtype},
    {"OneHasAnotherNumberOfTensors", other_number_of_tensors},
    {"OneCallsAnotherMethod", other_method},
    {"OneCallsInAnotherOrder", other_order},
    {"OneGathersAlongAnotherAxis", other_axis},
    {"OneHasAnotherMergeFunction", other_merge_function},
    {"OneHasAWeight", weight_on_one},
    {"TheMergeFunctionThrows", merge_function_throws},
    {"OneIsLate", one_is_late},
};

class ReplicaFailure : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(When, ReplicaFailure, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

TEST_P(ReplicaFailure, NamesTheReplicaAndLeavesTheStrategyWorking) {
  for (const int n : {2, 3, 4, 7}) {
    MirroredStrategy strategy(cpus(size_t(n)));
    for (int culprit = 0; culprit < n; ++culprit) {
      SCOPED_TRACE(::testing::Message() << "replica " << culprit << " of " << n);
      GetParam().commit(strategy, culprit);
      expect_works(strategy);
    }
  }
}

TEST(ReplicaFailures, OfAllKindsInARowAreEachReportedExactly) {
  MirroredStrategy strategy(cpus(3));
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const Case& c = kCases[random() % std::size(kCases)];
    const int culprit = int(random() % 3);
    SCOPED_TRACE(::testing::Message() << "failure " << i << ": " << c.name << ", " << culprit);
    c.commit(strategy, culprit);
    if (random() % 4 == 0) expect_works(strategy);
    if (::testing::Test::HasFailure()) return;
  }
}

class AfterFailure : public ::testing::Test {
 protected:
  MirroredStrategy strategy_{cpus(3)};
};

TEST_F(AfterFailure, OfALateReplicaRunReturnsWhenItHasReturned) {
  std::atomic<int> gave_up = 0;
  std::atomic<bool> returned = false;
  EXPECT_ERROR(DeadlineExceededError, "replica 1", strategy_.run([&](ReplicaContext& ctx) {
    if (ctx.local_replica_id() == 1) {
      for (int seen; (seen = gave_up) < 2;) gave_up.wait(seen);
      returned = true;
      return;
    }
    try {
      ctx.all_reduce(ReduceOp::SUM, number(1), {.communication = {.timeout = 1ms}});
    } catch (...) {
      ++gave_up;
      gave_up.notify_all();
      throw;
    }
  }));
  EXPECT_TRUE(returned);
  expect_works(strategy_);
}

TEST_F(AfterFailure, EveryFurtherCallOfThePeersFailsToo) {
  EXPECT_ERROR(std::domain_error, "unhappy", strategy_.run([](ReplicaContext& ctx) {
    if (ctx.local_replica_id() == 1) throw std::domain_error("unhappy");
    for (int i = 0; i < 3; ++i) EXPECT_ERROR(AbortedError, "replica 1", sum(ctx));
    EXPECT_ERROR(AbortedError, "replica 1", ctx.merge_call([](Strategy&) { ADD_FAILURE(); }));
  }));
  expect_works(strategy_);
}

// What a peer throws because another one failed is not what went wrong.
TEST_F(AfterFailure, TheOriginalExceptionWinsOverThoseOfLowerReplicas) {
  EXPECT_ERROR(std::domain_error, "unhappy", strategy_.run([](ReplicaContext& ctx) {
    if (ctx.local_replica_id() == 2) throw std::domain_error("unhappy");
    try {
      sum(ctx);
    } catch (const AbortedError&) {
      throw std::logic_error("cleaning up");
    }
  }));
}

TEST_F(AfterFailure, ExceptionsOfAnyTypeComeOutAsTheyWere) {
  struct Odd {
    int value;
  };
  try {
    strategy_.run([](ReplicaContext& ctx) {
      if (ctx.local_replica_id() == 1) throw Odd{7};
      sum(ctx);
    });
    ADD_FAILURE() << "threw nothing";
  } catch (const Odd& odd) {
    EXPECT_EQ(odd.value, 7);
  }
  expect_works(strategy_);
}

TEST_F(AfterFailure, AReplicaThatThrowsAfterTheLastMeetingIsReportedToo) {
  EXPECT_ERROR(std::domain_error, "unhappy", strategy_.run([](ReplicaContext& ctx) {
    sum(ctx);
    if (ctx.local_replica_id() == 2) throw std::domain_error("unhappy");
  }));
  expect_works(strategy_);
}

TEST_F(AfterFailure, AnErrorInTheReductionIsTheCallersError) {
  EXPECT_ERROR(InvalidArgumentError, "shapes [1] and [2]", strategy_.run([](ReplicaContext& ctx) {
    ctx.all_reduce(ReduceOp::SUM,
                   Tensor::zeros({ctx.local_replica_id() == 2 ? 2 : 1}, DType::float32));
  }));
  EXPECT_ERROR(InvalidArgumentError, "bool", strategy_.run([](ReplicaContext& ctx) {
    ctx.all_reduce(ReduceOp::SUM, Tensor::scalar<bool>(true));
  }));
  EXPECT_ERROR(InvalidArgumentError, "holds nothing", strategy_.run([](ReplicaContext& ctx) {
    ctx.all_reduce(ReduceOp::SUM, ctx.local_replica_id() == 1 ? Tensor() : number(1));
  }));
  EXPECT_ERROR(InvalidArgumentError, "timeout", strategy_.run([](ReplicaContext& ctx) {
    ctx.all_reduce(ReduceOp::SUM, number(1), {.communication = {.timeout = -1ms}});
  }));
  expect_works(strategy_);
}

TEST_F(AfterFailure, OfAnAssignmentVariablesAreAsTheyWere) {
  const Scope scope = strategy_.scope();
  const Variable v =
      Variable::create(number(5), {.name = "v", .aggregation = VariableAggregation::SUM});
  const Variable w =
      Variable::create(number(5), {.name = "w", .aggregation = VariableAggregation::SUM});
  EXPECT_ERROR(InvalidArgumentError, "[2]", strategy_.run([&](ReplicaContext& ctx) {
    v.assign(ctx.local_replica_id() == 1 ? Tensor::of<float>({1, 2}) : number(1));
  }));
  EXPECT_ERROR(InvalidArgumentError, "replica 2", strategy_.run([&](ReplicaContext& ctx) {
    (ctx.local_replica_id() == 2 ? w : v).assign(number(1));
  }));
  EXPECT_ERROR(InvalidArgumentError, "replica 1", strategy_.run([&](ReplicaContext& ctx) {
    ctx.local_replica_id() == 1 ? v.assign_add(number(1)) : v.assign(number(1));
  }));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(v.component(i).item<float>(), 5.f);
  expect_works(strategy_);
}

TEST_F(AfterFailure, TheContextOfAMergeFunctionCannotMeetAgain) {
  strategy_.run([](ReplicaContext& ctx) {
    ctx.merge_call([&ctx](Strategy&) {
      EXPECT_ERROR(FailedPreconditionError, "cross-replica", sum(ctx));
      EXPECT_ERROR(FailedPreconditionError, "cross-replica", ctx.merge_call([](Strategy&) {}));
    });
  });
  expect_works(strategy_);
}

// Outside of a run nothing starts the replica's next attempt.
TEST(ReplicaFailures, LeaveTheDefaultReplicaWorking) {
  ReplicaContext& ctx = get_replica_context();
  const auto fail = [](Strategy&) { throw std::domain_error("unhappy"); };
  EXPECT_ERROR(std::domain_error, "unhappy", ctx.merge_call(fail));
  EXPECT_ERROR(std::domain_error, "unhappy", ctx.merge_call(fail));
  EXPECT_EQ(ctx.all_reduce(ReduceOp::SUM, number(2)).item<float>(), 2.f);
}

}  // namespace
}  // namespace tutti
