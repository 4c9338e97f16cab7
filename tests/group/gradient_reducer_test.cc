// SPDX-License-Identifier: Apache-2.0
// Gradients that travel in buckets are the means over all ranks, bit for bit, and errors name the
// rank and the parameter.
#include <tutti/gradient_reducer.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "group/ranks.h"
#include "group/samples.h"

namespace tutti {
namespace {

using namespace testing;
using Options = GradientReducer::Options;
using ::testing::HasSubstr;

constexpr DType kTypes[] = {DType::float32, DType::bfloat16, DType::float64, DType::float16};

std::vector<GradientReducer::Parameter> parameters_of(std::initializer_list<int64_t> counts) {
  std::vector<GradientReducer::Parameter> all;
  for (const int64_t count : counts)
    all.push_back({"p" + std::to_string(all.size()), {count}, kTypes[all.size() % 4]});
  return all;
}

void write(const Tensor& gradient, const std::vector<std::byte>& values) {
  std::copy(values.begin(), values.end(), static_cast<std::byte*>(gradient.data()));
}

class Reducer : public Ranks {};
TUTTI_ON_RANKS(Reducer);

TEST_P(Reducer, MeansHaveTheSameBitsInAllBucketsAndOrders) {
  const auto parameters = parameters_of({1000, 0, 3, 20'000, 1, 513, 100'000});
  std::vector<Sample> samples;
  for (const auto& parameter : parameters)
    samples.emplace_back(parameter.dtype, ReduceOp::MEAN, parameter.shape.num_elements(), n);
  for (const int64_t bucket_bytes : {int64_t(1), int64_t(5000), int64_t(1) << 30})
    on_ranks(groups, [&](const Group& group) {
      GradientReducer reducer(group, parameters,
                              {.bucket_bytes = bucket_bytes, .communication = kLong});
      std::vector<size_t> order(parameters.size());
      std::iota(order.begin(), order.end(), size_t{0});
      for (int step = 0; step < 3; ++step) {
        // Ranks need not have them in the same order.
        std::shuffle(order.begin(), order.end(), std::mt19937(unsigned(group.rank() + 10 * step)));
        for (const size_t i : order) {
          write(reducer.gradient(i), samples[i].inputs[size_t(group.rank())]);
          reducer.ready(i);
        }
        reducer.finish();
        for (size_t i = 0; i < parameters.size(); ++i)
          EXPECT_TRUE(same_bits(parameters[i].dtype, reducer.gradient(i).const_data(),
                                samples[i].expected.data(),
                                samples[i].expected.size() / size_of(parameters[i].dtype)))
              << "parameter " << i << " in step " << step << " of rank " << group.rank();
      }
    });
}

TEST_P(Reducer, WeightedMeansAreRoundedOnce) {
  const auto weight_of = [](int rank) { return double(rank * rank + 1); };
  const auto value_of = [](int rank) { return 1.f / float(rank + 3); };
  std::vector<double> products, weights;
  for (int r = 0; r < n; ++r) {
    products.push_back(weight_of(r) * double(value_of(r)));
    weights.push_back(weight_of(r));
  }
  const auto sum = [](const std::vector<double>& v) {
    return tree(std::span<const double>(v), [](double a, double b) { return a + b; });
  };
  const double expected = sum(products) / sum(weights);
  on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({5, 3000, 70'000}), {.communication = kLong});
    reducer.begin(weight_of(group.rank()));
    std::ranges::fill(reducer.gradient(0).span<float>(), value_of(group.rank()));
    std::ranges::fill(reducer.gradient(1).span<bfloat16>(), bfloat16(float(group.rank())));
    std::ranges::fill(reducer.gradient(2).span<double>(), double(value_of(group.rank())));
    for (size_t i = 0; i < 3; ++i) reducer.ready(i);
    reducer.finish();
    EXPECT_THAT(reducer.gradient(0).to_vector<float>(), ::testing::Each(float(expected)));
    EXPECT_THAT(reducer.gradient(2).to_vector<double>(), ::testing::Each(expected));
    // The weights count for one step.
    for (size_t i = 3; i-- > 0;) reducer.ready(i);
    reducer.finish();
    EXPECT_EQ(reducer.gradient(0).span<float>()[4], float(expected));
  });
}

TEST_P(Reducer, IgnoresTheValuesOfARankWithoutWeight) {
  on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({100}), {.communication = kLong});
    const bool last = group.rank() == n - 1;
    reducer.begin(last ? 2 : 0);
    std::ranges::fill(reducer.gradient(0).span<float>(),
                      last ? 7.f : std::numeric_limits<float>::quiet_NaN());
    reducer.ready(0);
    reducer.finish();
    EXPECT_THAT(reducer.gradient(0).to_vector<float>(), ::testing::Each(7.f));
  });
}

TEST_P(Reducer, TakesGradientsFromAnyThread) {
  on_ranks(groups, [&](const Group& group) {
    constexpr size_t kParameters = 40;
    std::vector<GradientReducer::Parameter> parameters;
    for (size_t i = 0; i < kParameters; ++i)
      parameters.push_back({std::to_string(i), {int64_t(i * 37)}});
    GradientReducer reducer(group, parameters, {.bucket_bytes = 4096, .communication = kLong});
    for (int step = 0; step < 10; ++step) {
      std::atomic<size_t> next{0};
      on_threads(3, [&](size_t) {
        for (size_t i; (i = next++) < kParameters;) {
          std::ranges::fill(reducer.gradient(i).span<float>(), float(group.rank() + step));
          reducer.ready(i);
        }
      });
      reducer.finish();
      for (size_t i = 0; i < kParameters; ++i)
        EXPECT_THAT(reducer.gradient(i).to_vector<float>(),
                    ::testing::Each(float(step) + float(n - 1) / 2));
    }
  });
}

// Some ranks have theirs in memory that the others reach, some do not.
TEST_P(Reducer, TakesGradientsWhereTheyLie) {
  on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({5, 100'000, 70'000}), {.communication = kLong});
    const bool lends = group.rank() % 2 == 0;
    const Tensor own =
        lends ? group.empty({5}, DType::float32) : Tensor::empty({5}, DType::float32);
    const Tensor other = group.empty({100'000}, DType::bfloat16);
    for (int step = 0; step < 2; ++step) {
      std::ranges::fill(own.span<float>(), float(group.rank() + step));
      std::ranges::fill(other.span<bfloat16>(), bfloat16(float(group.rank())));
      std::ranges::fill(reducer.gradient(2).span<double>(), double(group.rank()));
      reducer.ready(0, own);
      reducer.ready(1, other);
      reducer.ready(2);
      reducer.finish();
      EXPECT_THAT(own.to_vector<float>(), ::testing::Each(float(step) + float(n - 1) / 2));
      EXPECT_THAT(other.to_vector<bfloat16>(), ::testing::Each(bfloat16(float(n - 1) / 2)));
      EXPECT_THAT(reducer.gradient(2).to_vector<double>(), ::testing::Each(double(n - 1) / 2));
      EXPECT_THAT(reducer.gradient(0).to_vector<float>(), ::testing::Each(0.f));
    }
    EXPECT_THAT(caught([&] { reducer.ready(0, Tensor::empty({6}, DType::float32)); }).text,
                HasSubstr("ready: the gradient of \"p0\" float32[5] on"));
    EXPECT_EQ(caught([&] { reducer.ready(0, Tensor::empty({5}, DType::float64)); }).code,
              ErrorCode::invalid_argument);
  });
}

TEST_P(Reducer, LeavesGradientsAloneWhilePaused) {
  on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({10}), {.communication = kLong});
    const auto pass = [&] {
      for (float& value : reducer.gradient(0).span<float>()) value += float(group.rank());
      reducer.ready(0);
      reducer.finish();
    };
    {
      const auto pause = reducer.no_sync();
      EXPECT_TRUE(reducer.is_paused());
      pass();
      pass();
      EXPECT_EQ(reducer.gradient(0).span<float>()[0], float(2 * group.rank()));
    }
    EXPECT_FALSE(reducer.is_paused());
    pass();
    EXPECT_EQ(reducer.gradient(0).span<float>()[9], 3 * float(n - 1) / 2);
  });
}

// Buckets are those of rank 0's first step.
TEST_P(Reducer, CallsAHookForEachBucketInTheOrderOfRank0) {
  on_ranks(groups, [&](const Group& group) {
    std::vector<std::vector<size_t>> seen;
    Options options{.bucket_bytes = 8, .communication = kLong};
    options.on_bucket = [&](const Options::Bucket& bucket) {
      seen.emplace_back(bucket.parameters.begin(), bucket.parameters.end());
      for (const Tensor& gradient : bucket.gradients)
        for (float& value : gradient.span<float>()) value *= 2;
    };
    GradientReducer reducer(group, {{"a", {2}}, {"b", {2}}, {"c", {1}}, {"d", {1}}}, options);
    const auto pass = [&](std::vector<size_t> order) {
      seen.clear();
      for (const size_t i : order) {
        std::ranges::fill(reducer.gradient(i).span<float>(), float(i));
        reducer.ready(i);
      }
      reducer.finish();
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(reducer.gradient(i).span<float>()[0], 2 * float(i));
    };
    pass(group.rank() == 0 ? std::vector<size_t>{2, 0, 3, 1} : std::vector<size_t>{0, 1, 2, 3});
    EXPECT_EQ(seen, (std::vector<std::vector<size_t>>{{3, 2}, {1}, {0}}));
    pass({3, 2, 1, 0});
    EXPECT_EQ(seen, (std::vector<std::vector<size_t>>{{2, 0}, {3, 1}}));
  });
}

TEST_P(Reducer, AHookThatThrowsFailsAllRanks) {
  std::string own;
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    Options options{.bucket_bytes = 1, .communication = kLong};
    if (group.rank() == n - 1)
      options.on_bucket = [](const Options::Bucket&) { throw std::runtime_error("no norm"); };
    GradientReducer reducer(group, parameters_of({4, 4}), options);
    for (int step = 0; step < 2; ++step) {
      reducer.ready(1);
      reducer.ready(0);
      try {
        reducer.finish();
      } catch (const std::runtime_error& error) {
        if (group.rank() != n - 1 || step == 1) throw;
        own = error.what();
      }
    }
  });
  EXPECT_EQ(own, "no norm");
  expect_everywhere(errors, ErrorCode::aborted,
                    {"rank " + std::to_string(n - 1) + " failed: no norm"});
}

TEST_P(Reducer, TravelsBesideTheProgramsOwnCollectives) {
  on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({10, 10}), {.communication = kLong});
    for (int step = 0; step < 20; ++step) {
      std::vector<int> sum{1};
      // Half of the ranks start the gradients' all_reduce before their own, the others after it.
      if (group.rank() % 2) group.all_reduce(sum, ReduceOp::SUM, kLong);
      std::ranges::fill(reducer.gradient(0).span<float>(), float(step));
      reducer.ready(1);
      reducer.ready(0);
      if (group.rank() % 2 == 0) group.all_reduce(sum, ReduceOp::SUM, kLong);
      reducer.finish();
      EXPECT_EQ(sum[0], n);
      EXPECT_EQ(reducer.gradient(0).span<float>()[3], float(step));
    }
  });
}

TEST_P(Reducer, CountsMissingGradientsAsZeroIfAsked) {
  on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({4, 4, 4}),
                            {.missing_as_zero = true, .communication = kLong});
    for (int step = 0; step < 2; ++step) {
      for (size_t i = 0; i < 3; ++i) std::memset(reducer.gradient(i).data(), 0x3f, 8);
      std::ranges::fill(reducer.gradient(0).span<float>(), float(n));
      if (group.rank() == n - 1) reducer.ready(0);
      reducer.finish();
      EXPECT_EQ(reducer.gradient(0).to_vector<float>(), std::vector<float>(4, 1));
      EXPECT_EQ(reducer.gradient(2).to_vector<double>(), std::vector<double>(4, 0));
    }
  });
}

TEST_P(Reducer, NamesMissingGradientsOnAllRanks) {
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({4, 300, 4}),
                            {.bucket_bytes = 1, .communication = kLong});
    for (const size_t i : {2, 1, 0})
      if (group.rank() != n - 1 || i != 1) reducer.ready(i);
    reducer.finish();
  });
  expect_everywhere(errors, ErrorCode::failed_precondition,
                    {"rank " + std::to_string(n - 1) + " has no gradient of \"p1\""});
}

TEST_P(Reducer, AnAbortedStepNamesTheRankAndTheReason) {
  if (n == 1) return;
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    GradientReducer reducer(group, parameters_of({4, 4}), {.communication = kLong});
    reducer.ready(1);
    if (group.rank() == 1) return reducer.abort("no more coffee");
    reducer.ready(0);
    const Caught first = caught([&] { reducer.finish(); });
    EXPECT_EQ(first.code, ErrorCode::aborted) << first.text;
    reducer.ready(0);
    reducer.ready(1);
    reducer.finish();  // the first error is the last
  });
  for (size_t r = 0; r < errors.size(); ++r) {
    if (r == 1) continue;
    EXPECT_EQ(errors[r].code, ErrorCode::aborted) << errors[r].text;
    EXPECT_THAT(errors[r].text, HasSubstr("rank 1 failed: no more coffee"));
  }
}

// The program's own group is none the worse for it.
TEST_P(Reducer, AFailedStepLeavesTheProgramsGroupAlone) {
  on_ranks(groups, [&](const Group& group) {
    // A rank may hear of the failure while it makes its own reducer.
    const Caught error = caught(
        [&] { GradientReducer(group, parameters_of({4}), {.communication = kLong}).finish(); });
    EXPECT_EQ(error.code, ErrorCode::failed_precondition) << error.text;
    group.barrier(kLong);
  });
}

TEST_P(Reducer, RanksWithOtherParametersGetAnErrorWithTheFirst) {
  if (n == 1) return;
  using List = std::vector<GradientReducer::Parameter>;
  const struct {
    List other;
    std::string text;
  } cases[] = {
      {{{"a", {2}}, {"b", {3, 3}}},
       "line 1 is \"b\" float32[3, 2] on rank 0 and \"b\" float32[3, 3] on rank"},
      {{{"a", {2}}, {"c", {3, 2}}},
       "line 1 is \"b\" float32[3, 2] on rank 0 and \"c\" float32[3, 2] on rank"},
      {{{"a", {2}, DType::float64}, {"b", {3, 2}}},
       "line 0 is \"a\" float32[2] on rank 0 and \"a\" float64[2] on rank"},
      {{{"a", {2}, DType::int32}, {"b", {3, 2}}},
       "line 0 is \"a\" float32[2] on rank 0 and \"a\" int32[2] on rank"},
      {{{"a", {2}}}, "line 1 is \"b\" float32[3, 2] on rank 0 and none (1 in all) on rank"},
  };
  for (const auto& [other, text] : cases)
    expect_everywhere(errors_on_ranks(groups,
                                      [&, other = other](const Group& group) {
                                        const List usual{{"a", {2}}, {"b", {3, 2}}};
                                        GradientReducer(group,
                                                        group.rank() == n - 1 ? other : usual,
                                                        {.communication = kLong});
                                      }),
                      ErrorCode::invalid_argument, {text + " " + std::to_string(n - 1)});
}

TEST(GradientReducer, ChecksItsArguments) {
  const Group alone = Group::in_process(1)[0];
  const auto made = [&](std::vector<GradientReducer::Parameter> parameters, Options options = {}) {
    return caught([&] { GradientReducer(alone, std::move(parameters), options); });
  };
  EXPECT_THAT(made({{"steps", {1}, DType::int32}}).text, HasSubstr("\"steps\" int32[1]"));
  EXPECT_THAT(made({}, {.bucket_bytes = 0}).text, HasSubstr("bucket_bytes is 0"));
  EXPECT_EQ(made({}).code, std::nullopt);

  GradientReducer reducer(alone, {{"a", {2}}, {"b", {2}}});
  EXPECT_EQ(caught([&] { reducer.ready(2); }).code, ErrorCode::out_of_range);
  EXPECT_EQ(caught([&] { (void)reducer.gradient(2); }).code, ErrorCode::out_of_range);
  for (const double weight : {-1., std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_EQ(caught([&] { reducer.begin(weight); }).code, ErrorCode::invalid_argument);
  reducer.ready(1);
  EXPECT_THAT(caught([&] { reducer.ready(1); }).text, HasSubstr("\"b\" was ready before"));
  EXPECT_THAT(caught([&] { reducer.begin(1); }).text, HasSubstr("\"b\" is ready already"));
  reducer.ready(0);
  reducer.finish();
}

// The gradients are the program's again, though the second bucket was on its way.
TEST(GradientReducer, RefusesWeightsThatAreAllZeroAndGoesOn) {
  on_ranks(Group::in_process(2), [](const Group& group) {
    GradientReducer reducer(group, {{"a", {200'000}}, {"b", {2}}},
                            {.bucket_bytes = 1, .communication = kLong});
    const auto pass = [&](double weight) {
      reducer.begin(weight);
      for (const size_t i : {1, 0}) {
        std::ranges::fill(reducer.gradient(i).span<float>(), float(group.rank()));
        reducer.ready(i);
      }
      reducer.finish();
    };
    const Caught error = caught([&] { pass(0); });
    EXPECT_EQ(error.code, ErrorCode::invalid_argument);
    EXPECT_THAT(error.text, HasSubstr("the weights of all ranks are 0"));
    pass(1);
    EXPECT_THAT(reducer.gradient(0).to_vector<float>(), ::testing::Each(0.5f));
  });
}

TEST(GradientReducer, LeavingInTheMiddleOfAStepTellsTheOthers) {
  const Groups groups = Group::in_process(2);
  const auto errors = errors_on_ranks(groups, [](const Group& group) {
    GradientReducer reducer(group, {{"a", {2}}, {"b", {2}}},
                            {.bucket_bytes = 1, .communication = kLong});
    reducer.ready(1);
    if (group.rank() == 0) return;
    reducer.ready(0);
    reducer.finish();
  });
  EXPECT_EQ(errors[1].code, ErrorCode::aborted) << errors[1].text;
  EXPECT_THAT(errors[1].text, HasSubstr("rank 0 left the group"));
}

TEST(ClipByGlobalNorm, ScalesWhatIsLonger) {
  const Tensor a = Tensor::of<float>({3, 0}), b = Tensor::of<double>({4});
  EXPECT_EQ(clip_by_global_norm(std::vector{a, b}, 10), 5);
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{3, 0}));
  EXPECT_EQ(clip_by_global_norm(std::vector{a, b}, 1), 5);
  EXPECT_EQ(a.to_vector<float>(), (std::vector<float>{float(3 * (1. / 5)), 0}));
  EXPECT_EQ(b.to_vector<double>(), (std::vector<double>{4 * (1. / 5)}));
  EXPECT_EQ(clip_by_global_norm({}, 1), 0);
}

TEST(ClipByGlobalNorm, ChecksItsArguments) {
  const Tensor floats = Tensor::of<float>({1}), whole = Tensor::of<int>({1});
  EXPECT_EQ(caught([&] {
              clip_by_global_norm({&floats, 1}, 0);
            }).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(caught([&] { clip_by_global_norm({&whole, 1}, 1); }).code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace tutti
